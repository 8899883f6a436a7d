#include "mmq_direct_type.cuh"

template void mmq_direct::launch_type<GGML_TYPE_Q6_K, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
