"""Measures how well a configuration labels."""
