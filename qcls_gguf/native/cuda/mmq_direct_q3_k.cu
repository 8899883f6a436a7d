#include "mmq_direct_type.cuh"

namespace mmq_direct {

// Values and scales are so small that their products, from -124 to 128, fit into int8 if their sign is changed.
template <> struct weight_type<GGML_TYPE_Q3_K> : plain_type<sizeof(block_q3_K), 2> {
    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        const char * mine = row + 4*quarter();
        const int low_scales = word_at<2>(row, 96 + 4*pair) >> 4*h & 0x0F0F0F0F;
        const int scales = low_scales | (word_at<2>(row, 104) >> (4*h + 2*pair) & 0x03030303) << 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int low = word_at<2>(mine + 32*h, 32 + 16*i) >> (4*pair + 2*n);
            const int high = word_at<2>(mine, 16*i) >> (4*h + 2*pair + n);
            const int values = ((low & 0x03030303) | (high & 0x01010101) << 2) - 0x04040404;
            const int scale = 32 - (scales >> (16*n + 8*i) & 0xFF);
            a[i] = (values*scale + (int) 0x80808080) ^ 0x80808080;  // undoes carries between bytes
        }
        s[0] = -half_at(row, 108);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_Q3_K, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
