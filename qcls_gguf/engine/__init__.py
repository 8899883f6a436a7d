"""One llama.cpp context, its prefix cache and sequences, and who may use it when."""
