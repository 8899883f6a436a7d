#include "mmq_direct_type.cuh"

namespace mmq_direct {

// Numbers of entries in a grid of four magnitudes, which are odd, and signs.
template <> struct weight_type<GGML_TYPE_IQ3_S> : plain_type<sizeof(block_iq3_s), 2> {
    // Lanes look different entries up, which memory's cache gives one after another.
    static constexpr int N_ENTRIES = sizeof(iq3s_grid)/sizeof(int);
    static_assert(sizeof(iq3s_grid) == table_bytes(GGML_TYPE_IQ3_S), "shapes count other bytes of shared memory");

    static __device__ __forceinline__ int * grid() {
        __shared__ int entries[N_ENTRIES];
        return entries;
    }
    static __device__ __forceinline__ void prepare() {
        for (int i = threadIdx.y*32 + threadIdx.x; i < N_ENTRIES; i += 32*blockDim.y) {
            grid()[i] = iq3s_grid[i];
        }
    }
    static __device__ __forceinline__ void values(const char * row, const int h, const int pair, const int n, int (&a)[2], float (&s)[1]) {
        const int part = 4*h + 2*pair + n;
        const int high = *(const unsigned char *) (row + 66 + part) << (8 - quarter());
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int low = *(const unsigned char *) (row + 8*part + quarter() + 2 + 4*i);
            const int signs = *(const unsigned char *) (row + 4*part + quarter()/2 + 74 + 2*i) >> 4*(quarter() % 2);
            int masks;  // copies of the sign bits
            asm("prmt.b32 %0, %1, 0, 0xBA98;" : "=r"(masks) : "r"(spread_bits<7>(signs)));
            a[i] = grid()[low | (high >> 4*i & 0x100)] ^ (masks & 0xFEFEFEFE);
        }
        const int scale = *(const unsigned char *) (row + 2*h + pair + 106) >> 4*n & 15;
        s[0] = (byte_above_2_23(1 + 2*scale, 0) - 8388608.0f)*half_at(row, 0);
    }
};

} // namespace mmq_direct

template void mmq_direct::launch_type<GGML_TYPE_IQ3_S, false>(ggml_backend_cuda_context & ctx, args & g, const product & p);
