#include "mmq_direct_type.cuh"

namespace mmq_direct {

// Floats of 4 bits, which the table has twice.
template <> struct weight_type<GGML_TYPE_MXFP4> : plain_type<K_BLOCK/32*sizeof(block_mxfp4), 8> {
    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        row += h*4*sizeof(block_mxfp4);
        const int block = (2*pair + n)*sizeof(block_mxfp4);
        look_up(word_at<8>(row + 4*quarter(), block + 1), make_int4(0x03020100, 0x0C080604, 0xFDFEFF00, 0xF4F8FAFC), a);
        const int exponent = *(const unsigned char *) (row + block);  // of twice the scale; the least two are taken for 0
        s[0] = __int_as_float((max(exponent, 1) - 1) << 23);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_MXFP4, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
