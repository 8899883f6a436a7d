"""From labels or labelled rows to a new configuration."""
