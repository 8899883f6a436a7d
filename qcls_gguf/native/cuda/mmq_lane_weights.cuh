// A warp's share of a matrix in lane order, loaded from memory directly to the registers that the tensor cores read.
// Only in code for 7.5.
#pragma once

#include "lane_order.h"
#include "mmq_unpack.cuh"

namespace mmq_direct {

// A lane's part of half a block of Q6_K; both pairs of the half use all of it.
struct q6_k_lane_part {
    int4 low;
    int2 high;
    int2 scales;
    int d;

    __device__ __forceinline__ void unpack(const int pair, const int n, int (&a)[2], float (&s)[2]) const {
        const int sc = (pair == 0 ? scales.x : scales.y) ^ 0x80808080;
        const float unit = 0.25f*__half2float(__ushort_as_half((unsigned short) d));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int ql = n == 0 ? (i == 0 ? low.x : low.y) : (i == 0 ? low.z : low.w);
            q6_k_value(ql >> (4*pair), (i == 0 ? high.x : high.y) >> (4*pair), n, a[i]);
            s[i] = (byte_above_2_23(sc, 2*n + i) - 8388736.0f)*unit;
        }
    }
};

// The weights of one warp, fetched a K_BLOCK or a K_STEP ahead. unpack() works as in struct weights.
template <ggml_type type, int RG, bool early, bool short_loop> struct lane_weights;

template <int RG, bool early, bool short_loop> struct lane_weights<GGML_TYPE_Q8_0, RG, early, short_loop> {
    using order = lane_order::q8_0;
    static constexpr int N_SCALES = 1;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = false;
    static constexpr int SMEM_BYTES = 0;
    static constexpr int STEP_BYTES = lane_order::GROUPS*order::UNIT_BYTES;

    int4 q[short_loop ? 2 : 4][RG];  // the pairs of a step, or of a block
    int scales[short_loop ? 2 : 4][RG];
    const char * px;                 // the step or the block that is fetched next

    __device__ __forceinline__ void fetch_pair(const int i) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            const char * unit = px + i/2*STEP_BYTES + r*order::UNIT_BYTES;
            q[i][r] = ldg4<early>(unit + order::values(i % 2, threadIdx.x));
            scales[i][r] = ldg<early>((const int *) (unit + order::scales(i % 2, threadIdx.x)));
        }
    }
    __device__ __forceinline__ void start(const char * x, const int row0, const int k0, const int stride_row, char *) {
        px = x + lane_order::unit_byte<order>(row0, (size_t) k0*K_BLOCK, stride_row);
#pragma unroll
        for (int i = 0; i < (short_loop ? 2 : 4); ++i) {
            fetch_pair(i);
        }
    }
    __device__ __forceinline__ void open_step(const int h, const bool is_last, const int) {
        if constexpr (short_loop) {
            px += h == 0 || !is_last ? STEP_BYTES : 0;
        } else if (h == 0) {
            px += is_last ? 0 : 2*STEP_BYTES;
        }
    }
    __device__ __forceinline__ void unpack(const int h, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][1]) {
        const int i = short_loop ? pair : 2*h + pair;
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            a[r][0] = n == 0 ? q[i][r].x : q[i][r].z;
            a[r][1] = n == 0 ? q[i][r].y : q[i][r].w;
            const half2 both = *(const half2 *) &scales[i][r];
            s[r][0] = n == 0 ? __low2float(both) : __high2float(both);
        }
        if (n == 1) {
            fetch_pair(i);
        }
    }
};

template <int RG, bool early, bool short_loop> struct lane_weights<GGML_TYPE_Q6_K, RG, early, short_loop> {
    using order = lane_order::q6_k;
    static constexpr int N_SCALES = 2;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = false;
    static constexpr int SMEM_BYTES = 0;

    q6_k_lane_part now[RG];
    q6_k_lane_part next[RG];
    const char * px;  // the block whose half is fetched next

    __device__ __forceinline__ void fetch(const int h) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            const char * unit = px + r*order::UNIT_BYTES;
            next[r].low = ldg4<early>(unit + order::low(h, threadIdx.x));
            next[r].high = ldg2<early>(unit + order::high(h, threadIdx.x));
            next[r].scales = ldg2<early>(unit + order::scales(h, threadIdx.x));
            next[r].d = ldg_half<early>(unit + order::d(threadIdx.x));
        }
    }
    __device__ __forceinline__ void start(const char * x, const int row0, const int k0, const int stride_row, char *) {
        px = x + lane_order::unit_byte<order>(row0, (size_t) k0*K_BLOCK, stride_row);
        fetch(0);
    }
    __device__ __forceinline__ void open_step(const int h, const bool is_last, const int) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            now[r] = next[r];
        }
        if (h == 1 && !is_last) {
            px += lane_order::GROUPS*order::UNIT_BYTES;
        }
        fetch(1 - h);
    }
    __device__ __forceinline__ void unpack(const int, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][2]) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            now[r].unpack(pair, n, a[r], s[r]);
        }
    }
};

} // namespace mmq_direct
