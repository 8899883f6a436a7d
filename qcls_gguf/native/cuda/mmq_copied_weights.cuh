// A warp's share of a Q4_K matrix in code for 8.0 and newer. Asynchronous copies bring slices of it to a part of shared
// memory that only this warp uses, so that fetching ahead takes no registers. Other types: mmq_slices.cuh.
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

} // namespace mmq_direct
