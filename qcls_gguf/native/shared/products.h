// Products of quantised matrices with activations on a CPU: a layout of the weights for them, and the kernels.
#ifndef QCLS_PRODUCTS_H
#define QCLS_PRODUCTS_H

#include <cstddef>
#include <cstdint>

namespace qcls {

// 32 consecutive values of one activation row, quantised: value i is about scale * q[i]. If one of them is not a number
// or infinite, so is `scale`, and with it every product.
struct activation_block {
    float scale;
    float scaled_sum;   // scale * sum of q
    int32_t start[2];   // -128 times the sum of q's first half, and of its second: takes back 128 added to weights
    int32_t to_rest;    // how many blocks further the block is whose values are added to these; 0: none
    int8_t q[32];
};

// Which blocks of activations have a rest, what 8 bits leave of them, in 8 bits again: none; those whose scale is above
// a multiple of their row's mean, which is where a few large values make the steps of the others too wide; all.
enum class precision { usual, fast, fine };

constexpr int n_register_sums = 12;  // of multiply_registers(): none waits for another, and all registers hold them

// One type of weights. A matrix is [n_rows][n_values]; n_rows is a multiple of `row_multiple`, n_values of
// `value_multiple`, and its layout starts at a multiple of 64 bytes.
struct product_kernels {
    const char * type;  // ggml's name of it
    int32_t row_multiple;
    int32_t value_multiple;
    size_t (*size)(int64_t n_rows, int64_t n_values);  // of the layout, in bytes
    void (*lay_out)(const uint8_t * file_rows, int64_t n_rows, int64_t n_values, uint8_t * out);
    // A row of n_values, as blocks that are `stride` apart, and room for as many rests, also `stride` apart.
    void (*quantise)(const float * row, int64_t n_values, precision wanted, activation_block * blocks,
        activation_block * rests, int64_t stride);
    // The activations are [n_values / 32][n_columns]: 32 values of a row of weights meet those of all columns in turn.
    // out[c * out_stride + r] for each column c and the rows from `first` to before `end`, multiples of `row_multiple`.
    // A result depends on its row and its column alone, to the bit, and on one build.
    void (*multiply)(const uint8_t * laid_out, int64_t n_rows, int64_t n_values, int64_t first, int64_t end,
        const activation_block * activations, int64_t n_columns, float * out, int64_t out_stride);
    double (*multiply_registers)(int64_t n);  // see cpu_functions.h
};

// One type of weights that are floats, of any number of rows and values, read as a file has them. Activations stay F32,
// or become BF16 where the processor multiplies BF16.
struct float_kernels {
    const char * type;
    int32_t row_multiple;   // that many rows at a time are fastest
    int32_t vector_floats;
    size_t (*packed_size)(int64_t n_values, int64_t n_columns);  // of the activations, in bytes
    // Column c of n_columns, to packed + c * vector_floats.
    void (*pack)(const float * row, int64_t n_values, float * packed, int64_t n_columns);
    void (*multiply)(const void * weights, int64_t n_values, int64_t first, int64_t end, const float * packed,
        int64_t n_columns, float * out, int64_t out_stride);  // as product_kernels::multiply, of any rows
    double (*multiply_registers)(int64_t n);
};

}  // namespace qcls

// NULL where there are none for the type, or for the processor that this was compiled for. Named so for tests, which
// load the library.
extern "C" const qcls::product_kernels * qcls_product_kernels(const char * type);
extern "C" const qcls::float_kernels * qcls_float_kernels(const char * type);

#endif
