"""The laboratory of whoever changes the CUDA kernels: `make kernels`, `make t4` (docs/kernels.md)."""
