"""The same prompts, labels and queries by other methods, timed request by request in one run."""
