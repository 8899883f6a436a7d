// Products of weights that are floats, read where they lie in memory. As in products.cpp, weights stay in registers
// while all columns are multiplied with them. Here a vector holds every fourth value of 4 rows, made by a transposition
// as the rows are read.
#include "products.h"

#include "simd.h"

#include <algorithm>

#ifdef QCLS_HAS_VECTORS

namespace {

constexpr int n_fours = n_lanes / 4;   // groups of 4 rows that are computed at once
constexpr int max_tile_columns = 128;  // their sums stay in the L1 cache
constexpr int64_t line_bytes = 64;     // a cache line

// Weights of type T are multiplied as floats.
template <typename T> struct as_floats {
    using weight = T;
    static constexpr int n_values = n_lanes;  // how many values of a row are read at once
    static vec read(const T * p) { return load(p); }
    static vec round(const float * values) { return load(values); }
    static vec product_plus(vec a, vec b, vec to) { return fma(a, b, to); }
};

#if defined(__AVX512BF16__)
// Weights and activations are multiplied as BF16; a lane holds two values of a row.
struct as_pairs {
    using weight = bf16;
    static constexpr int n_values = 2 * n_lanes;
    static vec read(const bf16 * p) { return load((const float *) p); }
    static vec round(const float * values) {
        return {(__m512) _mm512_cvtne2ps_pbh(load(values + n_lanes).v, load(values).v)};
    }
    static vec product_plus(vec a, vec b, vec to) { return {_mm512_dpbf16_ps(to.v, (__m512bh) a.v, (__m512bh) b.v)}; }
};
#endif

template <typename K> int64_t n_steps_of(int64_t n_values) { return (n_values + K::n_values - 1) / K::n_values; }

// Adds the products of 4 * n_fours rows and each column. read(r) gives the next vector of row r.
template <typename K, typename F>
void add_step(F && read, const float * x, int64_t n_columns, vec (*sums)[n_fours]) {
    vec weights[n_fours][4];
    for (int f = 0; f < n_fours; ++f) {
        for (int i = 0; i < 4; ++i) {
            weights[f][i] = read(4 * f + i);
        }
        transpose_fours(weights[f]);
    }
    for (int64_t c = 0; c < n_columns; ++c) {
        const vec values = load(x + c * n_lanes);
        const vec spread_values[4] = {spread<0>(values), spread<1>(values), spread<2>(values), spread<3>(values)};
        for (int f = 0; f < n_fours; ++f) {
            vec sum = sums[c][f];
            for (int i = 0; i < 4; ++i) {
                sum = K::product_plus(weights[f][i], spread_values[i], sum);
            }
            sums[c][f] = sum;
        }
    }
}

// Prefetches several consecutive lines of one row, of another row at each step. Single lines of many rows would arrive
// late.
template <typename T> void fetch_ahead(const T * const (&rows)[4 * n_fours], int64_t at_byte) {
    constexpr int64_t n_bytes = line_bytes * 4 * n_fours;
    const char * next = (const char *) rows[at_byte % n_bytes / line_bytes] + at_byte / n_bytes * n_bytes + n_bytes;
    for (int64_t i = 0; i < n_bytes; i += line_bytes) {
        __builtin_prefetch(next + i);
    }
}

// Multiplies up to 4 * n_fours rows of weights with the columns of a tile: x[step][x_stride columns][n_lanes].
template <typename K>
void multiply_tile(const typename K::weight * weights, int64_t n_rows, int64_t n_values, const float * x,
    int64_t x_stride, int64_t n_columns, float * out, int64_t out_stride) {
    vec sums[max_tile_columns][n_fours];
    memset(sums, 0, n_columns * sizeof(sums[0]));
    const typename K::weight * rows[4 * n_fours];
    for (int64_t r = 0; r < 4 * n_fours; ++r) {
        rows[r] = weights + std::min(r, n_rows - 1) * n_values;
    }
    int64_t value = 0;
    for (; value + K::n_values <= n_values; value += K::n_values) {
        fetch_ahead(rows, value * sizeof(weights[0]));
        add_step<K>([&](int r) { return K::read(rows[r] + value); }, x, n_columns, sums);
        x += x_stride * n_lanes;
    }
    if (value < n_values) {
        const auto read = [&](int r) {
            typename K::weight part[K::n_values] = {};
            memcpy(part, rows[r] + value, (n_values - value) * sizeof(part[0]));
            return K::read(part);
        };
        add_step<K>(read, x, n_columns, sums);
    }
    for (int64_t c = 0; c < n_columns; ++c) {
        float found[4 * n_fours];
        for (int f = 0; f < n_fours; ++f) {
            store_sum_of_fours(found + 4 * f, sums[c][f]);
        }
        memcpy(out + c * out_stride, found, n_rows * sizeof(float));
    }
}

template <typename K>
void multiply(const void * weights, int64_t n_values, int64_t first, int64_t end, const float * x, int64_t n_columns,
    float * out, int64_t out_stride) {
    const int64_t n_tiles = (n_columns + max_tile_columns - 1) / max_tile_columns;
    for (int64_t row = first; row < end; row += 4 * n_fours) {
        for (int64_t tile = 0; tile < n_tiles; ++tile) {
            const int64_t column = n_columns * tile / n_tiles;
            multiply_tile<K>((const typename K::weight *) weights + row * n_values,
                std::min<int64_t>(4 * n_fours, end - row), n_values, x + column * n_lanes, n_columns,
                n_columns * (tile + 1) / n_tiles - column, out + column * out_stride + row, out_stride);
        }
    }
}

template <typename K> size_t packed_size(int64_t n_values, int64_t n_columns) {
    return n_steps_of<K>(n_values) * n_columns * n_lanes * sizeof(float);
}

template <typename K> void pack(const float * row, int64_t n_values, float * out, int64_t n_columns) {
    for (int64_t i = 0; i < n_values; i += K::n_values) {
        float part[K::n_values] = {};
        const bool is_whole = i + K::n_values <= n_values;
        if (!is_whole) {
            memcpy(part, row + i, (n_values - i) * sizeof(float));
        }
        store(out, K::round(is_whole ? row + i : part));
        out += n_columns * n_lanes;
    }
}

template <typename K> double multiply_registers(int64_t n) {
    vec sums[qcls::n_register_sums] = {};
    vec weights = all(0.5f);
    const vec x = all(0.25f);
    for (int64_t i = 0; i < n; ++i) {
        for (vec & sum : sums) {
            in_register(weights);  // the compiler must take it for changed
            sum = K::product_plus(weights, x, sum);
        }
    }
    for (vec & sum : sums) {
        in_register(sum);
    }
    return 2.0 * K::n_values * qcls::n_register_sums * (double) n;
}

template <typename K> constexpr qcls::float_kernels kernels_of(const char * type) {
    return {type, 4 * n_fours, n_lanes, packed_size<K>, pack<K>, multiply<K>, multiply_registers<K>};
}

constexpr qcls::float_kernels all_kernels[] = {
    kernels_of<as_floats<float>>("f32"),
    kernels_of<as_floats<fp16>>("f16"),
#if defined(__AVX512BF16__)
    kernels_of<as_pairs>("bf16"),
#else
    kernels_of<as_floats<bf16>>("bf16"),
#endif
};

}  // namespace

extern "C" const qcls::float_kernels * qcls_float_kernels(const char * type) {
    for (const qcls::float_kernels & kernels : all_kernels) {
        if (strcmp(kernels.type, type) == 0) {
            return &kernels;
        }
    }
    return nullptr;
}

#else

extern "C" const qcls::float_kernels * qcls_float_kernels(const char *) { return nullptr; }

#endif
