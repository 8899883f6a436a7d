"""One llama.cpp context with its prefix cache and sequences."""
