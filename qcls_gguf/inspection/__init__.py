"""What a configuration costs before any query."""
