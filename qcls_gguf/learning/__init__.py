"""Learning heads from labelled queries."""
