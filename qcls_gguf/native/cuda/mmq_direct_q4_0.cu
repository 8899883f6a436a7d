#include "mmq_direct_type.cuh"

namespace mmq_direct {

template <> struct weight_type<GGML_TYPE_Q4_0> : plain_type<K_BLOCK/32*sizeof(block_q4_0), 16> {
    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        row += h*4*sizeof(block_q4_0);
        const int block = (2*pair + n)*sizeof(block_q4_0);
        top_nibbles(word_at<16>(row + 4*quarter(), block + 2), a);
        s[0] = 0.0625f*half_at(row, block);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_Q4_0, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
