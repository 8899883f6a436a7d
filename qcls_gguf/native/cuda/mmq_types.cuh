// What a type of weights is to the kernels: where the bytes of a row lie in shared memory, and how they become int8
// fragments and scales. mmq_slices.cuh brings them there.
#pragma once

#include "mmq_unpack.cuh"

namespace mmq_direct {

// What a type is by default. BYTES: of a slice of a row, which is K_BLOCK values, or half of them. ALIGNMENT: what every
// slice begins at a multiple of: 16, 8 or 2. N_SCALES: for 32 values, 1 or 2. prepare() fills tables in shared memory,
// which are read after the block's next barrier.
template <int bytes, int alignment> struct plain_type {
    static constexpr int BYTES = bytes;
    static constexpr int ALIGNMENT = alignment;
    static constexpr int SLICES_OF_BLOCK = 1;
    static constexpr int N_SCALES = 1;
    static constexpr bool HAS_MIN = false;

    static __device__ __forceinline__ void prepare() {}
};

// values(): the 32 values number n (0 or 1) of a pair of half h, of which a lane has 4 of the first 16 and 4 of the last
// 16 (split order), and their scales. With HAS_MIN, minimums() gives what is added for the 32 values number 4*h + first
// and the next 32.
template <ggml_type type> struct weight_type;

static __device__ __forceinline__ int quarter() {
    return threadIdx.x % 4;
}

// A word of a row. The compiler knows `byte` modulo 4.
template <int alignment> static __device__ __forceinline__ int word_at(const char * row, const int byte) {
    if constexpr (alignment == 2) {
        const auto * halves = (const unsigned short *) (row + byte);
        return halves[0] | halves[1] << 16;
    }
    const int * words = (const int *) (row + byte - byte % 4);
    return byte % 4 == 0 ? words[0] : __funnelshift_r(words[0], words[1], 8*(byte % 4));
}
// A constant that stays in a register. ptxas would load it again for each use.
static __device__ __forceinline__ int kept(const int constant) {
    return constant + (int) threadIdx.z;  // which is 0
}
static __device__ __forceinline__ float half_at(const char * row, const int byte) {
    return __half2float(*(const half *) (row + byte));
}
static __device__ __forceinline__ half2 halves_at(const char * row, const int first, const int second) {
    return make_half2(*(const half *) (row + first), *(const half *) (row + second));
}

// Nibbles at the top of their bytes, less 8: 16 times the value, so a scale is divided by 16. Other codes of few bits
// are treated the same way.
static __device__ __forceinline__ void top_nibbles(const int word, int (&a)[2]) {
    a[0] = ((word << 4) & 0xF0F0F0F0) ^ 0x80808080;
    a[1] = (word & 0xF0F0F0F0) ^ 0x80808080;
}
static __device__ __forceinline__ void low_nibbles(const int word, int (&a)[2]) {
    a[0] = word & 0x0F0F0F0F;
    a[1] = (word >> 4) & 0x0F0F0F0F;
}
// Bit i of the lowest four as bit `place` of byte i.
template <int place> static __device__ __forceinline__ int spread_bits(const int bits) {
    return ((bits & 15)*(0x00204081u << place)) & (0x01010101u << place);
}
// Each nibble's entry in a table of 16 bytes: those of low and of high nibbles.
static __device__ __forceinline__ void look_up(const int nibbles, const int4 table, int (&a)[2]) {
    const int index = nibbles & 0x77777777;
    const int is_upper = 0x32103210 | ((nibbles & 0x88888888) >> 1);
    int found[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int low = __byte_perm(kept(table.x), table.y, index >> 16*i);
        const int high = __byte_perm(kept(table.z), table.w, index >> 16*i);
        found[i] = __byte_perm(low, high, is_upper >> 16*i);
    }
    a[0] = __byte_perm(found[0], found[1], 0x6420);
    a[1] = __byte_perm(found[0], found[1], 0x7531);
}
static __device__ __forceinline__ int4 iq4_table() {
    return make_int4(0xBFAD9881, 0xF6EADDCF, 0x26190D01, 0x71594535);
}

} // namespace mmq_direct
