#include "products.h"

#include "tiles.h"

#include <algorithm>

#ifdef QCLS_HAS_PRODUCTS

namespace {

using qcls::activation_block;
using qcls::precision;

constexpr float rest_above = 1.5f;     // times the mean scale; README.md says what other values cost and gain
constexpr int max_byte_columns = 128;  // their sums stay in the L1 cache
constexpr int bytes_ahead = 288;       // how far rows of the file are prefetched while they are laid out

template <typename T> size_t layout_size(int64_t n_rows, int64_t n_values) {
    return n_rows / n_lanes * (group_value_bytes<T>(n_values) + group_scale_bytes<T>(n_values));
}

// Packs a row's 32 codes into n_bits * 4 bytes, in the order in which the layout takes them, 4 at a time.
template <int n_bits> void pack(const uint8_t * codes, uint8_t * out) {
    if constexpr (n_bits == 8) {
        memcpy(out, codes, 32);
        return;
    }
    if constexpr (n_bits >= 4) {
        for (int i = 0; i < 16; ++i) {
            *out++ = (codes[i] & 15) | codes[i + 16] << 4;
        }
    }
    constexpr int packed = n_bits >= 4 ? 4 : 0;  // bits of each code; the next two, then the next one
    if constexpr (n_bits - packed >= 2) {
        for (int i = 0; i < 8; ++i) {
            const auto two = [&](int k) { return (codes[i + 8 * k] >> packed & 3) << 2 * k; };
            *out++ = (uint8_t) (two(0) | two(1) | two(2) | two(3));
        }
    }
    if constexpr (n_bits % 2 == 1) {
        uint32_t last = 0;
        for (int j = 0; j < n_quads; ++j) {
            uint32_t quad;
            memcpy(&quad, codes + 4 * j, sizeof(quad));
            last |= (quad >> (n_bits - 1) & 0x01010101) << j;
        }
        memcpy(out, &last, sizeof(last));
    }
}

template <typename T> void lay_out(const uint8_t * file_rows, int64_t n_rows, int64_t n_values, uint8_t * out) {
    constexpr int n_parts = T::block_values / step_values;
    const int64_t n_blocks = n_values / T::block_values;
    uint8_t * scales = out + n_rows / n_lanes * group_value_bytes<T>(n_values);
    for (int64_t row = 0; row < n_rows; row += n_lanes) {
        for (int64_t b = 0; b < n_blocks; ++b) {
            for (int lane = 0; lane < n_lanes; ++lane) {
                const uint8_t * block = file_rows + ((row + lane) * n_blocks + b) * T::block_bytes;
                for (int i = 0; i < T::block_bytes; i += 64) {  // too many streams for the processor's own prefetching
                    __builtin_prefetch(block + bytes_ahead + i);
                }
#pragma GCC unroll 8  // it takes half the time if `part` is a constant
                for (int part = 0; part < n_parts; ++part) {
                    uint8_t codes[32];
                    uint8_t packed[32];
                    T::codes(block, part, codes);
                    pack<T::n_bits>(codes, packed);
                    for (int i = 0; i < T::n_bits; ++i) {
                        memcpy(out + part * step_bytes<T> + (i * n_lanes + lane) * 4, packed + 4 * i, 4);
                    }
                }
                for (int i = 0; i < T::n_halves; ++i) {
                    memcpy(scales + (i * n_lanes + lane) * 2, T::halves(block) + 2 * i, 2);
                }
                uint8_t small[16];
                T::small_scales(block, small);
                for (int i = 0; i < T::n_small; ++i) {
                    scales[(2 * T::n_halves + i) * n_lanes + lane] = small[i];
                }
            }
            out += n_parts * step_bytes<T>;
            scales += block_scale_bytes<T>;
        }
    }
}

// Writes the sums from[group][lane] + a step's products to to[group][lane]: 32 values of n_groups * n_lanes rows, which
// stay in registers, times one column.
template <typename T, int n_groups>
QCLS_INLINE void add_column(
    const step (&weights)[n_groups], const activation_block & x, const float * from, float * to) {
    // one sum for the first and one for the second 16 values: two chains of 4 instructions take less time than one of 8
    bytes words[n_groups][2];
    for (int g = 0; g < n_groups; ++g) {
        for (int half = 0; half < 2; ++half) {
            words[g][half] = T::has_minima ? all_words(half == 0 ? origin_bits : 0) : start_of_signed(x.start[half]);
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < n_quads; ++j) {
        int32_t quad;
        memcpy(&quad, x.q + 4 * j, sizeof(quad));
        const bytes values = all_words(quad);
        for (int g = 0; g < n_groups; ++g) {
            bytes & to = words[g][j / 4];
            to = T::has_minima ? add_products(to, weights[g].quads[j], values)
                               : add_signed_products(to, weights[g].quads[j], values);
        }
    }
    for (int g = 0; g < n_groups; ++g) {
        const step & w = weights[g];
        floats products;
        if constexpr (T::n_scales == 2) {
            products = scaled(words[g][0], w.scale[0], w.offset);
            products = product_plus(converted(words[g][1]), w.scale[1], products);
        } else {
            products = scaled(sum_of_words(words[g][0], words[g][1]), w.scale[0], w.offset);
        }
        floats sum = product_plus(products, all_floats(x.scale), load_floats(from + g * n_lanes));
        if constexpr (T::has_minima) {
            sum = minus_product(w.minimum, all_floats(x.scaled_sum), sum);
        }
        store_floats(to + g * n_lanes, sum);
    }
}

// Multiplies whole rows, n_groups * n_lanes of them, with up to max_byte_columns columns.
template <typename T, int n_groups>
void multiply_bytes(const uint8_t * values, const uint8_t * scales, int64_t n_values, const void * activations,
    int64_t x_stride, int64_t first_column, int64_t n_columns, float * out, int64_t out_stride) {
    const activation_block * x = (const activation_block *) activations + first_column;
    constexpr int n_rows = n_groups * n_lanes;
    alignas(64) static constexpr float zeros[n_rows] = {};
    alignas(64) float sums[max_byte_columns * n_rows];
    const int64_t n_steps = n_values / step_values;
    for (int64_t i = 0; i < n_steps; ++i) {
        const float * from = i == 0 ? zeros : sums;
        const int64_t from_stride = i == 0 ? 0 : n_rows;
        float * to = i == n_steps - 1 ? out : sums;
        const int64_t to_stride = i == n_steps - 1 ? out_stride : n_rows;
        step weights[n_groups];
        for (int g = 0; g < n_groups; ++g) {
            unpack_step<T>(values, scales, n_values, g, i, weights[g]);
            weights[g].offset = product(weights[g].scale[0], all_floats(-origin));
        }
        for (int64_t c = 0; c < n_columns; ++c) {
            const activation_block * block = x + i * x_stride + c;
            float * sum = to + c * to_stride;
            add_column<T, n_groups>(weights, *block, from + c * from_stride, sum);
            if (block->to_rest) {
                add_column<T, n_groups>(weights, block[block->to_rest], sum, sum);
            }
        }
    }
}

// The kernels for one group of rows and for groups_at_once, and how many columns they take.
struct column_kernels {
    using multiply_fn = void (*)(const uint8_t * values, const uint8_t * scales, int64_t n_values,
        const void * activations, int64_t x_stride, int64_t first_column, int64_t n_columns, float * out,
        int64_t out_stride);
    multiply_fn one_group;
    multiply_fn groups;
    int64_t max_columns;
};

template <typename T> column_kernels column_kernels_of([[maybe_unused]] precision of) {
#ifdef QCLS_HAS_TILES
    if (of == precision::tiles) {
        return {multiply_tiles<T, 1>, multiply_tiles<T, groups_at_once>, max_tile_columns};
    }
#endif
    return {multiply_bytes<T, 1>, multiply_bytes<T, groups_at_once>, max_byte_columns};
}

template <typename T>
void multiply(const uint8_t * laid_out, int64_t n_rows, int64_t n_values, int64_t first, int64_t end,
    precision of, const void * activations, int64_t n_columns, float * out, int64_t out_stride) {
    const column_kernels kernels = column_kernels_of<T>(of);
    const uint8_t * scales = laid_out + n_rows / n_lanes * group_value_bytes<T>(n_values);
    const int64_t n_parts = (n_columns + kernels.max_columns - 1) / kernels.max_columns;
    for (int64_t row = first; row < end;) {
        const int64_t group = row / n_lanes;
        const uint8_t * group_values = laid_out + group * group_value_bytes<T>(n_values);
        const uint8_t * group_scales = scales + group * group_scale_bytes<T>(n_values);
        const int64_t n_part_rows = std::min<int64_t>(groups_at_once * n_lanes, end - row);
        for (int64_t part = 0; part < n_parts; ++part) {
            const int64_t column = n_columns * part / n_parts;
            const int64_t n_part_columns = n_columns * (part + 1) / n_parts - column;
            const auto compute = n_part_rows == n_lanes ? kernels.one_group : kernels.groups;
            compute(group_values, group_scales, n_values, activations, n_columns, column, n_part_columns,
                out + column * out_stride + row, out_stride);
        }
        row += n_part_rows;
    }
}

QCLS_INLINE void quantise_block(const float * values, activation_block * out) {
    int32_t sums[2];
    out->scale = quantise_32(values, out->q, sums) / 127;
    out->scaled_sum = out->scale * (float) (sums[0] + sums[1]);
    out->start[0] = origin_bits - 128 * sums[0];
    out->start[1] = -128 * sums[1];
    out->to_rest = 0;
}

void quantise(const float * row, int64_t n_values, precision wanted, void * activations, int64_t column,
    int64_t n_columns) {
#ifdef QCLS_HAS_TILES
    if (wanted == precision::tiles) {
        for (int64_t i = 0; i < n_values / 32; ++i) {
            const float * values = row + i * 32;
            store_bytes((uint8_t *) activations + (i * n_columns + column) * tile_row_bytes,
                rounded(load_floats(values), load_floats(values + n_lanes)));
        }
        return;
    }
#endif
    activation_block * blocks = (activation_block *) activations + column;
    const int64_t to_rest = n_values / 32 * n_columns;
    float sum = 0;
    for (int64_t i = 0; i < n_values / 32; ++i) {
        quantise_block(row + i * 32, blocks + i * n_columns);
        sum += blocks[i * n_columns].scale;
    }
    if (wanted == precision::fast) {
        return;
    }
    const float least = wanted == precision::fine ? 0 : rest_above * sum / (float) (n_values / 32);
    for (int64_t i = 0; i < n_values / 32; ++i) {
        activation_block & block = blocks[i * n_columns];
        if (block.scale > least) {
            float rest[32];
            for (int k = 0; k < 32; ++k) {
                rest[k] = row[i * 32 + k] - block.scale * (float) block.q[k];
            }
            quantise_block(rest, &block + to_rest);
            block.to_rest = (int32_t) to_rest;
        }
    }
}

double multiply_registers(int64_t n) {
    bytes sums[qcls::n_register_sums] = {};
    bytes weights = all_bytes(3);
    const bytes x = all_bytes(5);
    for (int64_t i = 0; i < n; ++i) {
        for (bytes & sum : sums) {
            in_register(weights);  // the compiler must take it for changed
            sum = add_products(sum, weights, x);
        }
    }
    for (bytes & sum : sums) {
        in_register(sum);
    }
    return 2.0 * 4 * n_lanes * qcls::n_register_sums * (double) n;
}

template <typename T> constexpr qcls::product_kernels kernels_of() {
    return {T::name, n_lanes, T::block_values, layout_size<T>, lay_out<T>, quantise, multiply<T>, multiply_registers};
}

constexpr qcls::product_kernels all_kernels[] = {
    kernels_of<q8_0>(), kernels_of<q4_0>(), kernels_of<q4_1>(), kernels_of<q5_0>(), kernels_of<q5_1>(),
    kernels_of<iq4_nl>(), kernels_of<iq4_xs>(), kernels_of<q4_k>(), kernels_of<q5_k>(), kernels_of<q6_k>(),
    kernels_of<q3_k>(),   kernels_of<iq3_s>(),  kernels_of<mxfp4>(), kernels_of<nvfp4>(),
};

}  // namespace

extern "C" const qcls::product_kernels * qcls_product_kernels(const char * type) {
    for (const qcls::product_kernels & kernels : all_kernels) {
        if (strcmp(kernels.type, type) == 0) {
            return &kernels;
        }
    }
    return nullptr;
}

#else

extern "C" const qcls::product_kernels * qcls_product_kernels(const char *) { return nullptr; }

#endif

extern "C" bool qcls_has_tiles() {
    static const bool has = grants_tiles();
    return has;
}
