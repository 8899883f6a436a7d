#include "mmq_direct_type.cuh"

namespace mmq_direct {

// Numbers of entries in a grid of four magnitudes, which are odd, and signs.
template <> struct weight_type<GGML_TYPE_IQ3_S> : plain_type<sizeof(block_iq3_s), 2> {
    // Lanes look different entries up, which memory's cache gives one after another. Two entries whose numbers differ in
    // the highest bit stand side by side.
    static constexpr int N_ENTRIES = sizeof(iq3s_grid)/sizeof(int);
    static_assert(sizeof(iq3s_grid) == table_bytes(GGML_TYPE_IQ3_S), "shapes count other bytes of shared memory");

    static __device__ __forceinline__ int * grid() {
        __shared__ int entries[N_ENTRIES];
        return entries;
    }
    static __device__ __forceinline__ void prepare() {
        for (int i = threadIdx.y*32 + threadIdx.x; i < N_ENTRIES; i += 32*blockDim.y) {
            grid()[i%256*2 + i/256] = iq3s_grid[i];
        }
    }
    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        const int part = 4*h + 2*pair + n;
        const int low = *(const unsigned short *) (row + 8*part + 2*quarter() + 2);
        const int bits = *(const unsigned short *) (row + 4*h + 2*pair + 66) >> 2*quarter();  // the highest, of both n
        const int high = __byte_perm(bits, 0, 0x1100) & 0x02010201;
        const int numbers = __byte_perm(low, high, n == 0 ? 0x5410 : 0x7610);
        const int signs = *(const unsigned char *) (row + 4*part + quarter() + 74);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            int masks;  // signs come to the highest bits of bytes 3 to 0; then each is there eight times
            asm("prmt.b32 %0, %1, 0, 0x89AB;" : "=r"(masks) : "r"(signs*(i == 0 ? 0x80402010 : 0x08040201)));
            const unsigned byte = __dp4a((unsigned) numbers, i == 0 ? 0x00040008u : 0x02000800u, 0u);
            a[i] = *(const int *) ((const char *) grid() + byte) ^ (masks & 0xFEFEFEFE);
        }
        const int scales = *(const unsigned short *) (row + 2*h + 106);
        const int place = 4*(2*pair + n);  // of the scale's bits; the factor is 1 + 2*scale
        const int factor = kept(0x4B000001) | ((place == 0 ? scales << 1 : scales >> (place - 1)) & 0x1E);  // above 2^23
        const float d = half_at(row, 0);
        s[0] = fmaf(__int_as_float(factor), d, -8388608.0f*d);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_IQ3_S, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
