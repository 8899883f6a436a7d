// Launches of the direct matrix kernels, for tensors that can_compute() has found fit.
#pragma once

#include "mmq_layout.cuh"

#include <vector>

namespace mmq_direct {

constexpr int MAX_MATRICES = 3;
constexpr int MAX_TILES = 4096;
constexpr int LEAST_TILE_ROWS = 64;  // of a kernel; half of that with glu

// From so many columns on, kernels for 7.5 have a loop over the halves of a block too: without it theirs has more
// instructions than a T4 holds near its multiprocessors.
constexpr int LEAST_COLUMNS_OF_SHORT_LOOP = 64;
constexpr int LEAST_COLUMNS_OF_SHORT_LOOP_Q6_K_LANES = 32;  // which has twice the rows a warp
constexpr int least_columns_of_short_loop(const ggml_type type, const bool lanes) {
    return lanes && type == GGML_TYPE_Q6_K ? LEAST_COLUMNS_OF_SHORT_LOOP_Q6_K_LANES : LEAST_COLUMNS_OF_SHORT_LOOP;
}
bool has_short_loops(const ggml_backend_cuda_context & ctx);

// Kernels of Q8_0 in lane order with short loops have, from so many columns on, two warps for the columns of a tile: on every
// device, as one warp's sums of all would leave too few registers; on devices of more multiprocessors than these, because
// more blocks share tiles there, whose parts are then half as large.
constexpr int LEAST_COLUMNS_OF_HALVES = 128;
constexpr int LEAST_COLUMNS_OF_HALVES_ON_MANY = 112;
constexpr int FEW_MULTIPROCESSORS = 48;

// Of the code that a device runs.
generation generation_of(const ggml_backend_cuda_context & ctx);

// Weights are read once for each tile of so many columns; more do not fit the registers or the shared memory.
constexpr int max_columns_of_tile(const ggml_type type, const generation gen) {
    if (type == GGML_TYPE_Q6_K) {
        return 112;
    }
    return type == GGML_TYPE_Q4_K && gen == generation::TURING ? 120 : 128;
}

bool is_direct_type(ggml_type type);

// Tiles of columns that a matrix of this type needs for so many columns, and the columns of each, a multiple of 8.
int n_col_tiles(ggml_type type, generation gen, int64_t n_cols);
int columns_of_tile(ggml_type type, generation gen, int64_t n_cols);

// In how many parts each tile of a matrix is multiplied where results must not depend on the number of columns; 0: blocks
// take equal shares, whatever that makes of a tile.
int n_fixed_parts(const ggml_backend_cuda_context & ctx, const ggml_tensor * x);

// Quantised activations in a pool's memory, which goes back in the reverse order.
struct quantized {
    ggml_cuda_pool_alloc<char> memory;
    activations a;

    // For products with matrices of this type, (n_k, n_cols).
    quantized(ggml_backend_cuda_context & ctx, ggml_type type, int64_t n_k, int64_t n_cols);
};

// The counters that all launches which follow one of these two share: (MAX_TILES), zero before and after each.
using counters = ggml_cuda_pool_alloc<unsigned int>;

void quantize(ggml_backend_cuda_context & ctx, const ggml_tensor * x, const quantized & out, const counters & arrived);

// add: null, or a + b, which is computed too. Whether can_normalize(n_k) is for the caller to ask.
bool can_normalize(int64_t n_k);
void normalize(ggml_backend_cuda_context & ctx, const ggml_tensor * add, const ggml_tensor * norm, const ggml_tensor * weight,
    const quantized & out, const quantized * other_out, const counters & arrived);

// Matrices of one type that multiply the same activations. With glu there are two, gate and up, and one result.
struct product {
    std::vector<const ggml_tensor *> x;  // all in lane order, or none
    std::vector<const ggml_tensor *> dst;
    bool glu = false;
};

void multiply(ggml_backend_cuda_context & ctx, const quantized & y, const product & p, const counters & arrived);

struct args;
// lanes: the matrices are in lane order, for which there is code for 7.5 alone.
template <ggml_type type, bool lanes> void launch_type(ggml_backend_cuda_context & ctx, args & g, const product & p);

} // namespace mmq_direct
