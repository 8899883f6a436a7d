// Launches of the direct matrix kernels, for tensors that can_compute() has accepted.
#pragma once

#include "mmq_layout.cuh"

#include <vector>

namespace mmq_direct {

constexpr int MAX_MATRICES = 3;    // of a launch
constexpr int MAX_TILES = 4096;
constexpr int LEAST_TILE_ROWS = 64;  // the least that a kernel has; half of that with glu

// From so many columns on, there are also kernels for 7.5 with a loop over the halves of a block: a loop over whole
// blocks has more instructions than the caches near a T4's multiprocessors hold.
constexpr int LEAST_COLUMNS_OF_SHORT_LOOP = 64;
constexpr int LEAST_COLUMNS_OF_SHORT_LOOP_Q6_K_LANES = 32;  // it has twice as many rows in a warp
constexpr int least_columns_of_short_loop(const ggml_type type, const bool lanes) {
    return lanes && type == GGML_TYPE_Q6_K ? LEAST_COLUMNS_OF_SHORT_LOOP_Q6_K_LANES : LEAST_COLUMNS_OF_SHORT_LOOP;
}
bool has_short_loops(const ggml_backend_cuda_context & ctx);

// From so many columns on, kernels of Q8_0 in lane order with short loops divide the columns of a tile between two
// warps. The first limit holds on every device: the sums of all columns would leave a single warp too few registers.
// The second holds on devices with more multiprocessors than given here: more blocks share a tile there, and its parts
// are then half as large.
constexpr int LEAST_COLUMNS_OF_HALVES = 128;
constexpr int LEAST_COLUMNS_OF_HALVES_ON_MANY = 112;
constexpr int FEW_MULTIPROCESSORS = 48;

// The generation of the code that a context's device runs.
generation generation_of(const ggml_backend_cuda_context & ctx);

// Types whose products have a scale for each 16 values, and types that have minimums for each 32.
constexpr bool has_scales_of_16(const ggml_type type) {
    return type == GGML_TYPE_Q6_K;
}
constexpr bool has_minimums(const ggml_type type) {
    return type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q5_K || type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_1;
}
// The bytes of a block's shared memory that a type's table takes.
constexpr int table_bytes(const ggml_type type) {
    return type == GGML_TYPE_IQ3_S ? 2048 : 0;
}
// Types with kernels for every multiple of 8 columns. Others have them up to 48, and for multiples of 16 above.
constexpr bool has_all_columns(const ggml_type type, const generation gen) {
    return type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q6_K || type == GGML_TYPE_Q8_0 ||
        (type == GGML_TYPE_IQ3_S && gen == generation::AMPERE);
}

// The most columns of a tile; more do not fit into registers or shared memory. Weights are read once for each tile of
// columns.
constexpr int max_columns_of_tile(const ggml_type type, const generation gen) {
    if (has_scales_of_16(type)) {
        return 112;
    }
    return !has_minimums(type) || gen == generation::AMPERE ? 128 : has_all_columns(type, gen) ? 120 : 112;
}

bool is_direct_type(ggml_type type);

// The number of tiles of columns that products with a matrix of this type need for n_cols columns, and the columns of
// each tile, a multiple of 8.
int n_col_tiles(ggml_type type, generation gen, int64_t n_cols);
int columns_of_tile(ggml_type type, generation gen, int64_t n_cols);

// Whether products with matrices of these types can read the same quantised activations.
bool have_same_layout(ggml_type a, ggml_type b, generation gen, int64_t n_cols);

// Into how many parts each tile of a matrix is divided in batch-invariant contexts. 0 in other contexts: blocks take
// equal shares, wherever these divide a tile.
int n_fixed_parts(const ggml_backend_cuda_context & ctx, const ggml_tensor * x);

// Quantised activations in memory of a pool, which must be returned in reverse order.
struct quantized {
    ggml_cuda_pool_alloc<char> memory;
    activations a;

    // Allocates activations (n_k, n_cols) for products with matrices of this type.
    quantized(ggml_backend_cuda_context & ctx, ggml_type type, int64_t n_k, int64_t n_cols);
};

// The counters (MAX_TILES) that the launches after one of the next two functions share; zero before and after each
// launch.
using counters = ggml_cuda_pool_alloc<unsigned int>;

void quantize(ggml_backend_cuda_context & ctx, const ggml_tensor * x, const quantized & out, const counters & arrived);

// add: null, or the node a + b, which is computed too. The caller must have checked can_normalize(n_k).
bool can_normalize(int64_t n_k);
void normalize(ggml_backend_cuda_context & ctx, const ggml_tensor * add, const ggml_tensor * norm, const ggml_tensor * weight,
    const quantized & out, const quantized * other_out, const counters & arrived);

// Matrices of one type that are multiplied with the same activations. With glu there are two, gate and up, and one
// result.
struct product {
    std::vector<const ggml_tensor *> x;  // either all or none are in lane order
    std::vector<const ggml_tensor *> dst;
    bool glu = false;
};

void multiply(ggml_backend_cuda_context & ctx, const quantized & y, const product & p, const counters & arrived);

struct args;
// lanes: the matrices are in lane order, for which there is only code for 7.5.
template <ggml_type type, bool lanes> void launch_type(ggml_backend_cuda_context & ctx, args & g, const product & p);

} // namespace mmq_direct
