// Lane order: the bytes of a Q8_0 or Q6_K matrix in the order in which lanes of the direct matrix kernels load them, 16
// at once, without a detour through shared memory. It is a permutation, so it takes no more memory. Plain C++, so that
// a CPU can compute and test it.
//
// 32 rows of a matrix stay together, as 4 groups of 8 rows. A row is cut into units of UNIT_K values; the units of the
// 4 groups are stored one after the other. In a unit, lane l of a warp has the bytes of row l / 4 that its products
// take: of each 32 values, the four from 4 * (l % 4) on, and the four that are 16 values further.
#pragma once

#include <cstddef>
#include <cstring>

#ifdef __CUDACC__
#define LANE_ORDER_FN static __host__ __device__ __forceinline__ constexpr
#else
#define LANE_ORDER_FN static inline constexpr
#endif

namespace lane_order {

// Whether a device's matrices are to be in lane order. wish: "0" for no, anything else for yes, null to decide by the
// device: yes on cards of 7.5, where counted cycles predict a gain. capability: the device's own, 750 for 7.5.
static inline bool is_wanted(const char * wish, const int capability) {
    return wish == nullptr ? capability == 750 : std::strcmp(wish, "0") != 0;
}

constexpr int ROWS = 32;       // rows that stay together
constexpr int GROUP_ROWS = 8;
constexpr int GROUPS = ROWS / GROUP_ROWS;

// A unit of one group: where a lane finds the bytes that it loads. `stock` is the inverse: which byte in the file's
// order byte i of the unit is.
struct q8_0 {
    static constexpr int UNIT_K = 128;
    static constexpr int BLOCK_BYTES = 34;                    // a half, then 32 values
    static constexpr int ROW_BYTES = UNIT_K / 32 * BLOCK_BYTES;
    static constexpr int UNIT_BYTES = GROUP_ROWS * ROW_BYTES;
    static constexpr int SCALES = GROUP_ROWS * UNIT_K;        // after the values

    // Where 16 values begin: from the first and from the second 32 values of a pair, 4 of the lower 16 and 4 of the
    // upper.
    LANE_ORDER_FN int values(const int pair, const int lane) { return pair * 512 + lane * 16; }
    // Where 2 halves begin: the scales of a pair in the lane's row.
    LANE_ORDER_FN int scales(const int pair, const int lane) { return SCALES + lane / 4 * 8 + pair * 4; }

    // The row that byte i of a unit comes from, and the byte in that row's part of the unit: row * ROW_BYTES + byte.
    LANE_ORDER_FN int stock(const int i) {
        if (i >= SCALES) {
            const int row = (i - SCALES) / 8;
            const int block = (i - SCALES) % 8 / 2;
            return row * ROW_BYTES + block * BLOCK_BYTES + i % 2;
        }
        const int lane = i % 512 / 16;
        const int block = i / 512 * 2 + i % 16 / 8;
        const int value = i % 8 / 4 * 16 + lane % 4 * 4 + i % 4;
        return lane / 4 * ROW_BYTES + block * BLOCK_BYTES + 2 + value;
    }
};

struct q6_k {
    static constexpr int UNIT_K = 256;
    static constexpr int ROW_BYTES = 210;                     // 128 of low bits, 64 of high bits, 16 scales, a half
    static constexpr int UNIT_BYTES = GROUP_ROWS * ROW_BYTES;
    static constexpr int HALF_BYTES = 832;                    // for 128 values: low bits, high bits, scales
    static constexpr int HIGH = 512;
    static constexpr int SCALES = 768;
    static constexpr int D = 2 * HALF_BYTES;

    // Where 16 bytes of half h begin: for n = 0 and 1, the low bits of the 32 values from 32n on and of those 64
    // further, 4 bytes of the lower 16 and 4 of the upper.
    LANE_ORDER_FN int low(const int h, const int lane) { return h * HALF_BYTES + lane * 16; }
    // Where 8 bytes begin: the high bits, 4 bytes of the lower 16 and 4 of the upper, for all four times 32 values of a
    // half.
    LANE_ORDER_FN int high(const int h, const int lane) { return h * HALF_BYTES + HIGH + lane * 8; }
    // Where the 8 scales of a half begin, a byte for each 16 values.
    LANE_ORDER_FN int scales(const int h, const int lane) { return h * HALF_BYTES + SCALES + lane / 4 * 8; }
    // Where the half d begins.
    LANE_ORDER_FN int d(const int lane) { return D + lane / 4 * 2; }

    LANE_ORDER_FN int stock(const int i) {
        if (i >= D) {
            return (i - D) / 2 * ROW_BYTES + 208 + i % 2;
        }
        const int h = i / HALF_BYTES;
        const int j = i % HALF_BYTES;
        if (j >= SCALES) {
            return (j - SCALES) / 8 * ROW_BYTES + 192 + 8 * h + j % 8;
        }
        if (j >= HIGH) {
            const int lane = (j - HIGH) / 8;
            return lane / 4 * ROW_BYTES + 128 + 32 * h + j % 8 / 4 * 16 + lane % 4 * 4 + j % 4;
        }
        const int lane = j / 16;
        return lane / 4 * ROW_BYTES + 64 * h + j % 16 / 4 * 16 + lane % 4 * 4 + j % 4;
    }
};

// The position in the file's order of byte i of a matrix in lane order, whose rows have row_bytes. Pairs of bytes that
// begin at an even position stay together.
template <typename type> LANE_ORDER_FN size_t stock_byte(const size_t i, const size_t row_bytes) {
    const size_t rows = i / (ROWS * row_bytes);
    const size_t inside = i % (ROWS * row_bytes);
    const size_t unit = inside / (GROUPS * type::UNIT_BYTES);
    const int group = (int) (inside % (GROUPS * type::UNIT_BYTES) / type::UNIT_BYTES);
    const int from = type::stock((int) (inside % type::UNIT_BYTES));
    const size_t row = rows * ROWS + group * GROUP_ROWS + from / type::ROW_BYTES;
    return row * row_bytes + unit * type::ROW_BYTES + from % type::ROW_BYTES;
}

// Where a unit of a group begins: row0 is the group's first row, k the unit's first value.
template <typename type> LANE_ORDER_FN size_t unit_byte(const size_t row0, const size_t k, const size_t row_bytes) {
    return row0 / ROWS * ROWS * row_bytes + k / type::UNIT_K * GROUPS * type::UNIT_BYTES +
        row0 % ROWS / GROUP_ROWS * type::UNIT_BYTES;
}

}  // namespace lane_order

#undef LANE_ORDER_FN
