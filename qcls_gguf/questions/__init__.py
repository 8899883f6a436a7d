"""Questions that arrive at run time, the prompt sets that they become, and their answers."""
