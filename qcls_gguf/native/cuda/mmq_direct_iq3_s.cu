#include "mmq_direct_type.cuh"

namespace mmq_direct {

// Numbers of entries in a grid of four magnitudes, and signs.
template <> struct weight_type<GGML_TYPE_IQ3_S> {
    static constexpr int BYTES = sizeof(block_iq3_s);
    static constexpr int SLICES_OF_BLOCK = 1;
    static constexpr int ALIGNMENT = 2;
    static constexpr int N_SCALES = 1;
    static constexpr bool HAS_MIN = false;

    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        const int part = 4*h + 2*pair + n;
        const int high = *(const unsigned char *) (row + 66 + part) >> quarter();
        const int signs = word_at<2>(row + 4*part, 74) >> 4*quarter();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int low = *(const unsigned char *) (row + 8*part + quarter() + 2 + 4*i);
            const int is_negative = spread_bits(signs >> 16*i);
            a[i] = (iq3s_grid[low | (high >> 4*i & 1) << 8] ^ is_negative*0xFF) + is_negative;
        }
        const int scale = *(const unsigned char *) (row + 2*h + pair + 106) >> 4*n & 15;
        s[0] = (byte_above_2_23(1 + 2*scale, 0) - 8388608.0f)*half_at(row, 0);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_IQ3_S, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
