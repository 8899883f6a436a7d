// Lane order: the bytes of a Q8_0 or Q6_K matrix as lanes of the direct matrix kernels load them, 16 at once, with no way
// through shared memory. The same bytes in as much memory: a permutation. Plain C++, so that a CPU can do and test it.
//
// 32 rows of a matrix stay together, as 4 groups of 8 rows. Their columns are cut into units of UNIT_K values, whose 4
// groups stand one after the other. In a group, lane l of a warp has the bytes of row l / 4 that its products take:
// of each 32 values 4 * (l % 4) and the three after it, and those 16 further.
#pragma once

#include <cstddef>
#include <cstring>

#ifdef __CUDACC__
#define LANE_ORDER_FN static __host__ __device__ __forceinline__ constexpr
#else
#define LANE_ORDER_FN static inline constexpr
#endif

namespace lane_order {

// Whether a device's matrices are to be in lane order. wish: "0", not; anything else: yes; null: nobody says, then on cards
// of 7.5, where the counts say that it helps, and which have no other code. capability: of the device itself, 750 for 7.5.
static inline bool is_wanted(const char * wish, const int capability) {
    return wish == nullptr ? capability == 750 : std::strcmp(wish, "0") != 0;
}

constexpr int ROWS = 32;       // that stay together
constexpr int GROUP_ROWS = 8;
constexpr int GROUPS = ROWS / GROUP_ROWS;

// Of a unit of one group: where a lane finds what it loads. `stock` says which byte of a row's part of a unit, as the file
// has it, byte i of row r's is: the inverse of these.
struct q8_0 {
    static constexpr int UNIT_K = 128;
    static constexpr int BLOCK_BYTES = 34;                    // a half, then 32 values
    static constexpr int ROW_BYTES = UNIT_K / 32 * BLOCK_BYTES;
    static constexpr int UNIT_BYTES = GROUP_ROWS * ROW_BYTES;
    static constexpr int SCALES = GROUP_ROWS * UNIT_K;        // after the values

    // 16 bytes: of the first and of the second 32 values of a pair, 4 of the lower 16 and 4 of the upper.
    LANE_ORDER_FN int values(const int pair, const int lane) { return pair * 512 + lane * 16; }
    // 2 halves: the scales of a pair of the lane's row.
    LANE_ORDER_FN int scales(const int pair, const int lane) { return SCALES + lane / 4 * 8 + pair * 4; }

    // The row and the byte in its part of the unit that byte i of a unit holds: row * ROW_BYTES + byte.
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
    static constexpr int HALF_BYTES = 832;                    // of 128 values: low bits, high bits, scales
    static constexpr int HIGH = 512;
    static constexpr int SCALES = 768;
    static constexpr int D = 2 * HALF_BYTES;

    // 16 bytes of half h: for n = 0, 1, of the low bits of values 32n and of those 64 further, 4 of the lower 16 and 4 of
    // the upper.
    LANE_ORDER_FN int low(const int h, const int lane) { return h * HALF_BYTES + lane * 16; }
    // 8 bytes: the high bits of the lower and upper 16 of all four times 32 values of a half.
    LANE_ORDER_FN int high(const int h, const int lane) { return h * HALF_BYTES + HIGH + lane * 8; }
    // 8 bytes: the scales of a half, of 16 values each.
    LANE_ORDER_FN int scales(const int h, const int lane) { return h * HALF_BYTES + SCALES + lane / 4 * 8; }
    // A half.
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

// Of a matrix whose rows have row_bytes: where in the file's order byte i of the lane order comes from. Even bytes come
// from even ones and take the next one along.
template <typename type> LANE_ORDER_FN size_t stock_byte(const size_t i, const size_t row_bytes) {
    const size_t rows = i / (ROWS * row_bytes);
    const size_t inside = i % (ROWS * row_bytes);
    const size_t unit = inside / (GROUPS * type::UNIT_BYTES);
    const int group = (int) (inside % (GROUPS * type::UNIT_BYTES) / type::UNIT_BYTES);
    const int from = type::stock((int) (inside % type::UNIT_BYTES));
    const size_t row = rows * ROWS + group * GROUP_ROWS + from / type::ROW_BYTES;
    return row * row_bytes + unit * type::ROW_BYTES + from % type::ROW_BYTES;
}

// Where a group's units begin: row0 is its first row, k the first value of the unit.
template <typename type> LANE_ORDER_FN size_t unit_byte(const size_t row0, const size_t k, const size_t row_bytes) {
    return row0 / ROWS * ROWS * row_bytes + k / type::UNIT_K * GROUPS * type::UNIT_BYTES +
        row0 % ROWS / GROUP_ROWS * type::UNIT_BYTES;
}

}  // namespace lane_order

#undef LANE_ORDER_FN
