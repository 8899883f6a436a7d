// What lies between the products for Q, K and V and the attention, as one launch.
#pragma once

#include "ggml-cuda/common.cuh"

// The rotation of Q and K, after their norms where the model has them, and the writes of K and V to a cache of halves.
// Computes them where node i is the first of them; gives the number of nodes that this was, or 0.
int ggml_cuda_rope_into_cache(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i);
