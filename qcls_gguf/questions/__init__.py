"""Questions that come at run time, and the prompts that they are."""
