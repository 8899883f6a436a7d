// Products of weight matrices with activations on a CPU: kernels for quantised weights, with a layout for these, and
// kernels for weights that are floats.
#ifndef QCLS_PRODUCTS_H
#define QCLS_PRODUCTS_H

#include <cstddef>
#include <cstdint>

namespace qcls {

// 32 consecutive values of one row of activations, quantised: value i is about scale * q[i]. If one of the values is
// NaN or infinite, so are `scale` and every product.
struct activation_block {
    float scale;
    float scaled_sum;   // scale * sum of q
    int32_t start[2];   // of the sums of products of q's halves: takes the 128 added to weights back
    int32_t to_rest;    // how many blocks further this block's rest is; 0: it has none
    int8_t q[32];
};

// The memory for 32 values of a column: a block and its rest, or the values in bf16; a multiple of a cache line.
constexpr int64_t activation_bytes = 128;

// Which blocks of activations have a rest: a second block with the rounding errors of the first, again in 8 bits, whose
// products are added. usual: blocks whose scale is above a multiple of their row's mean scale, because there a few
// large values make the steps of the others wide. fast: none. fine: all. tiles: there are no blocks; activations are
// bf16, and so are the weights that they are multiplied with.
enum class precision { usual, fast, fine, tiles };

constexpr int n_register_sums = 12;  // in multiply_registers(): none waits for another, and the registers hold all

// One type of weights. A matrix is [n_rows][n_values]; n_rows is a multiple of `row_multiple`, n_values of
// `value_multiple`, and its layout starts at a multiple of 64 bytes.
struct product_kernels {
    const char * type;  // ggml's name of the type
    int32_t row_multiple;
    int32_t value_multiple;
    size_t (*size)(int64_t n_rows, int64_t n_values);  // the bytes of the layout
    void (*lay_out)(const uint8_t * file_rows, int64_t n_rows, int64_t n_values, uint8_t * out);
    // Quantises a row of n_values to column `column` of activations: blocks [n_values / 32][n_columns], because 32 values
    // of a row of weights are multiplied with those of all columns in turn, and as many rests; with `tiles` 32 values in
    // the place of each block. They start at a multiple of 64 bytes, and have activation_bytes for each block.
    void (*quantise)(const float * row, int64_t n_values, precision wanted, void * activations, int64_t column,
        int64_t n_columns);
    // Writes out[c * out_stride + r] for each column c and the rows r from `first` to before `end`; both are multiples
    // of `row_multiple`. activations: quantised with the precision `of`. In one build, a result depends on its row and
    // its column alone, to the bit.
    void (*multiply)(const uint8_t * laid_out, int64_t n_rows, int64_t n_values, int64_t first, int64_t end,
        precision of, const void * activations, int64_t n_columns, float * out, int64_t out_stride);
    double (*multiply_registers)(int64_t n);  // see cpu_functions.h
};

// One type of weights that are floats, in matrices of any size, read in the file's order. Activations stay F32, except
// that for BF16 weights they become BF16 if the processor multiplies BF16.
struct float_kernels {
    const char * type;
    int32_t row_multiple;   // multiples of so many rows are fastest
    int32_t vector_floats;
    size_t (*packed_size)(int64_t n_values, int64_t n_columns);  // the bytes of the activations
    // Packs column c of n_columns: the caller passes packed + c * vector_floats.
    void (*pack)(const float * row, int64_t n_values, float * packed, int64_t n_columns);
    void (*multiply)(const void * weights, int64_t n_values, int64_t first, int64_t end, const float * packed,
        int64_t n_columns, float * out, int64_t out_stride);  // as product_kernels::multiply, for any rows
    double (*multiply_registers)(int64_t n);
};

}  // namespace qcls

// NULL if there are none for the type, or for the processor that this was compiled for. They have C names because tests
// call them through the library.
extern "C" const qcls::product_kernels * qcls_product_kernels(const char * type);
extern "C" const qcls::float_kernels * qcls_float_kernels(const char * type);
// Whether precision::tiles can be used.
extern "C" bool qcls_has_tiles();

#endif
