// Matrix products of quantised weights with 2 to a few hundred columns, on int8 tensor cores.
//
// dst (n_rows, n_cols) = x (n_rows, n_k) · y (n_k, n_cols). A warp computes RG*8 rows and J columns. Its weights are
// fetched ahead, to the registers that the tensor cores read or to shared memory that only this warp uses. Activations
// pass through shared memory of the block, in the order in which lanes read them. Blocks take equal shares of all
// (tile, K); the last block to arrive at a tile adds the tile's parts.
#pragma once

#include "mmq_tile.cuh"

namespace mmq_direct {

// Activations of K_STEP values and J columns in shared memory: two buffers, one of which is filled while the other is
// read.
template <typename S> struct activation_buffers {
    static constexpr bool ASYNC = S::GENERATION == generation::AMPERE;
    static constexpr int BYTES = S::TILE_NJ*GROUP_BYTES;
    static constexpr int THREADS = 32*S::WARPS;
    static constexpr int VECTORS = BYTES/16;
    static constexpr int LOADS = (VECTORS + THREADS - 1)/THREADS;

    char * tile;
    const char * from;
    int4 next[ASYNC ? 1 : LOADS];

    template <typename F> static __device__ __forceinline__ void for_each_vector(const F & f) {
        const int tid = threadIdx.y*32 + threadIdx.x;
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int i = l*THREADS + tid;
            if (VECTORS % THREADS == 0 || i < VECTORS) {
                f(l, i);
            }
        }
    }
    // Begins to fetch the next activations for a buffer.
    __device__ __forceinline__ void fetch(const int buffer) {
        for_each_vector([&](const int l, const int i) {
            if constexpr (ASYNC) {
                copy_async<16>(shared_address(tile) + buffer*BYTES + i*16, from + i*16);
            } else {
                next[l] = ldg4<S::EARLY>(from + i*16);
            }
        });
    }
    // Stores fetched activations into a buffer. Asynchronous copies have written theirs already.
    __device__ __forceinline__ void store(const int buffer) {
        if constexpr (!ASYNC) {
            for_each_vector([&](const int l, const int i) { ((int4 *) (tile + buffer*BYTES))[i] = next[l]; });
        }
    }
};

// Multiplies half h of a block with the activations in a buffer. Products of 32 values are multiplied by their weights'
// scales; those of 64 values together by the scale of the activations. MAGIC is subtracted once for these, before they
// are added: all but the last are rounded to the precision of MAGIC times a scale, about half a unit of an integer sum.
template <typename S>
static __device__ __forceinline__ void multiply_step(typename S::W & w, const int h, const char * y, const int4 & start, sums<S> & sum) {
    constexpr int RG = S::RG;
    constexpr int N_SCALES = S::W::N_SCALES;
    constexpr int GROUPS = GROUPS_OF_PRODUCT<S::GENERATION>;
    static_assert(K_SCALE == 2*32, "a pair of products has one scale of activations");
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int pair = 0; pair < K_STEP/K_SCALE; ++pair) {
        int a[2][RG][2];
        float s[2][RG][N_SCALES];
        float minus_start[RG] = {};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            w.unpack(h, pair, n, a[n], s[n]);
#pragma unroll
            for (int r = 0; r < RG; ++r) {
#pragma unroll
                for (int i = 0; i < N_SCALES; ++i) {
                    minus_start[r] = fmaf(-MAGIC, s[n][r][i], minus_start[r]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < S::NJ; ++j) {
            const int4 both = *(const int4 *) (y + j*GROUP_BYTES + pair*512 + threadIdx.x*16);
            const int2 b[2] = {make_int2(both.x, both.y), make_int2(both.z, both.w)};
            const float2 dy = *(const float2 *) (y + j*GROUP_BYTES + GROUP_SCALES + pair*32 + q*8);  // of two columns
#pragma unroll
            for (int r = 0; r < RG; r += GROUPS) {
                int c[2][N_SCALES][GROUPS][2];
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    multiply_32<S::GENERATION, S::W::IS_UNSIGNED, N_SCALES>(c[n], a[n] + r, b[n], start);
                }
#pragma unroll
                for (int g = 0; g < GROUPS; ++g) {
                    float v[2] = {minus_start[r + g], minus_start[r + g]};
#pragma unroll
                    for (int i = 0; i < 2*N_SCALES; ++i) {
#pragma unroll
                        for (int l = 0; l < 2; ++l) {
                            v[l] = fmaf(__int_as_float(c[i/N_SCALES][i % N_SCALES][g][l]), s[i/N_SCALES][r + g][i % N_SCALES], v[l]);
                        }
                    }
                    sum[j][r + g][0] = fmaf(v[0], dy.x, sum[j][r + g][0]);
                    sum[j][r + g][1] = fmaf(v[1], dy.y, sum[j][r + g][1]);
                }
            }
        }
    }
    if constexpr (S::W::HAS_MIN) {
        int am[RG];
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            am[r] = w.min_fragment(r, h);
        }
#pragma unroll
        for (int j = 0; j < S::NJ; ++j) {
            const int b = *(const int *) (y + j*GROUP_BYTES + GROUP_SUMS + threadIdx.x/4*8 + (q % 2)*4);
#pragma unroll
            for (int r = 0; r < RG; r += 2) {
                mma_half(sum[j][r], sum[j][r + 1], am[r], am[r + 1], b);
            }
        }
    }
}

// Computes the products of a part of a tile, in code for 7.5.
template <typename S, bool glu>
static __device__ __forceinline__ void multiply_loaded(const args & g, const part<S, glu> & p, const matrix & m, char * const tile_y,
        char * const stage, const int4 & start, sums<S> & sum) {
    const int row0 = min(p.row0, m.n_rows - S::RG*8);  // a warp past the end computes the last rows and discards them
    activation_buffers<S> y;
    y.tile = tile_y;
    y.from = g.y.y + ((size_t) 2*p.k0*g.y.n_groups + p.col_tile*S::TILE_NJ)*GROUP_BYTES;
    y.fetch(0);
    typename S::W w;
    if constexpr (S::LANES) {
        w.start(m.x, row0, p.k0, g.stride_row, stage);
    } else {
        w.start(m.x + (size_t) row0*g.stride_row + (size_t) p.k0*S::W::BLOCK_BYTES, g.stride_row, stage);
    }
    y.store(0);
    __syncthreads();

    const auto step = [&](const int k, const int h) {
        w.open_step(h, k + 1 == p.k1, g.stride_row);
        if (h == 0 || k + 1 < p.k1) {
            y.from += (size_t) g.y.n_groups*GROUP_BYTES;
            y.fetch(1 - h);
        }
        if constexpr (S::EARLY) {
            __syncwarp();
        }
        multiply_step<S>(w, h, tile_y + (h*S::TILE_NJ + first_group<S>())*GROUP_BYTES, start, sum);
        y.store(1 - h);
        __syncthreads();
    };
    for (int k = p.k0; k < p.k1; ++k) {
        if constexpr (S::SHORT_LOOP) {
#pragma unroll 1
            for (int h = 0; h < 2; ++h) {
                step(k, h);
            }
        } else {
            step(k, 0);
            step(k, 1);
        }
    }
}

// The same in code for 8.0 and newer. Each step requests the activations of the next step, then the weights of the step
// after that.
template <typename S, bool glu>
static __device__ __forceinline__ void multiply_copied(const args & g, const part<S, glu> & p, const matrix & m, char * const tile_y,
        char * const stage, const int4 & start, sums<S> & sum) {
    const int row0 = min(p.row0, m.n_rows - S::RG*8);  // a warp past the end computes the last rows and discards them
    typename S::W w;
    w.start(m.x + (size_t) row0*g.stride_row + (size_t) p.k0*S::W::BLOCK_BYTES, g.stride_row, stage, p.k1 - p.k0);
    activation_buffers<S> y;
    y.tile = tile_y;
    y.from = g.y.y + ((size_t) 2*p.k0*g.y.n_groups + p.col_tile*S::TILE_NJ)*GROUP_BYTES;
    y.fetch(0);
    close_copy_group();
    ask_next(w, 1);
    close_copy_group();
    wait_for_copies_but_last_group();
    __syncthreads();

    for (int k = p.k0; k < p.k1; ++k) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (h == 0 || k + 1 < p.k1) {
                y.from += (size_t) g.y.n_groups*GROUP_BYTES;
                y.fetch(1 - h);
            }
            close_copy_group();
            ask_next(w, h);
            close_copy_group();
            w.open_step(h);
            multiply_step<S>(w, h, tile_y + (h*S::TILE_NJ + first_group<S>())*GROUP_BYTES, start, sum);
            wait_for_copies_but_last_group();
            __syncthreads();
        }
    }
}

// Computes a block's share. With glu, half of its warps multiply with rows of gate and half with the same rows of up;
// dst is silu(gate)*up.
template <typename S, bool glu> static __device__ __forceinline__ void multiply_share(const args & g) {
    extern __shared__ int4 shared[];
    char * const tile_y = (char *) shared;
    char * const stage = tile_y + 2*S::TILE_NJ*GROUP_BYTES + threadIdx.y*S::W::SMEM_BYTES;
    int4 start = make_int4(MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS);
    if constexpr (S::START_IS_ARGUMENT) {
        start = g.start;
        asm volatile("" : "+r"(start.x), "+r"(start.y), "+r"(start.z), "+r"(start.w));  // unknown to the compiler
    }

    int unit = first_unit_of_block(g, blockIdx.x);
    const int unit_end = first_unit_of_block(g, blockIdx.x + 1);
    while (unit < unit_end) {
        const part<S, glu> p(g, unit, unit_end);
        unit += p.k1 - p.k0;
        const matrix m = g.m[p.i_m];

        sums<S> sum = {};
        if constexpr (S::GENERATION == generation::AMPERE) {
            multiply_copied<S, glu>(g, p, m, tile_y, stage, start, sum);
        } else {
            multiply_loaded<S, glu>(g, p, m, tile_y, stage, start, sum);
        }
        if (p.k1 - p.k0 < g.n_kblocks && !add_parts<S>(g, p.tile, p.k0, sum)) {
            continue;
        }
        if constexpr (glu) {
            join_glu<S>(tile_y, p.i_m == 1, sum);
            if (p.i_m == 1) {
                continue;
            }
        }
        store<S>(m, p.row0, p.col_tile*S::TILE_NJ*8 + first_group<S>()*8, g.n_cols, sum);
    }
}

template <typename S, bool glu> __global__ __launch_bounds__(32*S::WARPS, S::BLOCKS) void mul_mat(const args g) {
#if defined(TURING_MMA_AVAILABLE)
    if constexpr (S::GENERATION == THIS_GENERATION) {
        ggml_cuda_pdl_lc();  // on 9.0 and newer, lets the next kernel be set up while this one runs
        multiply_share<S, glu>(g);
        return;
    }
#endif // defined(TURING_MMA_AVAILABLE)
    GGML_UNUSED(g);
    NO_DEVICE_CODE;
}

} // namespace mmq_direct
