// The layout of activations for the direct matrix kernels, and other definitions that their parts share.
#pragma once

#include "ggml-cuda/common.cuh"

namespace mmq_direct {

// TURING: code for 7.5, which has int8 products of 8x8x16. AMPERE: code for 8.0 and newer, with int8 products of
// 16x8x32 and copies to shared memory that bypass registers.
enum class generation { TURING, AMPERE };

constexpr int K_STEP = 128;              // values of K between two barriers
constexpr int K_BLOCK = 256;             // values of K; work is divided in multiples of it
constexpr int K_SCALE = 64;              // values of a column's activations that share a scale
constexpr int GROUP_BYTES = 1152;        // activations of 8 columns and K_STEP values: 1024 int8, 16 float scales, 32 half sums
constexpr int GROUP_SCALES = 1024;
constexpr int GROUP_SUMS = 1088;

// The bits of an int32 sum that starts at MAGIC_BITS are those of the float MAGIC + sum (|sum| < 2^22), so the slow
// conversion I2F is not needed.
constexpr int MAGIC_BITS = 0x4B400000;
constexpr float MAGIC = 12582912.0f;

// Activations (n_k, n_cols) as int8 with a float scale for each 64 values and a half sum for each 32: (K/128, groups of 8
// columns) of GROUP_BYTES: [64 values][lane = column, quarter][2 times 32 values][8 bytes], scales [64 values][column],
// sums [column][32 values]. A lane's 8 bytes of 32 values are contiguous or, in split order, 4 of the first 16 values and
// 4 of the last.
struct activations {
    char * y;
    int n_groups;  // groups of 8 columns; columns past n_cols are zeros
    bool split_order;
};

} // namespace mmq_direct
