// Unpacks the words of a quantised block to int8 fragments and float scales.
#pragma once

#include "mmq_device.cuh"

namespace mmq_direct {

// The float 2^23 + byte i of v.
static __device__ __forceinline__ float byte_above_2_23(const int v, const int i) {
    return __int_as_float(__byte_perm(v, 0x4B000000, 0x7440 + i));
}
// Byte i of v, times unit.
static __device__ __forceinline__ float scaled_byte(const int v, const int i, const float unit) {
    return fmaf(byte_above_2_23(v, i), unit, -8388608.0f*unit);
}

// The head of a Q4_K block: d and dmin, then 12 bytes with the 6-bit scales and minimums for 8 times 32 values.
constexpr int Q4_K_HEAD_BYTES = 16;

// The four scales of half h of a block, a byte each.
static __device__ __forceinline__ int q4_k_scales(const int4 & head, const int h) {
    return h == 0 ? head.y & 0x3F3F3F3F : (head.w & 0x0F0F0F0F) | ((head.y >> 2) & 0x30303030);
}

// The 32 values number n (0 or 1) of a pair, and their scale, which is number 2*pair + n of the half. In unsigned
// bytes, high nibbles stay where they are: 16 times the value fits into a byte, and the scale is divided by 16.
template <bool is_unsigned>
static __device__ __forceinline__ void q4_k_values(const int2 words, const int scales, const float d, const int pair, const int n,
        int (&a)[2], float & scale) {
    float unit = d;
    if (is_unsigned && n == 1) {
        a[0] = words.x & 0xF0F0F0F0;
        a[1] = words.y & 0xF0F0F0F0;
        unit = 0.0625f*d;
    } else {
        a[0] = (words.x >> (4*n)) & 0x0F0F0F0F;
        a[1] = (words.y >> (4*n)) & 0x0F0F0F0F;
    }
    scale = scaled_byte(scales, 2*pair + n, unit);
}

// The minimums, negative, of the 32 values number 4*h + first (0 or 2) and of the next 32.
static __device__ __forceinline__ half2 q4_k_minimums(const int4 & head, const int h, const int first) {
    const int mins = h == 0 ? head.z & 0x3F3F3F3F : ((head.w >> 4) & 0x0F0F0F0F) | ((head.z >> 2) & 0x30303030);
    const int above_1024 = __byte_perm(mins >> (8*first), 0x64646464, 0x4140);
    const half2 m = __hsub2(*(const half2 *) &above_1024, __float2half2_rn(1024.0f));
    return __hmul2(m, __half2half2(__hneg(__high2half(*(const half2 *) &head.x))));
}

// A fragment with the minimums for K_STEP values: rows by 4 sub-blocks. The other 4 of the instruction's 8 are zero.
static __device__ __forceinline__ int q4_k_min_fragment(const int4 & head, const int h) {
    const half2 v = q4_k_minimums(head, h, threadIdx.x % 2 * 2);
    return threadIdx.x % 4 < 2 ? *(const int *) &v : 0;
}

// Q6_K: 4 values from the low nibbles of ql and, chosen by n, two bits of each byte of qh. 4*(q - 32) fits into an
// int8, so the 6 bits go to the top of the byte and the scale is divided by 4.
static __device__ __forceinline__ void q6_k_value(const int ql, const int qh, const int n, int & a) {
    a = (((ql << 2) & 0x3C3C3C3C) | ((n == 0 ? qh << 6 : qh << 4) & 0xC0C0C0C0)) ^ 0x80808080;
}

} // namespace mmq_direct
