"""One queue, one step, and the handles of prompt sets: the way of every request to an engine and back."""
