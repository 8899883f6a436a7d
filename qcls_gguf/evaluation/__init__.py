"""How well a configuration labels."""
