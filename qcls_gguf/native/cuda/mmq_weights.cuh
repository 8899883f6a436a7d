// A warp's share of a Q4_K matrix in code for 7.5, fetched ahead directly to registers. Other types: mmq_slices.cuh.
#pragma once

#include "mmq_unpack.cuh"

namespace mmq_direct {

// The weights of one warp, fetched a K_BLOCK or a K_STEP ahead. Half of a block has two pairs of 32 values. unpack()
// gives, for the 32 values number n of a pair of half h, the int8 fragments a (RG, 2) and their scales s (RG,
// N_SCALES). With short_loop, h is known only at run time.
template <ggml_type type, int RG, bool early, bool short_loop> struct weights;

template <int RG, bool early, bool short_loop> struct weights<GGML_TYPE_Q4_K, RG, early, short_loop> {
    static constexpr int N_SCALES = 1;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = true;
    static constexpr int BLOCK_BYTES = sizeof(block_q4_K);
    static constexpr int SMEM_BYTES = 0;

    int4 head[RG];  // d and dmin, 12 bytes of scales and minimums
    int4 next_head[RG];
    int2 q[short_loop ? 2 : 4][RG];  // the codes of a half, or of the whole block
    const char * px[RG];
    int offset;      // with short_loop: where the next fetch begins, from px on
    int scales[RG];  // with short_loop: the scales of this half

    __device__ __forceinline__ void fetch_head() {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            next_head[r] = ldg4<early>(px[r]);
        }
    }
    __device__ __forceinline__ void fetch_pair(const int i, const int first) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            q[i][r] = ldg2<early>(px[r] + first + 32*i + 8*(threadIdx.x % 4));
        }
    }
    __device__ __forceinline__ void start(const char * x, const int stride_row, char *) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            px[r] = x + (8*r + threadIdx.x/4)*stride_row;
        }
        fetch_head();
#pragma unroll
        for (int i = 0; i < (short_loop ? 2 : 4); ++i) {
            fetch_pair(i, Q4_K_HEAD_BYTES);
        }
    }
    // Called before each of a block's two steps: makes the fetched values readable and fetches the next ones.
    __device__ __forceinline__ void open_step(const int h, const bool is_last, const int) {
        if (h == 0) {
#pragma unroll
            for (int r = 0; r < RG; ++r) {
                head[r] = next_head[r];
                px[r] += is_last ? 0 : BLOCK_BYTES;
            }
        }
        if constexpr (short_loop) {
            // px points to the next block already, or still to the last one
            offset = h == 0 ? Q4_K_HEAD_BYTES + 64 - (is_last ? 0 : BLOCK_BYTES) : Q4_K_HEAD_BYTES;
#pragma unroll
            for (int r = 0; r < RG; ++r) {
                scales[r] = q4_k_scales(head[r], h);
            }
        }
    }
    __device__ __forceinline__ void unpack(const int h, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][1]) {
        const int i = short_loop ? pair : 2*h + pair;
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            const float d = __low2float(*(const half2 *) &head[r].x);
            q4_k_values<IS_UNSIGNED>(q[i][r], short_loop ? scales[r] : q4_k_scales(head[r], h), d, pair, n, a[r], s[r][0]);
        }
        if (n == 1) {
            fetch_pair(i, short_loop ? offset : Q4_K_HEAD_BYTES);
            if (h == 1 && pair == 0) {
                fetch_head();
            }
        }
    }
    __device__ __forceinline__ int min_fragment(const int r, const int h) {
        return q4_k_min_fragment(head[r], h);
    }
};

} // namespace mmq_direct
