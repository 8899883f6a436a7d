"""One llama.cpp context with its prefix cache and sequences, and the queue of the callers that use it."""
