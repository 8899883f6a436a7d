// Vectors of floats for attention, products of floats and recurrent layers: AVX-512, AVX2, or plain C++ that compilers
// vectorise. The choice is made at compile time, because ggml-cpu is built for one kind of processor. Everything here is
// local to the file that includes it.
#ifndef QCLS_SIMD_H
#define QCLS_SIMD_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#define QCLS_HAS_VECTORS
// GCC's own header causes these warnings wherever it is inlined
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace {

struct fp16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;  // the upper half of a float's bits
};

#if defined(__AVX512F__)

struct vec {
    __m512 v;
};
constexpr int n_lanes = 16;
constexpr int max_rows = 4;  // rows that a kernel computes at once: with 4 vectors each they fit into the 32 registers

inline void in_register(vec & a) { asm volatile("" : "+v"(a.v)); }
inline vec all(float x) { return {_mm512_set1_ps(x)}; }
inline vec load(const float * p) { return {_mm512_loadu_ps(p)}; }
inline vec load(const fp16 * p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p))}; }
inline vec load(const bf16 * p) {
    const __m512i widened = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(widened, 16))};
}
inline void store(float * p, vec a) { _mm512_storeu_ps(p, a.v); }
inline vec add(vec a, vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline vec mul(vec a, vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline vec div(vec a, vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline vec max(vec a, vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline vec fma(vec a, vec b, vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline vec nearest(vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for a whole number n; 0 in lanes where x < least
inline vec scaled(vec a, vec n, vec x, float least) {
    const __mmask16 below = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(least), _CMP_LT_OQ);
    return {_mm512_mask_mov_ps(_mm512_scalef_ps(a.v, n.v), below, _mm512_setzero_ps())};
}
inline float max_of(vec a) { return _mm512_reduce_max_ps(a.v); }
inline float sum_of(vec a) { return _mm512_reduce_add_ps(a.v); }

// Transposes each group of four lanes: lane j of vector i becomes lane i of vector j.
inline void transpose_fours(vec (&a)[4]) {
    const __m512 low = _mm512_unpacklo_ps(a[0].v, a[1].v);
    const __m512 high = _mm512_unpackhi_ps(a[0].v, a[1].v);
    const __m512 low2 = _mm512_unpacklo_ps(a[2].v, a[3].v);
    const __m512 high2 = _mm512_unpackhi_ps(a[2].v, a[3].v);
    a[0].v = _mm512_shuffle_ps(low, low2, 0x44);
    a[1].v = _mm512_shuffle_ps(low, low2, 0xee);
    a[2].v = _mm512_shuffle_ps(high, high2, 0x44);
    a[3].v = _mm512_shuffle_ps(high, high2, 0xee);
}
// a[i]'s lane j becomes a[j]'s lane i.
inline void transpose(vec (&a)[n_lanes]) {
    for (int i = 0; i < n_lanes; i += 4) {
        transpose_fours((vec (&)[4]) a[i]);
    }
    for (int j = 0; j < 4; ++j) {  // quarters of a[j], a[4 + j], a[8 + j] and a[12 + j]
        const __m512 even = _mm512_shuffle_f32x4(a[j].v, a[4 + j].v, 0x88);
        const __m512 odd = _mm512_shuffle_f32x4(a[j].v, a[4 + j].v, 0xdd);
        const __m512 even2 = _mm512_shuffle_f32x4(a[8 + j].v, a[12 + j].v, 0x88);
        const __m512 odd2 = _mm512_shuffle_f32x4(a[8 + j].v, a[12 + j].v, 0xdd);
        a[j].v = _mm512_shuffle_f32x4(even, even2, 0x88);
        a[4 + j].v = _mm512_shuffle_f32x4(odd, odd2, 0x88);
        a[8 + j].v = _mm512_shuffle_f32x4(even, even2, 0xdd);
        a[12 + j].v = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
    }
}
// Lane i becomes the sum of a[i]'s lanes.
inline vec sums_of(const vec (&a)[n_lanes]) {
    vec fours[4];  // of a[4 i] to a[4 i + 3]: each quarter has four sums of as many lanes
    for (int i = 0; i < 4; ++i) {
        vec part[4] = {a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]};
        transpose_fours(part);
        fours[i] = add(add(part[0], part[1]), add(part[2], part[3]));
    }
    const auto halves = [](vec x, vec y) {
        return add({_mm512_shuffle_f32x4(x.v, y.v, 0x88)}, {_mm512_shuffle_f32x4(x.v, y.v, 0xdd)});
    };
    return halves(halves(fours[0], fours[1]), halves(fours[2], fours[3]));
}
// Copies lane i of each group of four lanes to all lanes of that group.
template <int i> inline vec spread(vec a) { return {_mm512_permute_ps(a.v, i * 0x55)}; }
inline void store_sum_of_fours(float * p, vec a) {
    const __m512 halves = _mm512_add_ps(a.v, _mm512_shuffle_f32x4(a.v, a.v, 0x4e));
    _mm_storeu_ps(p, _mm512_castps512_ps128(_mm512_add_ps(halves, _mm512_shuffle_f32x4(halves, halves, 0xb1))));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct vec {
    __m256 v;
};
constexpr int n_lanes = 8;
constexpr int max_rows = 2;

inline void in_register(vec & a) { asm volatile("" : "+x"(a.v)); }
inline vec all(float x) { return {_mm256_set1_ps(x)}; }
inline vec load(const float * p) { return {_mm256_loadu_ps(p)}; }
inline vec load(const fp16 * p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p))}; }
inline vec load(const bf16 * p) {
    const __m256i widened = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(widened, 16))};
}
inline void store(float * p, vec a) { _mm256_storeu_ps(p, a.v); }
inline vec add(vec a, vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline vec mul(vec a, vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline vec div(vec a, vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline vec max(vec a, vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline vec fma(vec a, vec b, vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline vec nearest(vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline vec scaled(vec a, vec n, vec x, float least) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    const __m256 below = _mm256_cmp_ps(x.v, _mm256_set1_ps(least), _CMP_LT_OQ);
    return {_mm256_andnot_ps(below, _mm256_mul_ps(a.v, power))};
}
inline float max_of(vec a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_max_ps(x, _mm_permute_ps(x, 0x4e));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_permute_ps(x, 0xb1)));
}
inline float sum_of(vec a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_add_ps(x, _mm_permute_ps(x, 0x4e));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_permute_ps(x, 0xb1)));
}

inline void transpose_fours(vec (&a)[4]) {
    const __m256 low = _mm256_unpacklo_ps(a[0].v, a[1].v);
    const __m256 high = _mm256_unpackhi_ps(a[0].v, a[1].v);
    const __m256 low2 = _mm256_unpacklo_ps(a[2].v, a[3].v);
    const __m256 high2 = _mm256_unpackhi_ps(a[2].v, a[3].v);
    a[0].v = _mm256_shuffle_ps(low, low2, 0x44);
    a[1].v = _mm256_shuffle_ps(low, low2, 0xee);
    a[2].v = _mm256_shuffle_ps(high, high2, 0x44);
    a[3].v = _mm256_shuffle_ps(high, high2, 0xee);
}
inline void transpose(vec (&a)[n_lanes]) {
    transpose_fours((vec (&)[4]) a[0]);
    transpose_fours((vec (&)[4]) a[4]);
    for (int j = 0; j < 4; ++j) {
        const __m256 low = _mm256_permute2f128_ps(a[j].v, a[4 + j].v, 0x20);
        a[4 + j].v = _mm256_permute2f128_ps(a[j].v, a[4 + j].v, 0x31);
        a[j].v = low;
    }
}
inline vec sums_of(const vec (&a)[n_lanes]) {
    vec fours[2];
    for (int i = 0; i < 2; ++i) {
        vec part[4] = {a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]};
        transpose_fours(part);
        fours[i] = add(add(part[0], part[1]), add(part[2], part[3]));
    }
    return add({_mm256_permute2f128_ps(fours[0].v, fours[1].v, 0x20)}, {_mm256_permute2f128_ps(fours[0].v, fours[1].v, 0x31)});
}
template <int i> inline vec spread(vec a) { return {_mm256_permute_ps(a.v, i * 0x55)}; }
inline void store_sum_of_fours(float * p, vec a) {
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1)));
}

#else

constexpr int n_lanes = 8;
constexpr int max_rows = 4;
struct vec {
    float v[n_lanes];
};

inline float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}
inline float as_float(fp16 x) {
    // moves exponent and fraction to their places in a float, then corrects the exponent's bias; no branch, so that
    // compilers vectorise it
    const uint32_t placed = (uint32_t) (x.bits & 0x7fff) << 13;
    const float magnitude = as_float(placed) * 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &magnitude, sizeof(bits));
    const uint32_t no_number = placed >= 31u << 23 ? 255u << 23 : 0;  // infinity or NaN
    return as_float(bits | no_number | (uint32_t) (x.bits & 0x8000) << 16);
}
inline float as_float(float x) { return x; }
template <typename F> inline vec by_lane(F && f) {
    vec r;
    for (int i = 0; i < n_lanes; ++i) {
        r.v[i] = f(i);
    }
    return r;
}
inline vec all(float x) { return by_lane([&](int) { return x; }); }
template <typename T> inline vec load(const T * p) { return by_lane([&](int i) { return as_float(p[i]); }); }
inline void store(float * p, vec a) { memcpy(p, a.v, sizeof(a.v)); }
inline vec add(vec a, vec b) { return by_lane([&](int i) { return a.v[i] + b.v[i]; }); }
inline vec mul(vec a, vec b) { return by_lane([&](int i) { return a.v[i] * b.v[i]; }); }
inline vec div(vec a, vec b) { return by_lane([&](int i) { return a.v[i] / b.v[i]; }); }
inline vec max(vec a, vec b) { return by_lane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline vec fma(vec a, vec b, vec c) {
#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
    return by_lane([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
    return add(mul(a, b), c);
#endif
}
inline vec nearest(vec a) { return by_lane([&](int i) { return __builtin_rintf(a.v[i]); }); }
inline vec scaled(vec a, vec n, vec x, float least) {
    return by_lane([&](int i) {
        const bool is_number = n.v[i] == n.v[i];
        return x.v[i] < least ? 0.0f : a.v[i] * __builtin_ldexpf(1.0f, is_number ? (int) n.v[i] : 0);
    });
}
inline float max_of(vec a) {
    float result = a.v[0];
    for (const float x : a.v) {
        result = x > result ? x : result;
    }
    return result;
}
inline float sum_of(vec a) {
    const float * v = a.v;
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
inline vec sums_of(const vec (&a)[n_lanes]) { return by_lane([&](int i) { return sum_of(a[i]); }); }
inline void transpose(vec (&a)[n_lanes]) {
    for (int i = 0; i < n_lanes; ++i) {
        for (int j = 0; j < i; ++j) {
            const float x = a[i].v[j];
            a[i].v[j] = a[j].v[i];
            a[j].v[i] = x;
        }
    }
}

#endif

// The first n lanes; memory after them is neither read nor written.
template <typename T> inline vec load_part(const T * p, int n) {
    T part[n_lanes] = {};
    memcpy(part, p, n * sizeof(T));
    return load(part);
}
inline void store_part(float * p, vec a, int n) {
    float part[n_lanes];
    store(part, a);
    memcpy(p, part, n * sizeof(float));
}

// e^x for x <= 0, to 2 units in the last place; 0 where the result would be below the least normal float.
// x = n ln 2 + r with |r| <= ln 2 / 2; the Taylor series of e^r up to r^7 / 7! has an error below 6e-9.
inline vec exp_of(vec x) {
    constexpr float least = -87.33654f;
    const vec clamped = max(all(least), x);  // NaN stays NaN
    const vec n = nearest(mul(clamped, all(0x1.715476p+0f)));
    vec r = fma(n, all(-0x1.62ep-1f), clamped);  // ln 2 is subtracted in two parts; n times the first part is exact
    r = fma(n, all(-0x1.0bfbe8p-15f), r);
    vec p = all(1.0f / 5040);
    for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
        p = fma(p, r, all(c));
    }
    return scaled(p, n, x, least);
}

// x / (1 + e^-x)
inline vec silu_of(vec x) {
    const vec zero = all(0);
    const vec opposite = mul(x, all(-1));
    const vec part = exp_of(mul(max(opposite, x), all(-1)));  // e^-|x|, which cannot overflow
    return div(fma(mul(max(zero, opposite), all(-1)), part, max(zero, x)), add(all(1), part));
}

}  // namespace

#endif
