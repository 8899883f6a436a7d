// Products in the tile registers of AMX, in bf16. Only products.cpp includes this file.
//
// A tile holds 16 rows of 64 bytes. One instruction multiplies a tile of activations (a row: 32 values of a column) with
// a tile of weights (a row: 2 consecutive values of 16 rows of a matrix) and adds the products to a tile of sums (a row:
// those of a column with the 16 rows of the matrix). The tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
#ifndef QCLS_TILES_H
#define QCLS_TILES_H

#include "weight_types.h"

#include <algorithm>

#if QCLS_HAS_PRODUCTS == 512 && defined(__AVX512BF16__) && defined(__linux__)
#define QCLS_HAS_TILES

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int tile_rows = 16;
constexpr int tile_row_bytes = 64;
constexpr int tile_bytes = tile_rows * tile_row_bytes;
constexpr int max_tile_columns = 256;  // their sums and the unpacked weights take 64 KiB of stack
constexpr int chunk_steps = 8;         // that are unpacked at a time; README.md says what other numbers cost

// Whether the processor has tiles of bf16, and the system lets this process use them. That has to be asked for, is then
// granted to all threads and to processes that are forked, and is refused by systems before Linux 5.16, by some
// containers and if a thread's own stack for signals is too small for tiles (Linux's Documentation/arch/x86/xstate.rst).
bool grants_tiles() {
    constexpr unsigned bf16_and_tiles = 1u << 22 | 1u << 24;
    constexpr long request_permission = 0x1023, tile_data = 18;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bf16_and_tiles) == bf16_and_tiles &&
        syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

// Instructions, not the compilers' functions: these need flags that no file may depend on, and the one of GCC up to 13.2
// that configures tiles passes 8 of the 64 bytes.

// Configures the tiles of this thread, and releases them. Callers have none that they need: functions may change tiles
// and their configuration, by the ABI for x86-64. Released, they cost a switch of threads nothing.
class tile_scope {
public:
    // n_columns: rows of the tiles of activations and sums, up to 16
    explicit tile_scope(int n_columns) {
        struct {
            uint8_t palette, start_row, reserved[14];
            uint16_t row_bytes[16];
            uint8_t rows[16];
        } shape = {};
        shape.palette = 1;
        for (int tile = 0; tile < 8; ++tile) {
            shape.row_bytes[tile] = tile_row_bytes;
            shape.rows[tile] = (uint8_t) (tile < 6 ? n_columns : tile_rows);
        }
        asm volatile("ldtilecfg %0" : : "m"(shape));
    }
    ~tile_scope() { asm volatile("tilerelease"); }
    tile_scope(const tile_scope &) = delete;
    tile_scope & operator=(const tile_scope &) = delete;
};

template <int tile> QCLS_INLINE void clear_tile() { asm volatile("tilezero %%tmm%c0" : : "i"(tile)); }
template <int tile> QCLS_INLINE void load_tile(const void * from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(tile) : "memory");
}
template <int tile> QCLS_INLINE void store_tile(void * to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(tile) : "memory");
}
template <int sums, int activations, int weights> QCLS_INLINE void add_tile_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(activations), "i"(weights));
}

// The sums of a tile of columns with n_groups groups of rows: the tiles `first` and, for a second group, the next.
template <int first, int n_groups> QCLS_INLINE void load_sums(const float * from, int64_t row_bytes) {
    load_tile<first>(from, row_bytes);
    if constexpr (n_groups == 2) {
        load_tile<first + 1>(from + n_lanes, row_bytes);
    }
}
template <int first, int n_groups> QCLS_INLINE void store_sums(float * to, int64_t row_bytes) {
    store_tile<first>(to, row_bytes);
    if constexpr (n_groups == 2) {
        store_tile<first + 1>(to + n_lanes, row_bytes);
    }
}

QCLS_INLINE bytes bits_of(floats a) { return _mm512_castps_si512(a); }
// The values of `low` and then those of `high`, rounded to bf16.
QCLS_INLINE bytes rounded(floats low, floats high) { return (bytes) _mm512_cvtne2ps_pbh(high, low); }
// In each lane's lower half a value of `even`, in its upper half one of `odd`: the upper halves of their bits.
QCLS_INLINE bytes cut_off(floats even, floats odd) {
    return merged(words_shifted_right<16>(bits_of(even)), bits_of(odd), all_words((int32_t) 0xffff0000));
}

// Writes 32 values of n_lanes rows as a tile of weights.
template <typename T> QCLS_INLINE void write_tile(const step & weights, uint8_t * to) {
    // Values are cut off and not rounded, which takes fewer instructions. They lose ln 2 / 256 of themselves on average,
    // which their scale makes up for. Scales keep 22 bits, so that products with whole numbers are exact: 0 stays 0.
    const floats larger = all_floats(1 + 0.69f / 256);
    floats scale[2];
    floats offset[2];
    for (int i = 0; i < T::n_scales; ++i) {
        scale[i] = same_bits(masked(bits_of(product(weights.scale[i], larger)), all_words(-4)));
        if constexpr (T::has_minima) {
            const floats minimum = product(weights.minimum, larger);
            offset[i] = minus_product(scale[i], all_floats(256), product(minimum, all_floats(-1)));
        } else {
            offset[i] = product(scale[i], all_floats(-256 - zero));
        }
    }
    // a code in the upper 8 bits of the fraction of 256 makes the float 256 + code
    const bytes bits_of_256 = all_words(0x43800000);
    const bytes code_bits = all_words(0xff << 15);
#pragma GCC unroll 8
    for (int j = 0; j < n_quads; ++j) {
        const int i = T::n_scales == 2 ? j / 4 : 0;
        const auto value = [&](bytes shifted) __attribute__((always_inline)) {
            return product_plus(same_bits(merged(bits_of_256, shifted, code_bits)), scale[i], offset[i]);
        };
        const bytes quad = weights.quads[j];
        const floats first = value(words_shifted_left<15>(quad));
        const floats second = value(words_shifted_left<7>(quad));
        const floats third = value(words_shifted_right<1>(quad));
        const floats fourth = value(words_shifted_right<9>(quad));
        store_bytes(to + 128 * j, cut_off(first, second));
        store_bytes(to + 128 * j + 64, cut_off(third, fourth));
    }
}

// Multiplies whole rows, n_groups * n_lanes of them, with up to max_tile_columns columns. A chunk of weights is
// multiplied with two tiles of columns at a time; between these products the next chunk is unpacked, because vectors and
// tiles are computed at once. The last tile of columns ends with the last column, and so may begin within the one before
// it: what both compute is the same.
template <typename T, int n_groups>
void multiply_tiles(const uint8_t * values, const uint8_t * scales, int64_t n_values, const void * activations,
    int64_t x_stride, int64_t first_column, int64_t n_columns, float * out, int64_t out_stride) {
    constexpr int64_t sum_bytes = n_groups * tile_row_bytes;  // of a column
    alignas(64) uint8_t unpacked[2][chunk_steps][n_groups][tile_bytes];
    alignas(64) float sums[max_tile_columns / tile_rows][tile_rows][n_groups * n_lanes];
    const int n_tile_columns = (int) std::min<int64_t>(tile_rows, n_columns);
    const tile_scope scope(n_tile_columns);
    const int64_t n_tiles = (n_columns + tile_rows - 1) / tile_rows;
    const int64_t n_pairs = (n_tiles + 1) / 2;
    const auto column_of = [&](int64_t tile) { return std::min(tile * tile_rows, n_columns - n_tile_columns); };
    const int64_t n_steps = n_values / step_values;
    const int64_t n_chunks = (n_steps + chunk_steps - 1) / chunk_steps;
    const auto steps_of = [&](int64_t chunk) {
        return std::max<int64_t>(0, std::min<int64_t>(chunk_steps, n_steps - chunk * chunk_steps));
    };
    // unpacks number k of a chunk's tiles of weights
    const auto unpack = [&](int64_t chunk, int64_t k) __attribute__((always_inline)) {
        const int64_t i = k / n_groups;
        const int64_t g = k % n_groups;
        step weights;
        unpack_step<T>(values, scales, n_values, g, chunk * chunk_steps + i, weights);
        write_tile<T>(weights, unpacked[chunk % 2][i][g]);
    };
    for (int64_t k = 0; k < n_groups * steps_of(0); ++k) {
        unpack(0, k);
    }
    for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
        const auto & weights = unpacked[chunk % 2];
        const int64_t n = steps_of(chunk);
        const int64_t n_to_unpack = n_groups * steps_of(chunk + 1);
        int64_t n_unpacked = 0;
        int64_t turn = 0;
        for (int64_t tile = 0; tile < n_tiles; tile += 2) {
            const bool are_two = tile + 1 < n_tiles;
            const int64_t column = column_of(tile);
            const int64_t next_column = column_of(tile + are_two);
            if (chunk == 0) {
                clear_tile<0>();
                clear_tile<1>();
                clear_tile<2>();
                clear_tile<3>();
            } else {
                load_sums<0, n_groups>(sums[tile][0], sum_bytes);
                if (are_two) {
                    load_sums<2, n_groups>(sums[tile + 1][0], sum_bytes);
                }
            }
            for (int64_t i = 0; i < n; ++i) {
                const int64_t block = (chunk * chunk_steps + i) * x_stride + first_column;
                const uint8_t * at = (const uint8_t *) activations + block * tile_row_bytes;
                load_tile<6>(weights[i][0], tile_row_bytes);
                load_tile<4>(at + column * tile_row_bytes, tile_row_bytes);
                add_tile_products<0, 4, 6>();
                if constexpr (n_groups == 2) {
                    load_tile<7>(weights[i][1], tile_row_bytes);
                    add_tile_products<1, 4, 7>();
                }
                if (are_two) {
                    load_tile<5>(at + next_column * tile_row_bytes, tile_row_bytes);
                    add_tile_products<2, 5, 6>();
                    if constexpr (n_groups == 2) {
                        add_tile_products<3, 5, 7>();
                    }
                }
                for (++turn; n_unpacked < n_to_unpack * turn / (n * n_pairs); ++n_unpacked) {
                    unpack(chunk + 1, n_unpacked);
                }
            }
            const bool is_last = chunk == n_chunks - 1;
            const int64_t row_bytes = is_last ? out_stride * (int64_t) sizeof(float) : sum_bytes;
            store_sums<0, n_groups>(is_last ? out + column * out_stride : sums[tile][0], row_bytes);
            if (are_two) {
                store_sums<2, n_groups>(is_last ? out + next_column * out_stride : sums[tile + 1][0], row_bytes);
            }
        }
    }
}

}  // namespace

#else

namespace {

bool grants_tiles() { return false; }

}  // namespace

#endif
#endif
