// What becomes of a warp's rows: floats, or activations as the direct matrix kernels want them.
#pragma once

#include "attend.h"
#include "attend_state.cuh"

#include <cuda_fp16.h>

namespace qcls_attend {

// A lane's part of row r, which is a head of a token. share: 1 by the sum of the row's weights.
template <int D>
static __device__ __forceinline__ void store_floats(float * head, const state<D> & s, const int r, const float share) {
    float * const to = head + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
        *(float2 *) (to + 8 * i) = make_float2(s.out[i][2 * r] * share, s.out[i][2 * r + 1] * share);
    }
}

// The same row quantised, with the bits that mmq_direct::quantize_values makes of the floats: sums are added in its order.
// k: the row's first in the token's values. All lanes of a warp call it; those without a row store nothing.
template <int D>
static __device__ __forceinline__ void store_quantized(const mmq_direct::activations & to, const state<D> & s, const int r,
                                                       const float share, const int token, const int k, const bool is_row) {
    using namespace mmq_direct;
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int block = 0; block < D / 32; ++block) {
        float2 v[4];
        float sum_of_4[4];  // of 8 values each, the first four in lanes 0 and 1, the others in 2 and 3; right in lanes 1 and 3
        float largest = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&out)[4] = s.out[4 * block + i];
            // rounded as what is stored is: not to become one operation with the sum that follows
            v[i] = make_float2(__fmul_rn(out[2 * r], share), __fmul_rn(out[2 * r + 1], share));
            const float larger = fmaxf(fabsf(v[i].x), fabsf(v[i].y));
            largest = i == 0 ? larger : fmaxf(largest, larger);
            sum_of_4[i] = __shfl_xor_sync(0xffffffff, v[i].x + v[i].y, 1) + v[i].x + v[i].y;
        }
        float sum = (sum_of_4[0] + sum_of_4[2]) + (sum_of_4[1] + sum_of_4[3]);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
        if (!is_row) {
            continue;
        }
        const bool is_zero = largest == 0.0f;
        const float inverse = is_zero ? 0.0f : 127.0f / largest;
        const int k_block = k + 32 * block;
        const int column = token % 8;
        char * const group = to.y + ((size_t) (k_block / K_STEP) * to.n_groups + token / 8) * GROUP_BYTES;
        char * const bytes = group + k_block / 32 % 4 * 256 + column * 32;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = to.split_order ? (2 * i + lane / 2) % 4 * 8 + i / 2 * 4 + lane % 2 * 2 : i * 8 + lane * 2;
            *(char2 *) (bytes + at) = make_char2(roundf(v[i].x * inverse), roundf(v[i].y * inverse));
        }
        if (lane == 0) {
            *(float *) (group + GROUP_SCALES + k_block / 32 % 4 * 32 + column * 4) = is_zero ? 0.0f : 1.0f / inverse;
        }
        if (lane == 1) {
            *(half *) (group + GROUP_SUMS + column * 8 + k_block / 32 % 4 * 2) = __float2half(sum);
        }
    }
}

// The part of the whole grid's work that no row does: columns past the tokens, and what the product behind wants zeroed.
static __device__ __forceinline__ void clear_rest(const ggml_cuda_attend_quantized & to, const int n_k, const int n_tokens) {
    using namespace mmq_direct;
    const int thread = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    const int n_threads = gridDim.x * gridDim.y * blockDim.x;
    for (int i = thread; i < to.n_zeroed; i += n_threads) {
        to.zeroed[i] = 0;
    }
    const int n_steps = n_k / K_STEP;
    for (int i = thread; i < n_steps * (8 * to.to.n_groups - n_tokens); i += n_threads) {
        const int token = n_tokens + i / n_steps;
        char * const group = to.to.y + ((size_t) (i % n_steps) * to.to.n_groups + token / 8) * GROUP_BYTES;
        const int column = token % 8;
#pragma unroll
        for (int block = 0; block < K_STEP / 32; ++block) {
            *(int4 *) (group + block * 256 + column * 32) = make_int4(0, 0, 0, 0);
            *(int4 *) (group + block * 256 + column * 32 + 16) = make_int4(0, 0, 0, 0);
            *(float *) (group + GROUP_SCALES + block * 32 + column * 4) = 0.0f;
        }
        *(int2 *) (group + GROUP_SUMS + column * 8) = make_int2(0, 0);
    }
}

}  // namespace qcls_attend
