"""From labels, labelled rows or an old configuration to a new configuration."""
