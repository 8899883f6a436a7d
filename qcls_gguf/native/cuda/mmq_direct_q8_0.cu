#include "mmq_direct_type.cuh"

namespace mmq_direct {

template <> struct weight_type<GGML_TYPE_Q8_0> : plain_type<K_STEP/32*sizeof(block_q8_0), 8> {
    static constexpr int SLICES_OF_BLOCK = 2;

    static __device__ __forceinline__ void values(const char * row, const int, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        const int block = (2*pair + n)*sizeof(block_q8_0);
        a[0] = word_at<8>(row + 4*quarter(), block + 2);
        a[1] = word_at<8>(row + 4*quarter(), block + 18);
        s[0] = half_at(row, block);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_Q8_0, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
