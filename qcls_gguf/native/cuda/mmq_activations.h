// How the direct matrix kernels want activations: what whoever writes them must know, which needs nothing of ggml.
#pragma once

namespace mmq_direct {

constexpr int K_STEP = 128;              // values of K between two barriers
constexpr int GROUP_BYTES = 1216;        // activations of 8 columns and K_STEP values: 1024 int8, 32 float scales, 32 half sums
constexpr int GROUP_SCALES = 1024;
constexpr int GROUP_SUMS = 1152;

// Activations (n_k, n_cols) as int8 with a float scale and a half sum for each 32 values: (K/128, groups of 8 columns) of
// GROUP_BYTES: [32 values][lane = column, quarter][8 bytes], scales [32 values][column], sums [column][32 values].
// A lane's 8 bytes of 32 values are contiguous or, in split order, 4 of the first 16 values and 4 of the last.
struct activations {
    char * y;
    int n_groups;  // of 8 columns; those past n_cols are zeros
    bool split_order;
};

} // namespace mmq_direct
