"""Hidden states to label scores, probabilities and answers."""
