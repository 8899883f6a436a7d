// One launch for the operations between the products for Q, K and V and the attention.
#pragma once

#include "ggml-cuda/common.cuh"

// If node i is the first of these operations, computes them all: the norms of Q and K (if the model has them), their
// rotations, and the writes of K and V to a cache of halves. Returns how many nodes that were, or 0.
int ggml_cuda_rope_into_cache(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i);
