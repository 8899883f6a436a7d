#include "mmq_direct_type.cuh"

namespace mmq_direct {

template <> struct weight_type<GGML_TYPE_IQ4_NL> : plain_type<K_BLOCK/32*sizeof(block_iq4_nl), 16> {
    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        row += h*4*sizeof(block_iq4_nl);
        const int block = (2*pair + n)*sizeof(block_iq4_nl);
        look_up(word_at<16>(row + 4*quarter(), block + 2), iq4_table(), a);
        s[0] = half_at(row, block);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_IQ4_NL, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
