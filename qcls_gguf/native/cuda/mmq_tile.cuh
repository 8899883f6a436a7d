// What a block does with a tile besides multiplying: finding it, adding the parts of several blocks, combining gate and
// up, storing the result.
#pragma once

#include "mmq_shape.cuh"

namespace mmq_direct {

struct matrix {
    const char * x;    // n_rows rows of stride_row bytes
    float * dst;       // column-major, n_rows each
    int tile_end;      // the number of tiles of this matrix and of those before it
    int n_rows;
    int stride_dst;
};

struct args {
    matrix m[MAX_MATRICES];
    activations y;
    float * partial;         // (2*gridDim.x, J*rows) sums of tiles that several blocks share
    unsigned int * arrived;  // (n_tiles) counters, zero before and after a launch
    int stride_row;          // bytes
    int n_kblocks;           // K / K_BLOCK
    int n_cols;
    int n_col_tiles;
    int n_tiles;
    int n_units;             // the units of a block's work; a unit is a K_BLOCK of a tile
    int n_longer;            // so many of the first blocks have one unit more
    int4 start;              // MAGIC_BITS
};

// Units are numbered along K, then along tiles, and given to blocks in this order.
static __device__ __forceinline__ int first_unit_of_block(const args & g, const int block) {
    return block*g.n_units + min(block, g.n_longer);
}

static __device__ __forceinline__ int block_of_unit(const args & g, const int unit) {
    const int of_longer = g.n_longer*(g.n_units + 1);
    return unit < of_longer ? unit/(g.n_units + 1) : g.n_longer + (unit - of_longer)/g.n_units;
}

// The first of a warp's groups of 8 columns in its tile. If two warps halve an odd number of groups, both compute and
// store the middle one, with the same result.
template <typename S> static __device__ __forceinline__ int first_group() {
    return S::COLUMN_WARPS == 1 ? 0 : threadIdx.y % S::COLUMN_WARPS*(S::TILE_NJ - S::NJ);
}

// A warp's sums: groups of 8 columns, groups of 8 rows, two columns a lane.
template <typename S> using sums = float[S::NJ][S::RG][2];

// The part of a tile that a block multiplies, and the warp's rows in it.
template <typename S, bool glu> struct part {
    static constexpr int MATRIX_WARPS = glu ? S::WARPS/2 : S::WARPS;
    static constexpr int ROW_WARPS = MATRIX_WARPS/S::COLUMN_WARPS;
    static constexpr int ROWS = ROW_WARPS*S::RG*8;

    int tile;
    int k0, k1;    // the range of K, in K_BLOCKs
    int i_m;       // the number of the matrix; with glu, gate is 0 and up is 1
    int row0;      // the warp's first row
    int col_tile;

    // The part that begins at a unit.
    __device__ __forceinline__ part(const args & g, const int unit, const int unit_end) {
        tile = unit / g.n_kblocks;
        k0 = unit - tile*g.n_kblocks;
        k1 = min(g.n_kblocks, k0 + unit_end - unit);
        int row_tile = tile / g.n_col_tiles;
        col_tile = tile - row_tile*g.n_col_tiles;
        i_m = glu ? threadIdx.y / MATRIX_WARPS : 0;
        if (!glu) {
#pragma unroll
            for (int i = 1; i < MAX_MATRICES; ++i) {
                if (tile >= g.m[i - 1].tile_end) {
                    i_m = i;
                }
            }
            if (i_m > 0) {
                row_tile -= g.m[i_m - 1].tile_end/g.n_col_tiles;
            }
        }
        row0 = row_tile*ROWS + threadIdx.y % MATRIX_WARPS/S::COLUMN_WARPS*S::RG*8;
    }
};

// Stores this block's part of a tile that several blocks share. The last block to arrive adds all parts, in the order
// of K, to `sum`. Returns whether this block is the last.
template <typename S>
static __device__ __forceinline__ bool add_parts(const args & g, const int tile, const int k0, sums<S> & sum) {
    constexpr int N = S::NJ*S::RG*2;  // sums of a lane
    constexpr int STRIDE = 32*S::WARPS;
    constexpr int PART = N*STRIDE;
    __shared__ bool is_last;
    const int tid = threadIdx.y*32 + threadIdx.x;
    float * mine = g.partial + ((size_t) 2*blockIdx.x + (k0 == 0))*PART + tid;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        __stcg(mine + i*STRIDE, sum[i/2/S::RG][i/2 % S::RG][i % 2]);
    }
    __threadfence();
    __syncthreads();
    const int b_first = block_of_unit(g, tile*g.n_kblocks);
    const int b_last = block_of_unit(g, (tile + 1)*g.n_kblocks - 1);
    if (tid == 0) {
        is_last = atomicInc(g.arrived + tile, b_last - b_first) == (unsigned) (b_last - b_first);
    }
    __syncthreads();
    if (!is_last) {
        return false;
    }
    __threadfence();
#pragma unroll
    for (int i = 0; i < N; ++i) {
        sum[i/2/S::RG][i/2 % S::RG][i % 2] = 0.0f;
    }
    for (int b = b_first; b <= b_last; ++b) {
        const float * part = g.partial + ((size_t) 2*b + (b == b_first))*PART + tid;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            sum[i/2/S::RG][i/2 % S::RG][i % 2] += __ldcg(part + i*STRIDE);
        }
    }
    return true;
}

// Computes silu(gate)*up: the warps of up pass their sums to the warps of gate, two groups of rows at a time.
template <typename S>
static __device__ __forceinline__ void join_glu(char * const shared, const bool is_up, sums<S> & sum) {
    constexpr int GATE_WARPS = S::WARPS/2;
    constexpr int N = S::NJ*2*2;
    static_assert(S::RG % 2 == 0 && GATE_WARPS*N*32*sizeof(float) <= 2*S::TILE_NJ*GROUP_BYTES, "up does not fit");
    float * up = (float *) shared + (threadIdx.y % GATE_WARPS)*N*32 + threadIdx.x;
#pragma unroll
    for (int r0 = 0; r0 < S::RG; r0 += 2) {
        __syncthreads();
        if (is_up) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                up[i*32] = sum[i/4][r0 + i/2 % 2][i % 2];
            }
        }
        __syncthreads();
        if (!is_up) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float & gate = sum[i/4][r0 + i/2 % 2][i % 2];
                gate = gate/(1.0f + expf(-gate))*up[i*32];
            }
        }
    }
    __syncthreads();
}

template <typename S>
static __device__ __forceinline__ void store(const matrix & m, const int row0, const int col0, const int n_cols, const sums<S> & sum) {
    if (row0 + S::RG*8 > m.n_rows) {
        return;
    }
#pragma unroll
    for (int j = 0; j < S::NJ; ++j) {
#pragma unroll
        for (int l = 0; l < 2; ++l) {
            const int col = col0 + j*8 + 2*(threadIdx.x % 4) + l;
            if (col < n_cols) {
#pragma unroll
                for (int r = 0; r < S::RG; ++r) {
                    m.dst[(size_t) col*m.stride_dst + row0 + r*8 + threadIdx.x/4] = sum[j][r][l];
                }
            }
        }
    }
}

} // namespace mmq_direct
