"""The same prompts, labels and queries through other ways of labelling them, timed request by request in one run."""
