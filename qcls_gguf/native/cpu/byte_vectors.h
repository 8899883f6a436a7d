// Vectors of bytes and floats for products: AVX-512 with VNNI, AVX2 with and without VNNI, NEON with dotprod. The
// choice is made at compile time, because ggml-cpu is built for one kind of processor. Only products.cpp includes this
// file.
#ifndef QCLS_BYTE_VECTORS_H
#define QCLS_BYTE_VECTORS_H

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define QCLS_HAS_PRODUCTS 512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define QCLS_HAS_PRODUCTS 256
#elif defined(__ARM_NEON) && defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define QCLS_HAS_PRODUCTS 128
#endif

#ifdef QCLS_HAS_PRODUCTS
// GCC's own header causes these warnings wherever it is inlined
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if QCLS_HAS_PRODUCTS == 128
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#define QCLS_INLINE inline __attribute__((always_inline))

namespace {

#if QCLS_HAS_PRODUCTS == 512

constexpr int n_lanes = 16;       // lanes of 32 bits: a vector holds the products of so many rows
constexpr int groups_at_once = 2;  // groups of n_lanes rows; their weights for 32 values take 16 of 32 registers

using bytes = __m512i;
using floats = __m512;

QCLS_INLINE void in_register(bytes & a) { asm volatile("" : "+v"(a)); }
QCLS_INLINE bytes load_bytes(const uint8_t * p) { return _mm512_loadu_si512(p); }
QCLS_INLINE bytes all_bytes(uint8_t x) { return _mm512_set1_epi8((char) x); }
QCLS_INLINE bytes all_words(int32_t x) { return _mm512_set1_epi32(x); }
QCLS_INLINE bytes table_of(const uint8_t * p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) p)); }
QCLS_INLINE bytes looked_up(bytes table, bytes index) { return _mm512_shuffle_epi8(table, index); }
QCLS_INLINE bytes masked(bytes a, bytes mask) { return _mm512_and_si512(a, mask); }
QCLS_INLINE bytes merged(bytes a, bytes b, bytes mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xf8); }
QCLS_INLINE bytes sum(bytes a, bytes b) { return _mm512_add_epi8(a, b); }
QCLS_INLINE bytes sum_of_words(bytes a, bytes b) { return _mm512_add_epi32(a, b); }
template <int n> QCLS_INLINE bytes shifted_right(bytes a) { return _mm512_srli_epi16(a, n); }
template <int n> QCLS_INLINE bytes shifted_left(bytes a) { return _mm512_slli_epi16(a, n); }
// Adds to each lane the products of its 4 bytes. Weights are unsigned, activations signed.
QCLS_INLINE bytes add_products(bytes to, bytes weights, bytes x) { return _mm512_dpbusd_epi32(to, weights, x); }

QCLS_INLINE floats all_floats(float x) { return _mm512_set1_ps(x); }
QCLS_INLINE floats load_floats(const float * p) { return _mm512_loadu_ps(p); }
QCLS_INLINE void store_floats(float * p, floats a) { _mm512_storeu_ps(p, a); }
QCLS_INLINE void store_bytes(uint8_t * p, bytes a) { _mm512_storeu_si512(p, a); }
QCLS_INLINE floats converted(bytes words) { return _mm512_cvtepi32_ps(words); }
QCLS_INLINE floats same_bits(bytes words) { return _mm512_castsi512_ps(words); }
template <int n> QCLS_INLINE bytes words_shifted_left(bytes a) { return _mm512_slli_epi32(a, n); }
template <int n> QCLS_INLINE bytes words_shifted_right(bytes a) { return _mm512_srli_epi32(a, n); }
QCLS_INLINE floats halves_at(const uint8_t * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
QCLS_INLINE bytes widened(const uint8_t * p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p)); }
QCLS_INLINE bytes widened(const int8_t * p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p)); }
QCLS_INLINE floats product(floats a, floats b) { return _mm512_mul_ps(a, b); }
QCLS_INLINE floats product_plus(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
QCLS_INLINE floats minus_product(floats a, floats b, floats c) { return _mm512_fnmadd_ps(a, b, c); }

#elif QCLS_HAS_PRODUCTS == 256

constexpr int n_lanes = 8;
constexpr int groups_at_once = 1;

using bytes = __m256i;
using floats = __m256;

QCLS_INLINE void in_register(bytes & a) { asm volatile("" : "+x"(a)); }
QCLS_INLINE bytes load_bytes(const uint8_t * p) { return _mm256_loadu_si256((const __m256i *) p); }
QCLS_INLINE bytes all_bytes(uint8_t x) { return _mm256_set1_epi8((char) x); }
QCLS_INLINE bytes all_words(int32_t x) { return _mm256_set1_epi32(x); }
QCLS_INLINE bytes table_of(const uint8_t * p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) p)); }
QCLS_INLINE bytes looked_up(bytes table, bytes index) { return _mm256_shuffle_epi8(table, index); }
QCLS_INLINE bytes masked(bytes a, bytes mask) { return _mm256_and_si256(a, mask); }
QCLS_INLINE bytes merged(bytes a, bytes b, bytes mask) { return _mm256_or_si256(a, _mm256_and_si256(b, mask)); }
QCLS_INLINE bytes sum(bytes a, bytes b) { return _mm256_add_epi8(a, b); }
QCLS_INLINE bytes sum_of_words(bytes a, bytes b) { return _mm256_add_epi32(a, b); }
template <int n> QCLS_INLINE bytes shifted_right(bytes a) { return _mm256_srli_epi16(a, n); }
template <int n> QCLS_INLINE bytes shifted_left(bytes a) { return _mm256_slli_epi16(a, n); }
#if defined(__AVXVNNI__)
QCLS_INLINE bytes add_products(bytes to, bytes weights, bytes x) { return _mm256_dpbusd_avx_epi32(to, weights, x); }
#else
// Weights must be at most 128, so that 16 bits hold the sum of two products.
QCLS_INLINE bytes add_products(bytes to, bytes weights, bytes x) {
    const bytes pairs = _mm256_maddubs_epi16(weights, x);
    return _mm256_add_epi32(to, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif

QCLS_INLINE floats all_floats(float x) { return _mm256_set1_ps(x); }
QCLS_INLINE floats load_floats(const float * p) { return _mm256_loadu_ps(p); }
QCLS_INLINE void store_floats(float * p, floats a) { _mm256_storeu_ps(p, a); }
QCLS_INLINE floats converted(bytes words) { return _mm256_cvtepi32_ps(words); }
QCLS_INLINE floats same_bits(bytes words) { return _mm256_castsi256_ps(words); }
template <int n> QCLS_INLINE bytes words_shifted_left(bytes a) { return _mm256_slli_epi32(a, n); }
QCLS_INLINE floats halves_at(const uint8_t * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
QCLS_INLINE bytes widened(const uint8_t * p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p)); }
QCLS_INLINE bytes widened(const int8_t * p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) p)); }
QCLS_INLINE floats product(floats a, floats b) { return _mm256_mul_ps(a, b); }
QCLS_INLINE floats product_plus(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
QCLS_INLINE floats minus_product(floats a, floats b, floats c) { return _mm256_fnmadd_ps(a, b, c); }

#else

constexpr int n_lanes = 4;
constexpr int groups_at_once = 2;

using bytes = uint8x16_t;
using floats = float32x4_t;

QCLS_INLINE bytes of_words(int32x4_t a) { return vreinterpretq_u8_s32(a); }
QCLS_INLINE int32x4_t words_of(bytes a) { return vreinterpretq_s32_u8(a); }
QCLS_INLINE void in_register(bytes & a) { asm volatile("" : "+w"(a)); }
QCLS_INLINE bytes load_bytes(const uint8_t * p) { return vld1q_u8(p); }
QCLS_INLINE bytes all_bytes(uint8_t x) { return vdupq_n_u8(x); }
QCLS_INLINE bytes all_words(int32_t x) { return of_words(vdupq_n_s32(x)); }
QCLS_INLINE bytes table_of(const uint8_t * p) { return vld1q_u8(p); }
QCLS_INLINE bytes looked_up(bytes table, bytes index) { return vqtbl1q_u8(table, index); }
QCLS_INLINE bytes masked(bytes a, bytes mask) { return vandq_u8(a, mask); }
QCLS_INLINE bytes merged(bytes a, bytes b, bytes mask) { return vorrq_u8(a, vandq_u8(b, mask)); }
QCLS_INLINE bytes sum(bytes a, bytes b) { return vaddq_u8(a, b); }
QCLS_INLINE bytes sum_of_words(bytes a, bytes b) { return of_words(vaddq_s32(words_of(a), words_of(b))); }
template <int n> QCLS_INLINE bytes shifted_right(bytes a) { return vshrq_n_u8(a, n); }
template <int n> QCLS_INLINE bytes shifted_left(bytes a) { return vshlq_n_u8(a, n); }
// Weights are read as signed bytes: unsigned ones must be at most 127.
QCLS_INLINE bytes add_products(bytes to, bytes weights, bytes x) {
    return of_words(vdotq_s32(words_of(to), vreinterpretq_s8_u8(weights), vreinterpretq_s8_u8(x)));
}

QCLS_INLINE floats all_floats(float x) { return vdupq_n_f32(x); }
QCLS_INLINE floats load_floats(const float * p) { return vld1q_f32(p); }
QCLS_INLINE void store_floats(float * p, floats a) { vst1q_f32(p, a); }
QCLS_INLINE floats converted(bytes words) { return vcvtq_f32_s32(words_of(words)); }
QCLS_INLINE floats same_bits(bytes words) { return vreinterpretq_f32_u8(words); }
template <int n> QCLS_INLINE bytes words_shifted_left(bytes a) { return of_words(vshlq_n_s32(words_of(a), n)); }
QCLS_INLINE floats halves_at(const uint8_t * p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
QCLS_INLINE bytes widened(const uint8_t * p) {
    return of_words((int32x4_t) {p[0], p[1], p[2], p[3]});
}
QCLS_INLINE bytes widened(const int8_t * p) {
    return of_words((int32x4_t) {p[0], p[1], p[2], p[3]});
}
QCLS_INLINE floats product(floats a, floats b) { return vmulq_f32(a, b); }
QCLS_INLINE floats product_plus(floats a, floats b, floats c) { return vfmaq_f32(c, a, b); }
QCLS_INLINE floats minus_product(floats a, floats b, floats c) { return vfmsq_f32(c, a, b); }

#endif

// Quantises 32 floats: q[i] is the nearest whole number to values[i] * 127 / largest; sums[0] and sums[1] are the sums
// of q's halves. Returns `largest`, the largest magnitude among the values. NaN counts as larger than every number, so
// `largest` is then NaN.
QCLS_INLINE float quantise_32(const float * values, int8_t * q, int32_t * sums) {
#if QCLS_HAS_PRODUCTS == 128
    uint32x4_t magnitudes = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4) {
        // compared as integers, magnitudes have the order of the floats, with NaN above them all
        const uint32x4_t magnitude = vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(values + i)));
        magnitudes = vmaxq_u32(magnitudes, magnitude);
    }
    const uint32_t most = vmaxvq_u32(magnitudes);
    float largest;
    memcpy(&largest, &most, sizeof(largest));
    const float inverse = largest > 0 ? 127 / largest : 0;
    for (int half = 0; half < 2; ++half) {
        int16x8_t eights[2];
        for (int i = 0; i < 2; ++i) {
            const float * eight = values + 16 * half + 8 * i;
            const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(eight), inverse));
            const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(eight + 4), inverse));
            eights[i] = vcombine_s16(vqmovn_s32(low), vqmovn_s32(high));
        }
        const int8x16_t sixteen = vcombine_s8(vqmovn_s16(eights[0]), vqmovn_s16(eights[1]));
        vst1q_s8(q + 16 * half, sixteen);
        sums[half] = vaddlvq_s8(sixteen);
    }
    return largest;
#else
    __m256 v[4];
    __m256i magnitudes = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(values + 8 * i);
        // compared as integers, magnitudes have the order of the floats, with NaN above them all
        const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff));
        magnitudes = _mm256_max_epi32(magnitudes, magnitude);
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256(magnitudes, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(m));
    const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127 / largest : 0);
    __m256i w[4];
    for (int i = 0; i < 4; ++i) {
        w[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    }
    // packing works on each half of a register separately: groups of 4 bytes are now in the order 0 2 4 6 1 3 5 7
    const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *) q, bytes);
    const __m256i positive = _mm256_xor_si256(bytes, _mm256_set1_epi8((char) 128));
    const __m256i eights = _mm256_sad_epu8(positive, _mm256_setzero_si256());
    const __m256i halves = _mm256_add_epi64(eights, _mm256_shuffle_epi32(eights, 0x4e));
    sums[0] = _mm256_extract_epi32(halves, 0) - 16 * 128;
    sums[1] = _mm256_extract_epi32(halves, 4) - 16 * 128;
    return largest;
#endif
}

// Signed weights are stored with `zero` added, and sums start at a value that takes the effect of `zero` back. Without
// VNNI, weights with 128 added would be too large for add_products(); there the weight's sign is moved to the
// activation.
#if QCLS_HAS_PRODUCTS == 128
constexpr uint8_t zero = 0;
QCLS_INLINE bytes add_signed_products(bytes to, bytes weights, bytes x) { return add_products(to, weights, x); }
#else
constexpr uint8_t zero = 128;
#if QCLS_HAS_PRODUCTS == 512 || defined(__AVXVNNI__)
#define QCLS_HAS_VNNI
QCLS_INLINE bytes add_signed_products(bytes to, bytes weights, bytes x) { return add_products(to, weights, x); }
#else
QCLS_INLINE bytes add_signed_products(bytes to, bytes weights, bytes x) {
    const bytes with_sign = _mm256_xor_si256(weights, all_bytes(zero));
    return add_products(to, _mm256_abs_epi8(with_sign), _mm256_sign_epi8(x, with_sign));
}
#endif
#endif

// A step's sums start at origin_bits. With VNNI these are the bits of the float `origin`: a whole number n below 2^22
// added to them gives the bits of origin + n, so that n need not be converted. The offset, -origin * scale, is exact
// (scales have 20 bits at most), so product_plus() rounds as the product of the converted n does.
constexpr float origin = 3 << 22;
#ifdef QCLS_HAS_VNNI
constexpr int32_t origin_bits = 0x4b400000;
QCLS_INLINE bytes start_of_signed(int32_t start) { return all_words(start); }
QCLS_INLINE floats scaled(bytes words, floats scale, floats offset) {
    return product_plus(same_bits(words), scale, offset);
}
#else
constexpr int32_t origin_bits = 0;
QCLS_INLINE bytes start_of_signed(int32_t) { return all_words(0); }
QCLS_INLINE floats scaled(bytes words, floats scale, floats) { return product(converted(words), scale); }
#endif

}  // namespace

#endif
#endif
