// The state of an online softmax for a warp's rows: the sums over the cells that were read so far.
#pragma once

#include "attend_fragments.cuh"

namespace qcls_attend {

// A lane's part of its warp's state: rows lane / 4 and lane / 4 + 8.
template <int D> struct state {
    float out[D / 8][4];  // of both rows, not yet divided by the sum
    float max[2];         // the maximum of the scores, as exponents with base 2
    float sum[2];         // the sum of 2^(score - max) over this lane's columns
};

// Every rounding is written out. When the compiler chose which operations to contract, it chose differently for the
// first and the second of a lane's two rows, so a token's result depended on its row.
template <int D> static __device__ __forceinline__ void scale(state<D> & s, const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            s.out[i][j] = __fmul_rn(s.out[i][j], by[j / 2]);
        }
    }
    s.sum[0] = __fmul_rn(s.sum[0], by[0]);
    s.sum[1] = __fmul_rn(s.sum[1], by[1]);
}

// The number that is subtracted from scores: the maximum, or 0 if no cell was seen yet.
static __device__ __forceinline__ float base_of(const float max) {
    return max == -INFINITY ? 0.0f : max;
}

// Turns the scores of a chunk into weights 2^(score - max). Bit i of `seen` says whether the row sees cell i.
template <int D>
static __device__ __forceinline__ void weigh(state<D> & s, float (&score)[4][4], uint32_t (&weight)[4][2],
                                             const uint32_t (&seen)[2], const int lane) {
    float max[2] = {s.max[0], s.max[1]};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (!(seen[i / 2] >> (8 * t + lane % 4 * 2 + i % 2) & 1)) {
                score[t][i] = -INFINITY;
            }
            max[i / 2] = fmaxf(max[i / 2], score[t][i]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffff, max[r], 1));
        max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffff, max[r], 2));
    }
    const float base[2] = {base_of(max[0]), base_of(max[1])};
    if (__any_sync(0xffffffff, max[0] != s.max[0] || max[1] != s.max[1])) {
        const float by[2] = {exp2f(s.max[0] - base[0]), exp2f(s.max[1] - base[1])};
        scale(s, by);
        s.max[0] = max[0];
        s.max[1] = max[1];
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float a = exp2f(score[t][2 * r] - base[r]);
            const float b = exp2f(score[t][2 * r + 1] - base[r]);
            s.sum[r] = __fadd_rn(s.sum[r], __fadd_rn(a, b));
            weight[t][r] = half_pair(a, b);
        }
    }
}

template <int D> static constexpr __host__ __device__ int slot_size() {  // for a warp, in float4
    return (D / 8 + 1) * 32;
}

template <int D> static __device__ __forceinline__ void put(float4 * slot, const state<D> & s, const int lane) {
    slot[lane] = make_float4(s.max[0], s.max[1], s.sum[0], s.sum[1]);
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
        slot[(i + 1) * 32 + lane] = make_float4(s.out[i][0], s.out[i][1], s.out[i][2], s.out[i][3]);
    }
}

// Adds the state that another warp, of this block or another one, has stored.
template <int D, typename Load>
static __device__ __forceinline__ void add(state<D> & s, const float4 * slot, const int lane, const Load & load) {
    const float4 other = load(slot + lane);
    const float max[2] = {fmaxf(s.max[0], other.x), fmaxf(s.max[1], other.y)};
    const float base[2] = {base_of(max[0]), base_of(max[1])};
    const float by[2] = {exp2f(s.max[0] - base[0]), exp2f(s.max[1] - base[1])};
    const float by_other[2] = {exp2f(other.x - base[0]), exp2f(other.y - base[1])};
    scale(s, by);
    s.max[0] = max[0];
    s.max[1] = max[1];
    s.sum[0] = __fmaf_rn(other.z, by_other[0], s.sum[0]);
    s.sum[1] = __fmaf_rn(other.w, by_other[1], s.sum[1]);
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
        const float4 part = load(slot + (i + 1) * 32 + lane);
        s.out[i][0] = __fmaf_rn(part.x, by_other[0], s.out[i][0]);
        s.out[i][1] = __fmaf_rn(part.y, by_other[0], s.out[i][1]);
        s.out[i][2] = __fmaf_rn(part.z, by_other[1], s.out[i][2]);
        s.out[i][3] = __fmaf_rn(part.w, by_other[1], s.out[i][3]);
    }
}

}  // namespace qcls_attend
