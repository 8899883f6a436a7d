"""How fast a configuration labels."""
