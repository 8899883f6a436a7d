#include "mmq_direct_type.cuh"

namespace mmq_direct {

// 32 times the value: its 3 bits are at the top of a byte.
template <> struct weight_type<GGML_TYPE_Q3_K> {
    static constexpr int BYTES = sizeof(block_q3_K);
    static constexpr int SLICES_OF_BLOCK = 1;
    static constexpr int ALIGNMENT = 2;
    static constexpr int N_SCALES = 2;
    static constexpr bool HAS_MIN = false;

    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[2]) {
        const char * mine = row + 4*quarter();
        const int low_scales = word_at<2>(row, 96 + 4*pair) >> 4*h & 0x0F0F0F0F;
        const int scales = low_scales | (word_at<2>(row, 104) >> (4*h + 2*pair) & 0x03030303) << 4;
        const float d = 0.03125f*half_at(row, 108);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int low = word_at<2>(mine + 32*h, 32 + 16*i) >> (4*pair + 2*n);
            const int high = word_at<2>(mine, 16*i) >> (4*h + 2*pair + n);
            a[i] = (((low & 0x03030303) << 5) | (high & 0x01010101) << 7) ^ 0x80808080;
            s[i] = (byte_above_2_23(scales, 2*n + i) - (8388608.0f + 32))*d;
        }
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_Q3_K, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
