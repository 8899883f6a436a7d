#include "mmq_direct_type.cuh"

namespace mmq_direct {

template <> struct weight_type<GGML_TYPE_IQ4_XS> : plain_type<sizeof(block_iq4_xs), 8> {
    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        const int head = word_at<8>(row, 0);  // d and the scales' high bits
        const int low = word_at<8>(row, 4) >> (16*h + 8*pair + 4*n);
        const int scale = (low & 15) | (head >> (16 + 8*h + 4*pair + 2*n) & 3) << 4;
        look_up(word_at<8>(row + 64*h + 4*quarter(), 8 + 32*pair + 16*n), iq4_table(), a);
        const float d = half_at(row, 0);
        s[0] = fmaf(__int_as_float(MAGIC_BITS + scale - 32), d, -MAGIC*d);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_IQ4_XS, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
