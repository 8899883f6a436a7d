"""Templates and labels to tokens."""
