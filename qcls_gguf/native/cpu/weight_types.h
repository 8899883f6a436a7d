// Each type of weights: how a block of the file is read, how it is laid out, and how 32 values of n_lanes rows are
// unpacked in registers. Only products.cpp includes this file.
//
// A matrix is laid out in groups of n_lanes rows: first the values of all groups, then their scales.
// - Values are stored in steps of 32, and a step in 8 quads of 4 values. Value 4 * j + i of row r is byte 4 * r + i of
//   the vector of quad j, so that one vector of weights is multiplied with the same 4 activations of a column in every
//   lane. Codes of 8 bits take a vector for each quad. For smaller codes, the low 4 bits of quads j and j + 4 share the
//   bytes of a vector. After these come the upper bits: a vector for quads 0, 2, 4, 6 and one for 1, 3, 5, 7 if they
//   are 2 bits, one vector for all quads if it is 1 bit. Codes of 3 bits have 2 bits first, then 1, in the same way.
// - The scales of a block of the file are halves, one for each row. Some types also have small scales, one byte for
//   each row and each part of 32 (or 16) values. Q4_K and Q5_K store these in 6 bits; as bytes they take 3 and 2 % more
//   memory, those of Q3_K 4 %.
#ifndef QCLS_WEIGHT_TYPES_H
#define QCLS_WEIGHT_TYPES_H

#include "byte_vectors.h"

#ifdef QCLS_HAS_PRODUCTS
#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"  // iq3s_grid

namespace {

constexpr int step_values = 32;
constexpr int n_quads = 8;

// 32 values of n_lanes rows. A value is scale * (code - zero) or, in a type with minima, scale * code - minimum.
struct step {
    bytes quads[n_quads];
    floats scale[2];  // for the first and the second 16 values, or one for all 32
    floats minimum;
    floats offset;  // -origin * scale[0]
};

QCLS_INLINE void unpack_nibbles(const uint8_t * values, bytes (&quads)[n_quads]) {
    const bytes nibble = all_bytes(15);
    for (int j = 0; j < n_quads / 2; ++j) {
        const bytes two = load_bytes(values + j * 4 * n_lanes);
        quads[j] = masked(two, nibble);
        quads[j + 4] = masked(shifted_right<4>(two), nibble);
    }
}
template <int n> QCLS_INLINE bytes shifted(bytes a) {
    if constexpr (n > 0) {
        return shifted_left<n>(a);
    } else if constexpr (n < 0) {
        return shifted_right<-n>(a);
    } else {
        return a;  // NEON has no shift by 0
    }
}
// Adds to each code, as its bit number `to`, the bit that the layout has in one vector for all quads.
template <int to> QCLS_INLINE void add_bit(const uint8_t * values, bytes (&quads)[n_quads]) {
    const bytes all = load_bytes(values);
    const bytes bit = all_bytes(1 << to);
    quads[0] = merged(quads[0], shifted<to>(all), bit);
    quads[1] = merged(quads[1], shifted<to - 1>(all), bit);
    quads[2] = merged(quads[2], shifted<to - 2>(all), bit);
    quads[3] = merged(quads[3], shifted<to - 3>(all), bit);
    quads[4] = merged(quads[4], shifted<to - 4>(all), bit);
    quads[5] = merged(quads[5], shifted<to - 5>(all), bit);
    quads[6] = merged(quads[6], shifted<to - 6>(all), bit);
    quads[7] = merged(quads[7], shifted<to - 7>(all), bit);
}
// The same for two bits, which are in two vectors.
template <int to> QCLS_INLINE void add_two_bits(const uint8_t * values, bytes (&quads)[n_quads]) {
    const bytes bits = all_bytes(3 << to);
    for (int j = 0; j < 2; ++j) {
        const bytes all = load_bytes(values + 4 * j * n_lanes);
        quads[j] = merged(quads[j], shifted<to>(all), bits);
        quads[j + 2] = merged(quads[j + 2], shifted<to - 2>(all), bits);
        quads[j + 4] = merged(quads[j + 4], shifted<to - 4>(all), bits);
        quads[j + 6] = merged(quads[j + 6], shifted<to - 6>(all), bits);
    }
}
struct sixteen {
    uint8_t values[16];
};
constexpr sixteen with_zero(const int (&values)[16]) {
    sixteen table = {};
    for (int i = 0; i < 16; ++i) {
        table.values[i] = (uint8_t) (zero + values[i]);
    }
    return table;
}
QCLS_INLINE void look_up(const sixteen & table, bytes (&quads)[n_quads]) {
    const bytes of = table_of(table.values);
    for (bytes & quad : quads) {
        quad = looked_up(of, quad);
    }
}
QCLS_INLINE void add_to_all(uint8_t offset, bytes (&quads)[n_quads]) {
    for (bytes & quad : quads) {
        quad = sum(quad, all_bytes(offset));
    }
}

// --- the types -------------------------------------------------------------------------------------------------------
// block_values, block_bytes: the values and the bytes of a block of the file. n_bits: the bits of a code. n_halves,
// n_small: how many scales of each kind a block has. codes() gives the 32 codes of a part of a block, halves() the
// address of its halves, small_scales() n_small bytes. unpack() makes a step from its values and its block's scales;
// `part` is the step's number in the block.

template <int bits, bool minima> struct simple_type {
    static constexpr int block_values = 32;
    static constexpr int n_bits = bits;
    static constexpr bool has_minima = minima;
    static constexpr int n_scales = 1;
    static constexpr int n_halves = minima ? 2 : 1;
    static constexpr int n_small = 0;
    static constexpr int block_bytes = 2 * n_halves + 4 * bits;
    static const uint8_t * halves(const uint8_t * block) { return block; }
    static void small_scales(const uint8_t *, uint8_t *) {}
    static void codes(const uint8_t * block, int, uint8_t * out) {
        const uint8_t * low = block + 2 * n_halves + (bits == 5 ? 4 : 0);
        uint32_t high = 0;
        memcpy(&high, block + 2 * n_halves, sizeof(high));
        for (int i = 0; i < 16; ++i) {
            out[i] = low[i] & 15;
            out[i + 16] = low[i] >> 4;
        }
        for (int i = 0; bits == 5 && i < 32; ++i) {
            out[i] |= (high >> i & 1) << 4;
        }
    }
    static QCLS_INLINE void unpack_scales(const uint8_t * scales, step & to) {
        to.scale[0] = halves_at(scales);
        if constexpr (minima) {
            // the file's minimum is to be added, a step's to be subtracted
            to.minimum = product(halves_at(scales + 2 * n_lanes), all_floats(-1));
        }
    }
};

struct q8_0 : simple_type<8, false> {
    static constexpr const char * name = "q8_0";
    static void codes(const uint8_t * block, int, uint8_t * out) {
        for (int i = 0; i < 32; ++i) {
            out[i] = block[2 + i] ^ zero;
        }
    }
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int, step & to) {
        for (int j = 0; j < n_quads; ++j) {
            to.quads[j] = load_bytes(values + j * 4 * n_lanes);
        }
        unpack_scales(scales, to);
    }
};

struct q4_0 : simple_type<4, false> {
    static constexpr const char * name = "q4_0";
    static constexpr sixteen table = with_zero({-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7});
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int, step & to) {
        unpack_nibbles(values, to.quads);
        look_up(table, to.quads);
        unpack_scales(scales, to);
    }
};

struct iq4_nl : simple_type<4, false> {
    static constexpr const char * name = "iq4_nl";
    static constexpr sixteen table =
        with_zero({-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113});
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int, step & to) {
        unpack_nibbles(values, to.quads);
        look_up(table, to.quads);
        unpack_scales(scales, to);
    }
};

struct q4_1 : simple_type<4, true> {
    static constexpr const char * name = "q4_1";
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int, step & to) {
        unpack_nibbles(values, to.quads);
        unpack_scales(scales, to);
    }
};

struct q5_0 : simple_type<5, false> {
    static constexpr const char * name = "q5_0";
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int, step & to) {
        unpack_nibbles(values, to.quads);
        add_bit<4>(values + 16 * n_lanes, to.quads);
        add_to_all((uint8_t) (zero - 16), to.quads);
        unpack_scales(scales, to);
    }
};

struct q5_1 : simple_type<5, true> {
    static constexpr const char * name = "q5_1";
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int, step & to) {
        unpack_nibbles(values, to.quads);
        add_bit<4>(values + 16 * n_lanes, to.quads);
        unpack_scales(scales, to);
    }
};

// A block of 256 has d, the scale of the small scales; dmin, the scale of the small minima; 8 small scales and 8 small
// minima of 6 bits; then the codes.
template <int bits> struct k_type {
    static constexpr int block_values = 256;
    static constexpr int n_bits = bits;
    static constexpr bool has_minima = true;
    static constexpr int n_scales = 1;
    static constexpr int n_halves = 2;
    static constexpr int n_small = 16;
    static constexpr int block_bytes = 4 + 12 + 32 * bits;
    static const uint8_t * halves(const uint8_t * block) { return block; }
    static void small_scales(const uint8_t * block, uint8_t * out) {
        const uint8_t * packed = block + 4;
        for (int i = 0; i < 4; ++i) {
            out[i] = packed[i] & 63;
            out[8 + i] = packed[4 + i] & 63;
            out[4 + i] = (packed[8 + i] & 15) | (packed[i] >> 6) << 4;
            out[12 + i] = packed[8 + i] >> 4 | (packed[4 + i] >> 6) << 4;
        }
    }
    static void codes(const uint8_t * block, int part, uint8_t * out) {
        const uint8_t * low = block + 16 + (bits == 5 ? 32 : 0) + part / 2 * 32;
        for (int i = 0; i < 32; ++i) {
            out[i] = low[i] >> part % 2 * 4 & 15;
            if constexpr (bits == 5) {
                out[i] |= (block[16 + i] >> part & 1) << 4;
            }
        }
    }
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int part, step & to) {
        unpack_nibbles(values, to.quads);
        if constexpr (bits == 5) {
            add_bit<4>(values + 16 * n_lanes, to.quads);
        }
        const uint8_t * small = scales + 4 * n_lanes + part * n_lanes;
        to.scale[0] = product(halves_at(scales), converted(widened(small)));
        to.minimum = product(halves_at(scales + 2 * n_lanes), converted(widened(small + 8 * n_lanes)));
    }
};
struct q4_k : k_type<4> {
    static constexpr const char * name = "q4_K";
};
struct q5_k : k_type<5> {
    static constexpr const char * name = "q5_K";
};

// Blocks of 256 values have a half, at byte place_of_half, and n_small small scales; no minima.
template <int bits, int small, int bytes_of_block, int place_of_half> struct block_of_256 {
    static constexpr int block_values = 256;
    static constexpr int block_bytes = bytes_of_block;
    static constexpr int n_bits = bits;
    static constexpr bool has_minima = false;
    static constexpr int n_scales = small / 8;
    static constexpr int n_halves = 1;
    static constexpr int n_small = small;
    static const uint8_t * halves(const uint8_t * block) { return block + place_of_half; }
    static QCLS_INLINE void unpack_scales(const uint8_t * scales, int part, step & to) {
        const int8_t * of_part = (const int8_t *) scales + (2 + n_scales * part) * n_lanes;
        for (int i = 0; i < n_scales; ++i) {
            to.scale[i] = product(halves_at(scales), converted(widened(of_part + i * n_lanes)));
        }
    }
};

// A block of 256 has the low 4 bits of the codes, their high 2 bits, a small scale for each 16 values, and d.
struct q6_k : block_of_256<6, 16, 128 + 64 + 16 + 2, 208> {
    static constexpr const char * name = "q6_K";
    static void small_scales(const uint8_t * block, uint8_t * out) { memcpy(out, block + 192, 16); }
    static void codes(const uint8_t * block, int part, uint8_t * out) {
        const uint8_t * low = block + part / 4 * 64 + part % 2 * 32;
        const uint8_t * high = block + 128 + part / 4 * 32;
        for (int i = 0; i < 32; ++i) {
            out[i] = (low[i] >> part % 4 / 2 * 4 & 15) | (high[i] >> part % 4 * 2 & 3) << 4;
        }
    }
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int part, step & to) {
        unpack_nibbles(values, to.quads);
        add_two_bits<4>(values + 16 * n_lanes, to.quads);
        add_to_all((uint8_t) (zero - 32), to.quads);
        unpack_scales(scales, part, to);
    }
};

// A block of 256 has d, the high 2 bits of 8 small scales, their low 4 bits, and codes of 4 bits for iq4_nl's table.
struct iq4_xs : block_of_256<4, 8, 2 + 2 + 4 + 128, 0> {
    static constexpr const char * name = "iq4_xs";
    static void small_scales(const uint8_t * block, uint8_t * out) {
        uint16_t high;
        memcpy(&high, block + 2, sizeof(high));
        for (int i = 0; i < 8; ++i) {
            out[i] = (uint8_t) (((block[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4) - 32);
        }
    }
    static void codes(const uint8_t * block, int part, uint8_t * out) {
        const uint8_t * low = block + 8 + part * 16;
        for (int i = 0; i < 16; ++i) {
            out[i] = low[i] & 15;
            out[i + 16] = low[i] >> 4;
        }
    }
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int part, step & to) {
        unpack_nibbles(values, to.quads);
        look_up(iq4_nl::table, to.quads);
        unpack_scales(scales, part, to);
    }
};

// A block of 256 has the high bits of the codes, their low 2 bits, 16 small scales of 6 bits, and d.
struct q3_k : block_of_256<3, 16, 32 + 64 + 12 + 2, 108> {
    static constexpr const char * name = "q3_K";
    static void small_scales(const uint8_t * block, uint8_t * out) {
        const uint8_t * packed = block + 96;
        for (int i = 0; i < 16; ++i) {
            out[i] = (uint8_t) (((packed[i % 8] >> i / 8 * 4 & 15) | (packed[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32);
        }
    }
    static void codes(const uint8_t * block, int part, uint8_t * out) {
        const uint8_t * low = block + 32 + part / 4 * 32;
        for (int i = 0; i < 32; ++i) {
            out[i] = (low[i] >> part % 4 * 2 & 3) | (block[i] >> part & 1) << 2;
        }
    }
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int part, step & to) {
        for (bytes & quad : to.quads) {
            quad = all_bytes(0);
        }
        add_two_bits<0>(values, to.quads);
        add_bit<2>(values + 8 * n_lanes, to.quads);
        add_to_all((uint8_t) (zero - 4), to.quads);
        unpack_scales(scales, part, to);
    }
};

// A block of 256 has d, the low 8 bits and the high bits of numbers of the grid, each for 4 odd values up to 15, then
// the values' signs and 8 small scales of 4 bits. A code in the layout is a value's number in the table.
struct iq3_s : block_of_256<4, 8, 2 + 64 + 8 + 32 + 4, 0> {
    static constexpr const char * name = "iq3_s";
    static constexpr sixteen table = with_zero({1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15});
    static void small_scales(const uint8_t * block, uint8_t * out) {
        for (int i = 0; i < 8; ++i) {
            out[i] = 1 + 2 * (block[106 + i / 2] >> i % 2 * 4 & 15);
        }
    }
    static void codes(const uint8_t * block, int part, uint8_t * out) {
        for (int j = 0; j < n_quads; ++j) {
            const uint32_t four = iq3s_grid[block[2 + part * 8 + j] | (block[66 + part] >> j & 1) << 8];
            const uint32_t signs = block[74 + part * 4 + j / 2] >> j % 2 * 4 & 15;
            const uint32_t numbers = (four >> 1 & 0x07070707) | (signs * 0x00204081 & 0x01010101) << 3;
            memcpy(out + 4 * j, &numbers, sizeof(numbers));
        }
    }
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int part, step & to) {
        unpack_nibbles(values, to.quads);
        look_up(table, to.quads);
        unpack_scales(scales, part, to);
    }
};

// Codes are floats of 4 bits. A block has a scale of 8 bits for each scale_values of its values.
template <int values, int scale_values> struct fp4_type {
    static constexpr sixteen table = with_zero({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});  // twice
    static constexpr int block_values = values;
    static constexpr int n_bits = 4;
    static constexpr bool has_minima = false;
    static constexpr int n_scales = 32 / scale_values;
    static constexpr int n_halves = 0;
    static constexpr int n_small = values / scale_values;
    static constexpr int block_bytes = n_small + values / 2;
    static const uint8_t * halves(const uint8_t * block) { return block; }
    static void codes(const uint8_t * block, int part, uint8_t * out) {
        const uint8_t * low = block + n_small + part * 16;
        for (int i = 0; i < 16; ++i) {
            const int to = i / (scale_values / 2) * scale_values + i % (scale_values / 2);
            out[to] = low[i] & 15;
            out[to + scale_values / 2] = low[i] >> 4;
        }
    }
    // exponent_bit: where the exponent begins in a small scale; what is above is a float's exponent, less `factor`.
    template <int exponent_bit> static QCLS_INLINE void unpack_with(
        const uint8_t * values_of, const uint8_t * scales, int part, floats factor, step & to) {
        unpack_nibbles(values_of, to.quads);
        look_up(table, to.quads);
        for (int i = 0; i < n_scales; ++i) {
            const uint8_t * small = scales + (part * n_scales + i) * n_lanes;
            to.scale[i] = product(same_bits(words_shifted_left<23 - exponent_bit>(widened(small))), factor);
        }
    }
};

// Scales are powers of two: exponents of floats, the least two of which are taken for 0.
struct mxfp4 : fp4_type<32, 32> {
    static constexpr const char * name = "mxfp4";
    static void small_scales(const uint8_t * block, uint8_t * out) { out[0] = block[0] ? block[0] - 1 : 0; }
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int part, step & to) {
        unpack_with<0>(values, scales, part, all_floats(1), to);
    }
};

// Scales have an exponent of 4 bits, above -7, and a fraction of 3.
struct nvfp4 : fp4_type<64, 16> {
    static constexpr const char * name = "nvfp4";
    static void small_scales(const uint8_t * block, uint8_t * out) {
        for (int i = 0; i < n_small; ++i) {
            out[i] = block[i] == 127 ? 0 : block[i] & 127;  // as ggml has it
        }
    }
    static QCLS_INLINE void unpack(const uint8_t * values, const uint8_t * scales, int part, step & to) {
        unpack_with<3>(values, scales, part, all_floats(0x1p119f), to);
    }
};

// --- a matrix's groups, and a step of one ----------------------------------------------------------------------------

constexpr int steps_ahead = 8;  // how far laid out weights are prefetched

template <typename T> constexpr int64_t step_bytes = T::n_bits * step_values / 8 * n_lanes;
template <typename T> constexpr int64_t block_scale_bytes = (2 * T::n_halves + T::n_small) * n_lanes;

template <typename T> int64_t group_value_bytes(int64_t n_values) { return n_values / step_values * step_bytes<T>; }
template <typename T> int64_t group_scale_bytes(int64_t n_values) {
    return n_values / T::block_values * block_scale_bytes<T>;
}

// Unpacks step i of group g. values, scales: of group 0.
template <typename T> QCLS_INLINE void unpack_step(
    const uint8_t * values, const uint8_t * scales, int64_t n_values, int64_t g, int64_t i, step & to) {
    constexpr int n_parts = T::block_values / step_values;
    const uint8_t * at = values + g * group_value_bytes<T>(n_values) + i * step_bytes<T>;
    for (int64_t k = 0; k < step_bytes<T>; k += 64) {
        __builtin_prefetch(at + steps_ahead * step_bytes<T> + k);
    }
    T::unpack(at, scales + g * group_scale_bytes<T>(n_values) + i / n_parts * block_scale_bytes<T>, (int) (i % n_parts), to);
}

}  // namespace

#endif
#endif
