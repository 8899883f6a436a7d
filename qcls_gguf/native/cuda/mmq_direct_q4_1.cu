#include "mmq_direct_type.cuh"

namespace mmq_direct {

template <> struct weight_type<GGML_TYPE_Q4_1> : plain_type<K_BLOCK/32*sizeof(block_q4_1), 16> {
    static constexpr bool HAS_MIN = true;

    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        row += h*4*sizeof(block_q4_1);
        const int block = (2*pair + n)*sizeof(block_q4_1);
        low_nibbles(word_at<16>(row + 4*quarter(), block + 4), a);
        s[0] = half_at(row, block);
    }
    static __device__ __forceinline__ half2 minimums(const char * row, const int h, const int first) {
        row += (4*h + first)*sizeof(block_q4_1);
        return halves_at(row, 2, sizeof(block_q4_1) + 2);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_Q4_1, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
