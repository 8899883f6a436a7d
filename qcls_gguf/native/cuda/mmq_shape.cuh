// The shapes of the direct matrix kernels: rows and columns of a warp, warps of a block, blocks of a multiprocessor.
#pragma once

#include "mmq_copied_weights.cuh"
#include "mmq_direct_launch.h"
#include "mmq_lane_weights.cuh"
#include "mmq_slices.cuh"

#include <type_traits>

namespace mmq_direct {

// The shape of a kernel for J columns. A warp has RG groups of 8 rows. lanes: weights are in lane order. halves: two
// warps have the same rows and half of the columns each, so a tile has half as many rows.
template <ggml_type type, int J, generation gen, bool short_loop, bool lanes, bool halves = false> struct shape;

template <ggml_type type, int J, bool short_loop, bool lanes, bool halves>
struct shape<type, J, generation::TURING, short_loop, lanes, halves> {
    static constexpr generation GENERATION = generation::TURING;
    static constexpr bool LANES = lanes;
    static constexpr bool SHORT_LOOP = short_loop;
    static constexpr int TILE_NJ = J/8;  // groups of 8 columns of a tile, and of a warp
    static constexpr int COLUMN_WARPS = halves ? 2 : 1;
    static constexpr int NJ = (TILE_NJ + COLUMN_WARPS - 1)/COLUMN_WARPS;
    // The values below are chosen for a T4: a multiprocessor has 64 KiB of shared memory, 65,536 registers, and 64
    // bytes of shared memory a cycle; the more rows a warp has, the fewer bytes it reads.
    static constexpr int SHARED = 65536 - 64 - table_bytes(type);
    // Up to so many columns, registers hold 32 rows. In lane order 32 rows of Q8_0 fit at every size, but cards that
    // need no short loops have 128 bytes a cycle. There tiles of half the rows are faster: their parts are smaller and
    // fewer.
    static constexpr int COLUMNS_OF_32_ROWS =
        type == GGML_TYPE_Q4_K ? 128 : has_scales_of_16(type) ? (lanes ? 72 : 0) : lanes && short_loop ? 128 : 88;
    template <int rows> using weights_of =
        std::conditional_t<lanes, lane_weights<type, rows, true, short_loop>, weights<type, rows, true, short_loop>>;
    static constexpr bool FITS_32_ROWS = 2*TILE_NJ*GROUP_BYTES + 8*weights_of<4>::SMEM_BYTES <= SHARED;
    static constexpr int RG = J <= COLUMNS_OF_32_ROWS && FITS_32_ROWS ? 4 : 2;
    // If registers are too scarce for early loads, late loads cost less than spills.
    static constexpr bool EARLY = type == GGML_TYPE_Q4_K ? J <= 104 : has_scales_of_16(type) || lanes ? true : J <= 48;
    // The compiler would load the sums' start again for most products; in long loops it is faster to keep it in
    // registers.
    static constexpr bool START_IS_ARGUMENT = J >= 48;
    using W = std::conditional_t<lanes, lane_weights<type, RG, EARLY, short_loop>, weights<type, RG, EARLY, short_loop>>;
    static constexpr size_t smem_bytes(const int warps) { return 2*TILE_NJ*GROUP_BYTES + warps*W::SMEM_BYTES; }
    static constexpr int BLOCKS = J <= 64 && 2*(smem_bytes(4) + table_bytes(type)) <= 65536 - 64 ? 2 : 1;
    static constexpr int WARPS = BLOCKS == 2 ? 4 : 8;
    static constexpr size_t SMEM_BYTES = smem_bytes(WARPS);
    static_assert(SMEM_BYTES <= SHARED, "too much shared memory for 7.5");
};

template <ggml_type type, int J, bool short_loop> struct shape<type, J, generation::AMPERE, short_loop, false> {
    static constexpr generation GENERATION = generation::AMPERE;
    static constexpr bool SHORT_LOOP = false;
    static constexpr int TILE_NJ = J/8;
    static constexpr int COLUMN_WARPS = 1;
    static constexpr int NJ = TILE_NJ;
    // The fastest shapes tried on an H200 and an H100. With more warps, loads are waited for less; with more rows in a
    // block, activations are read less often; smaller blocks wait less for their slowest warp.
    static constexpr int RG = type == GGML_TYPE_Q8_0 && J >= 48 && J <= 88 ? 4 : 2;
    static constexpr bool PREFERS_4_WARPS = type == GGML_TYPE_Q3_K || type == GGML_TYPE_IQ4_XS;
    static constexpr int COLUMNS_OF_4_WARPS =
        has_scales_of_16(type) ? 72 : type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q8_0 ? 40 : PREFERS_4_WARPS ? 112 : 64;
    static constexpr int WARPS = RG == 4 || J <= COLUMNS_OF_4_WARPS ? 4 : !has_scales_of_16(type) ? 6 : 8;
    static constexpr int BLOCKS = RG == 4 || WARPS == 6 ? 2 : WARPS == 8 ? 1 : has_scales_of_16(type) || J > 40 ? 3 : 4;
    static constexpr bool EARLY = false;
    static constexpr bool START_IS_ARGUMENT = true;
    using W = copied_weights<type, RG>;
    static constexpr size_t SMEM_BYTES = 2*NJ*GROUP_BYTES + WARPS*W::SMEM_BYTES;
    static_assert(SMEM_BYTES + table_bytes(type) <= 99*1024, "too much shared memory for a block of 8.6, 8.9 and 12.0");
};

} // namespace mmq_direct
