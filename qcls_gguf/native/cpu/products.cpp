#include "products.h"

#include "weight_types.h"

#include <algorithm>

#ifdef QCLS_HAS_PRODUCTS

namespace {

using qcls::activation_block;

constexpr float rest_above = 1.5f;      // times the mean scale; README.md says what other values cost and gain
constexpr int max_tile_columns = 128;  // their sums stay in the L1 cache
constexpr int steps_ahead = 8;         // how far laid out weights are prefetched

constexpr int bytes_ahead = 288;       // how far rows of the file are prefetched while they are laid out

template <typename T> constexpr int64_t step_bytes = T::n_bits * step_values / 8 * n_lanes;
template <typename T> constexpr int64_t block_scale_bytes = (2 * T::n_halves + T::n_small) * n_lanes;

template <typename T> int64_t group_value_bytes(int64_t n_values) { return n_values / step_values * step_bytes<T>; }
template <typename T> int64_t group_scale_bytes(int64_t n_values) {
    return n_values / T::block_values * block_scale_bytes<T>;
}

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

// Multiplies whole rows, n_groups * n_lanes of them, with the columns of a tile.
template <typename T, int n_groups>
void multiply_tile(const uint8_t * values, const uint8_t * scales, int64_t n_values, const activation_block * x,
    int64_t x_stride, int64_t n_columns, float * out, int64_t out_stride) {
    constexpr int n_tile_rows = n_groups * n_lanes;
    alignas(64) static constexpr float zeros[n_tile_rows] = {};
    alignas(64) float sums[max_tile_columns * n_tile_rows];
    constexpr int n_parts = T::block_values / step_values;
    const int64_t group_values = group_value_bytes<T>(n_values);
    const int64_t group_scales = group_scale_bytes<T>(n_values);
    const int64_t n_steps = n_values / step_values;
    for (int64_t i = 0; i < n_steps; ++i) {
        const float * from = i == 0 ? zeros : sums;
        const int64_t from_stride = i == 0 ? 0 : n_tile_rows;
        float * to = i == n_steps - 1 ? out : sums;
        const int64_t to_stride = i == n_steps - 1 ? out_stride : n_tile_rows;
        step weights[n_groups];
        for (int g = 0; g < n_groups; ++g) {
            const uint8_t * block_scales = scales + g * group_scales + i / n_parts * block_scale_bytes<T>;
            const uint8_t * at = values + g * group_values + i * step_bytes<T>;
            for (int64_t k = 0; k < step_bytes<T>; k += 64) {
                __builtin_prefetch(at + steps_ahead * step_bytes<T> + k);
            }
            T::unpack(at, block_scales, (int) (i % n_parts), weights[g]);
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

template <typename T>
void multiply(const uint8_t * laid_out, int64_t n_rows, int64_t n_values, int64_t first, int64_t end,
    const activation_block * activations, int64_t n_columns, float * out, int64_t out_stride) {
    const uint8_t * scales = laid_out + n_rows / n_lanes * group_value_bytes<T>(n_values);
    const int64_t n_tiles = (n_columns + max_tile_columns - 1) / max_tile_columns;
    for (int64_t row = first; row < end;) {
        const int64_t group = row / n_lanes;
        const uint8_t * group_values = laid_out + group * group_value_bytes<T>(n_values);
        const uint8_t * group_scales = scales + group * group_scale_bytes<T>(n_values);
        const int64_t n_tile_rows = std::min<int64_t>(groups_at_once * n_lanes, end - row);
        for (int64_t tile = 0; tile < n_tiles; ++tile) {
            const int64_t column = n_columns * tile / n_tiles;
            const int64_t n_tile_columns = n_columns * (tile + 1) / n_tiles - column;
            const auto compute = n_tile_rows == n_lanes ? multiply_tile<T, 1> : multiply_tile<T, groups_at_once>;
            compute(group_values, group_scales, n_values, activations + column, n_columns, n_tile_columns,
                out + column * out_stride + row, out_stride);
        }
        row += n_tile_rows;
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

void quantise(const float * row, int64_t n_values, qcls::precision wanted, activation_block * blocks,
    activation_block * rests, int64_t stride) {
    float sum = 0;
    for (int64_t i = 0; i < n_values / 32; ++i) {
        quantise_block(row + i * 32, blocks + i * stride);
        sum += blocks[i * stride].scale;
    }
    if (wanted == qcls::precision::fast) {
        return;
    }
    const float least = wanted == qcls::precision::fine ? 0 : rest_above * sum / (float) (n_values / 32);
    for (int64_t i = 0; i < n_values / 32; ++i) {
        activation_block & block = blocks[i * stride];
        if (block.scale > least) {
            float rest[32];
            for (int k = 0; k < 32; ++k) {
                rest[k] = row[i * 32 + k] - block.scale * (float) block.q[k];
            }
            quantise_block(rest, rests + i * stride);
            block.to_rest = (int32_t) (rests + i * stride - &block);
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
