// This project's CPU products on plain arrays, for tests/abi/test_products.py.
#include "products.h"

#include <cstdlib>
#include <cstring>
#include <vector>

using kernels_fn = const qcls::product_kernels * (*) (const char *);
using float_kernels_fn = const qcls::float_kernels * (*) (const char *);

// out[c][r]: rows of weights as a file has them, times columns x[c][n_values]; the rows in pieces of `piece` at most.
// Returns the bytes of the layout; 0, with nothing done, where there are no kernels, or none for this shape.
extern "C" size_t compute_products(kernels_fn find, const char * type, const uint8_t * weights, int64_t n_rows,
    int64_t n_values, const float * x, int64_t n_columns, int32_t precision, int64_t piece, float * out) {
    const qcls::product_kernels * kernels = find(type);
    if (!kernels || n_rows % kernels->row_multiple || n_values % kernels->value_multiple || piece % kernels->row_multiple) {
        return 0;
    }
    const size_t size = kernels->size(n_rows, n_values);
    uint8_t * laid_out = (uint8_t *) aligned_alloc(64, (size + 63) / 64 * 64);
    kernels->lay_out(weights, n_rows, n_values, laid_out);
    void * activations = aligned_alloc(64, n_values / 32 * n_columns * qcls::activation_bytes);
    for (int64_t c = 0; c < n_columns; ++c) {
        kernels->quantise(x + c * n_values, n_values, (qcls::precision) precision, activations, c, n_columns);
    }
    for (int64_t first = 0; first < n_rows; first += piece) {
        const int64_t end = first + piece < n_rows ? first + piece : n_rows;
        kernels->multiply(laid_out, n_rows, n_values, first, end, (qcls::precision) precision, activations, n_columns, out,
            n_rows);
    }
    free(activations);
    free(laid_out);
    return size;
}

// The same for weights that are floats. Returns their bytes; 0 where there are no kernels.
extern "C" size_t compute_float_products(float_kernels_fn find, const char * type, const uint8_t * weights, int64_t n_rows,
    int64_t n_values, const float * x, int64_t n_columns, int64_t piece, float * out) {
    const qcls::float_kernels * kernels = find(type);
    if (!kernels) {
        return 0;
    }
    std::vector<float> packed(kernels->packed_size(n_values, n_columns) / sizeof(float));
    for (int64_t c = 0; c < n_columns; ++c) {
        kernels->pack(x + c * n_values, n_values, packed.data() + c * kernels->vector_floats, n_columns);
    }
    for (int64_t first = 0; first < n_rows; first += piece) {
        const int64_t end = first + piece < n_rows ? first + piece : n_rows;
        kernels->multiply(weights, n_values, first, end, packed.data(), n_columns, out, n_rows);
    }
    return (strcmp(type, "f32") == 0 ? 4 : 2) * n_rows * n_values;
}

#ifdef QCLS_PROGRAM
#include <cstdio>

// For processors that are emulated: TYPE ROWS VALUES COLUMNS PRECISION PIECE, the weights' bytes and the columns on
// standard input; the products, or nothing where there are no such kernels, on standard output.
int main(int, char ** arguments) {
    const char * type = arguments[1];
    const int64_t n_rows = atoll(arguments[2]);
    const int64_t n_values = atoll(arguments[3]);
    const int64_t n_columns = atoll(arguments[4]);
    std::vector<uint8_t> input;
    for (int c = getchar(); c != EOF; c = getchar()) {
        input.push_back((uint8_t) c);
    }
    std::vector<float> x(n_columns * n_values);
    std::vector<float> out(n_columns * n_rows);
    const size_t x_bytes = x.size() * sizeof(float);
    memcpy(x.data(), input.data() + input.size() - x_bytes, x_bytes);
    const int64_t piece = atoll(arguments[6]);
    const size_t size = compute_products(qcls_product_kernels, type, input.data(), n_rows, n_values, x.data(), n_columns,
        atoi(arguments[5]), piece, out.data());
    return size && fwrite(out.data(), sizeof(float), out.size(), stdout) == out.size() ? 0 : 1;
}
#endif
