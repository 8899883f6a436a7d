#include "mmq_direct_type.cuh"

namespace mmq_direct {

template <> struct weight_type<GGML_TYPE_Q6_K> : plain_type<sizeof(block_q6_K), 2> {
    static constexpr int N_SCALES = 2;

    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[2]) {
        const char * mine = row + 4*quarter();
        const int scales = word_at<2>(row + 8*h, 192 + 4*pair) ^ 0x80808080;
        const float d = 0.25f*half_at(row, 208);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int low = word_at<2>(mine + 64*h, 32*n + 16*i);
            const int high = word_at<2>(mine + 32*h, 128 + 16*i);
            q6_k_value(low >> 4*pair, high >> 4*pair, n, a[i]);
            s[i] = (byte_above_2_23(scales, 2*n + i) - 8388736.0f)*d;
        }
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_Q6_K, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
