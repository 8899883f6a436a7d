"""The classifier over HTTP."""
