// A warp's share of a quantised matrix in code for 8.0 and newer. Asynchronous copies bring slices of it to a part of
// shared memory that only this warp uses, so that fetching ahead takes no registers.
#pragma once

#include "mmq_unpack.cuh"

namespace mmq_direct {

// The weights of one warp. A slice is a K_BLOCK or a K_STEP of its rows. start() requests the first slices. ask_next(),
// called once in each step, requests the next one in a separate copy group, which must have arrived by the end of the
// next step. unpack() works as in struct weights.
template <ggml_type type, int RG> struct copied_weights;

template <typename W> static __device__ __forceinline__ void ask_next(W & w, const int h) {
    if ((W::SLICES_OF_BLOCK == 2 || h == 0) && w.slices.n_left > 0) {
        w.copy();
    }
}

// The places of a warp's slices form a ring: one is read while the others are filled.
template <int n_slices, int slice_bytes> struct slice_ring {
    static constexpr int BYTES = n_slices*slice_bytes;

    const char * base;
    int filled;  // offset of the slice that is filled next
    int read;    // offset of the slice that is read
    int n_left;  // slices not requested yet

    __device__ __forceinline__ void start(const char * smem, const int n) {
        base = smem;
        filled = 0;
        read = BYTES - slice_bytes;  // advance() is called before each slice
        n_left = n;
    }
    // The place of the next slice.
    __device__ __forceinline__ unsigned fill() {
        const unsigned to = shared_address(base) + filled;
        filled = next(filled);
        --n_left;
        return to;
    }
    static __device__ __forceinline__ int next(const int offset) {
        return offset == BYTES - slice_bytes ? 0 : offset + slice_bytes;
    }
    __device__ __forceinline__ void advance() {
        read = next(read);
    }
};

template <int RG> struct copied_weights<GGML_TYPE_Q4_K, RG> {
    static constexpr int N_SCALES = 1;
    static constexpr bool IS_UNSIGNED = true;
    static constexpr bool HAS_MIN = true;
    static constexpr int BLOCK_BYTES = sizeof(block_q4_K);
    static constexpr int ROW_BYTES = 160;  // 144 and padding: with 40 words (8 modulo 32) lanes use different banks
    static constexpr int SLICES_OF_BLOCK = 1;
    using ring = slice_ring<2, RG*8*ROW_BYTES>;
    static constexpr int SMEM_BYTES = ring::BYTES;

    ring slices;
    const char * heads;    // the head of this lane's row
    const char * quants;   // 16 bytes of row lane/8
    int stride_4;          // the bytes of 4 rows
    int scales[RG];
    float d[RG];
    int2 q[RG];

    __device__ __forceinline__ void start(const char * x, const int stride_row, const char * smem, const int n_kblocks) {
        slices.start(smem, SLICES_OF_BLOCK*n_kblocks);
        heads = x + threadIdx.x*stride_row;
        quants = x + threadIdx.x/8*stride_row + Q4_K_HEAD_BYTES + threadIdx.x%8*16;
        stride_4 = 4*stride_row;
        copy();
    }
    __device__ __forceinline__ void copy() {
        const unsigned to = slices.fill();
        if (RG == 4 || threadIdx.x < RG*8) {
            copy_async<16>(to + threadIdx.x*ROW_BYTES, heads);
        }
#pragma unroll
        for (int i = 0; i < RG*2; ++i) {
            copy_async<16>(to + (4*i + threadIdx.x/8)*ROW_BYTES + Q4_K_HEAD_BYTES + threadIdx.x%8*16, quants + i*stride_4);
        }
        heads += BLOCK_BYTES;
        quants += BLOCK_BYTES;
    }
    __device__ __forceinline__ const char * row(const int r) const {
        return slices.base + slices.read + (8*r + threadIdx.x/4)*ROW_BYTES;
    }
    __device__ __forceinline__ void open_step(const int h) {
        if (h == 0) {
            slices.advance();
        }
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            const int4 head = *(const int4 *) row(r);
            scales[r] = q4_k_scales(head, h);
            d[r] = __low2float(*(const half2 *) &head.x);
        }
    }
    __device__ __forceinline__ void unpack(const int h, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][1]) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            if (n == 0) {
                q[r] = *(const int2 *) (row(r) + Q4_K_HEAD_BYTES + 64*h + 32*pair + threadIdx.x%4*8);
            }
            q4_k_values<IS_UNSIGNED>(q[r], scales[r], d[r], pair, n, a[r], s[r][0]);
        }
    }
    __device__ __forceinline__ int min_fragment(const int r, const int h) const {
        return q4_k_min_fragment(*(const int4 *) row(r), h);
    }
};

// There are three slices of a K_STEP, so each has two steps in which to arrive.
template <int RG> struct copied_weights<GGML_TYPE_Q8_0, RG> {
    static constexpr int N_SCALES = 1;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = false;
    static constexpr int BLOCK_BYTES = K_BLOCK/QK8_0*sizeof(block_q8_0);
    static constexpr int STEP_BYTES = BLOCK_BYTES/2;  // 17 times 8
    static constexpr int ROW_BYTES = 144;             // with 36 words (4 modulo 32) lanes use different banks
    static constexpr int SLICES_OF_BLOCK = 2;
    using ring = slice_ring<3, RG*8*ROW_BYTES>;
    static constexpr int SMEM_BYTES = ring::BYTES;

    ring slices;
    const char * most;  // 8 bytes of row lane/16
    const char * last;  // the last 8 bytes of row `lane`
    int stride_2;       // the bytes of 2 rows

    __device__ __forceinline__ void start(const char * x, const int stride_row, const char * smem, const int n_kblocks) {
        slices.start(smem, SLICES_OF_BLOCK*n_kblocks);
        most = x + threadIdx.x/16*stride_row + threadIdx.x%16*8;
        last = x + threadIdx.x*stride_row + STEP_BYTES - 8;
        stride_2 = 2*stride_row;
        copy();
    }
    __device__ __forceinline__ void copy() {
        const unsigned to = slices.fill();
#pragma unroll
        for (int i = 0; i < RG*4; ++i) {
            copy_async<8>(to + (2*i + threadIdx.x/16)*ROW_BYTES + threadIdx.x%16*8, most + i*stride_2);
        }
        if (RG == 4 || threadIdx.x < RG*8) {
            copy_async<8>(to + threadIdx.x*ROW_BYTES + STEP_BYTES - 8, last);
        }
        most += STEP_BYTES;
        last += STEP_BYTES;
    }
    __device__ __forceinline__ void open_step(const int) {
        slices.advance();
    }
    __device__ __forceinline__ void unpack(const int, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][1]) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            const int * row = (const int *) (slices.base + slices.read + (8*r + threadIdx.x/4)*ROW_BYTES);
            q8_0_values(row + 17*pair, n, a[r], s[r][0]);
        }
    }
};

// A block may begin at any even address, so aligned groups of 16 bytes that contain it are copied.
template <int RG> struct copied_weights<GGML_TYPE_Q6_K, RG> {
    static constexpr int N_SCALES = 2;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = false;
    static constexpr int BLOCK_BYTES = sizeof(block_q6_K);
    static constexpr int ROW_VECTORS = 14;  // groups of 16 bytes contain a block wherever it begins
    static constexpr int ROW_BYTES = 240;   // with padding: with 60 words (28 modulo 32) lanes use different banks
    static_assert(BLOCK_BYTES + 14 <= 16*ROW_VECTORS && 16*ROW_VECTORS <= ROW_BYTES, "a block does not fit");
    static constexpr int SLICES_OF_BLOCK = 1;
    using ring = slice_ring<2, RG*8*ROW_BYTES>;
    static constexpr int SMEM_BYTES = ring::BYTES;

    ring slices;
    const char * filling;  // the block of row lane/16 that is requested next
    const char * reading;  // the block of row lane/4 that is read; 8 rows further, blocks begin alike modulo 16
    int stride_2;          // the bytes of 2 rows

    __device__ __forceinline__ void start(const char * x, const int stride_row, const char * smem, const int n_kblocks) {
        slices.start(smem, SLICES_OF_BLOCK*n_kblocks);
        filling = x + threadIdx.x/16*stride_row;
        reading = x + threadIdx.x/4*stride_row - BLOCK_BYTES;
        stride_2 = 2*stride_row;
        copy();
    }
    __device__ __forceinline__ void copy() {
        const unsigned to = slices.fill() + threadIdx.x/16*ROW_BYTES + threadIdx.x%16*16;
        if (threadIdx.x%16 < ROW_VECTORS) {
#pragma unroll
            for (int i = 0; i < RG*4; ++i) {
                const char * row = filling + i*stride_2;
                copy_async<16>(to + 2*i*ROW_BYTES, row - ((size_t) row & 15) + threadIdx.x%16*16);
            }
        }
        filling += BLOCK_BYTES;
    }
    __device__ __forceinline__ void open_step(const int h) {
        if (h == 0) {
            slices.advance();
            reading += BLOCK_BYTES;
        }
    }
    __device__ __forceinline__ void unpack(const int h, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][2]) {
        const char * first = slices.base + slices.read + threadIdx.x/4*ROW_BYTES + ((size_t) reading & 12);
        const int shift = 8*((size_t) reading & 2);
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            q6_k_values((const int *) (first + 8*r*ROW_BYTES), shift, h, pair, n, a[r], s[r]);
        }
    }
};

} // namespace mmq_direct
