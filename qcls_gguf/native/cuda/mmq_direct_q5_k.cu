#include "mmq_direct_type.cuh"

namespace mmq_direct {

template <> struct weight_type<GGML_TYPE_Q5_K> : plain_type<sizeof(block_q5_K), 16> {
    static constexpr bool HAS_MIN = true;

    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        const int4 head = *(const int4 *) row;
        const char * mine = row + 4*quarter();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int low = word_at<16>(mine + 64*h, 48 + 32*pair + 16*i) >> 4*n;
            const int high = word_at<16>(mine, 16 + 16*i) >> (4*h + 2*pair + n);
            a[i] = (low & 0x0F0F0F0F) | (high & 0x01010101) << 4;
        }
        s[0] = scaled_byte(q4_k_scales(head, h), 2*pair + n, __low2float(*(const half2 *) &head.x));
    }
    static __device__ __forceinline__ half2 minimums(const char * row, const int h, const int first) {
        return q4_k_minimums(*(const int4 *) row, h, first);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_Q5_K, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
