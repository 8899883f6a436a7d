// Matrix products of quantised weights with 2 to a few hundred columns, for tensor cores without asynchronous copies (7.5).
//
// dst (n_rows, n_cols) = x (n_rows, n_k) · y (n_k, n_cols). A warp owns RG*8 rows and J columns. Its weights go from VRAM
// straight to the registers that the tensor cores read; only the activations pass through shared memory, in the order
// in which lanes want them. Blocks take equal shares of all (tile, K); whoever comes last at a tile adds its parts.
#pragma once

#include "mmq_direct_launch.h"
#include "mmq_weights.cuh"

namespace mmq_direct {

struct matrix {
    const char * x;    // n_rows rows of stride_row bytes
    float * dst;       // column-major, n_rows each
    int tile_end;      // tiles of this matrix and of those before it
    int n_rows;
    int stride_dst;
};

struct args {
    matrix m[MAX_MATRICES];
    activations y;
    float * partial;         // (2*gridDim.x, J*rows) sums of tiles that several blocks share
    unsigned int * arrived;  // (n_tiles) zero before and after
    int stride_row;          // bytes
    int n_kblocks;           // K / K_BLOCK
    int n_cols;
    int n_col_tiles;
    int n_tiles;
};

static __device__ __forceinline__ void mma_first(int (&c)[2], const int a, const int b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
        : "=r"(c[0]), "=r"(c[1]) : "r"(a), "r"(b), "r"(MAGIC_BITS), "r"(MAGIC_BITS));
}

static __device__ __forceinline__ void mma_next(int (&c)[2], const int a, const int b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c[0]), "+r"(c[1]) : "r"(a), "r"(b));
}

static __device__ __forceinline__ void mma_half(float (&c0)[2], float (&c1)[2], const int a0, const int a1, const int b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c0[0]), "+f"(c0[1]), "+f"(c1[0]), "+f"(c1[1]) : "r"(a0), "r"(a1), "r"(b));
}

template <ggml_type type, int J, int RG, int WARPS> constexpr size_t smem_bytes() {
    return 2*J/8*GROUP_BYTES + WARPS*weights<type, RG, false>::SMEM_BYTES;
}

// With glu, half of a block's warps multiply by the gate's rows and half by the same rows of up; dst is silu(gate)*up.
template <ggml_type type, int J, int RG, int WARPS, int BLOCKS, bool glu>
__global__ __launch_bounds__(32*WARPS, BLOCKS) void mul_mat(const args g) {
#if defined(TURING_MMA_AVAILABLE) && !defined(CP_ASYNC_AVAILABLE)
    // Where registers are too scarce for it, late loads cost less than spills.
    constexpr bool EARLY = type == GGML_TYPE_Q4_K ? J <= 104 : type == GGML_TYPE_Q8_0 ? J <= 48 : true;
    using W = weights<type, RG, EARLY>;
    constexpr int ROW_WARPS = glu ? WARPS/2 : WARPS;
    constexpr int ROWS = ROW_WARPS*RG*8;
    constexpr int NJ = J/8;
    constexpr int Y_VECTORS = NJ*GROUP_BYTES/16;
    constexpr int Y_LOADS = (Y_VECTORS + 32*WARPS - 1)/(32*WARPS);

    extern __shared__ int4 shared[];
    char * const tile_y = (char *) shared;
    char * const stage = tile_y + 2*NJ*GROUP_BYTES + threadIdx.y*W::SMEM_BYTES;
    __shared__ bool is_last;

    const int tid = threadIdx.y*32 + threadIdx.x;
    const int row_in_lanes = threadIdx.x / 4;
    const int q = threadIdx.x % 4;

    const int64_t n_units = (int64_t) g.n_tiles*g.n_kblocks;
    int unit = blockIdx.x*n_units/gridDim.x;
    const int unit_end = (blockIdx.x + 1)*n_units/gridDim.x;

    while (unit < unit_end) {
        const int tile = unit / g.n_kblocks;
        const int k0 = unit - tile*g.n_kblocks;
        const int k1 = min(g.n_kblocks, k0 + unit_end - unit);
        unit += k1 - k0;

        int row_tile = tile / g.n_col_tiles;
        const int col_tile = tile - row_tile*g.n_col_tiles;
        int i_m = glu ? threadIdx.y / ROW_WARPS : 0;
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
        const matrix m = g.m[i_m];
        const int row0 = row_tile*ROWS + threadIdx.y % ROW_WARPS*RG*8;
        const int row0_read = min(row0, m.n_rows - RG*8);  // a warp past the end repeats the last rows and drops them

        float sum[NJ][RG][2] = {};
        int4 y_next[Y_LOADS];
        const char * py = g.y.y + ((size_t) 2*k0*g.y.n_groups + col_tile*NJ)*GROUP_BYTES;
        const auto fetch_y = [&]() {
#pragma unroll
            for (int l = 0; l < Y_LOADS; ++l) {
                const int i = l*32*WARPS + tid;
                if (Y_VECTORS % (32*WARPS) == 0 || i < Y_VECTORS) {
                    y_next[l] = ldg4<EARLY>(py + i*16);
                }
            }
        };
        const auto store_y = [&](const int buffer) {
#pragma unroll
            for (int l = 0; l < Y_LOADS; ++l) {
                const int i = l*32*WARPS + tid;
                if (Y_VECTORS % (32*WARPS) == 0 || i < Y_VECTORS) {
                    ((int4 *) (tile_y + buffer*NJ*GROUP_BYTES))[i] = y_next[l];
                }
            }
        };

        W w;
        fetch_y();
        w.start(m.x + (size_t) row0_read*g.stride_row + (size_t) k0*W::BLOCK_BYTES, g.stride_row, stage);
        store_y(0);
        __syncthreads();

        for (int k = k0; k < k1; ++k) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                w.open_step(h, k + 1 == k1, g.stride_row);
                if (h == 0 || k + 1 < k1) {
                    py += (size_t) g.y.n_groups*GROUP_BYTES;
                    fetch_y();
                }
                if (EARLY) {
                    __syncwarp();
                }
                const char * y = tile_y + h*NJ*GROUP_BYTES;
#pragma unroll
                for (int kb = 0; kb < K_STEP/32; ++kb) {
                    int a[RG][2];
                    float s[RG][W::N_SCALES], nb[RG][W::N_SCALES];
                    w.unpack(2*h + kb/2, kb % 2, a, s, nb);
#pragma unroll
                    for (int j = 0; j < NJ; ++j) {
                        const int2 b = *(const int2 *) (y + j*GROUP_BYTES + kb*256 + threadIdx.x*8);
                        const float2 dy = *(const float2 *) (y + j*GROUP_BYTES + GROUP_SCALES + kb*32 + q*8);
#pragma unroll
                        for (int r = 0; r < RG; ++r) {
                            float v[2];
                            int c[2];
                            mma_first(c, a[r][0], b.x);
                            if constexpr (W::N_SCALES == 1) {
                                mma_next(c, a[r][1], b.y);
#pragma unroll
                                for (int l = 0; l < 2; ++l) {
                                    v[l] = fmaf(__int_as_float(c[l]), s[r][0], nb[r][0]);
                                }
                            } else {
                                int c1[2];
                                mma_first(c1, a[r][1], b.y);
#pragma unroll
                                for (int l = 0; l < 2; ++l) {
                                    v[l] = fmaf(__int_as_float(c[l]), s[r][0], nb[r][0]);
                                    v[l] += fmaf(__int_as_float(c1[l]), s[r][1], nb[r][1]);
                                }
                            }
                            sum[j][r][0] = fmaf(v[0], dy.x, sum[j][r][0]);
                            sum[j][r][1] = fmaf(v[1], dy.y, sum[j][r][1]);
                        }
                    }
                }
                if constexpr (W::HAS_MIN) {
                    int am[RG];
#pragma unroll
                    for (int r = 0; r < RG; ++r) {
                        am[r] = w.min_fragment(r, h);
                    }
#pragma unroll
                    for (int j = 0; j < NJ; ++j) {
                        const int b = *(const int *) (y + j*GROUP_BYTES + GROUP_SUMS + row_in_lanes*8 + (q % 2)*4);
#pragma unroll
                        for (int r = 0; r < RG; r += 2) {
                            mma_half(sum[j][r], sum[j][r + 1], am[r], am[r + 1], b);
                        }
                    }
                }
                store_y(1 - h);
                __syncthreads();
            }
        }

        if (k1 - k0 < g.n_kblocks) {
            // Several blocks share the tile: the last to come adds the parts in the order of K, whoever that is.
            constexpr int PART = NJ*RG*2*32*WARPS;
            float * mine = g.partial + ((size_t) 2*blockIdx.x + (k0 == 0))*PART + tid;
#pragma unroll
            for (int j = 0; j < NJ; ++j) {
#pragma unroll
                for (int r = 0; r < RG; ++r) {
                    __stcg(mine + ((j*RG + r)*2 + 0)*32*WARPS, sum[j][r][0]);
                    __stcg(mine + ((j*RG + r)*2 + 1)*32*WARPS, sum[j][r][1]);
                }
            }
            __threadfence();
            __syncthreads();
            const int64_t first_unit = (int64_t) tile*g.n_kblocks;
            const int b_first = ((first_unit + 1)*gridDim.x - 1)/n_units;
            const int b_last = ((first_unit + g.n_kblocks)*gridDim.x - 1)/n_units;
            if (tid == 0) {
                is_last = atomicInc(g.arrived + tile, b_last - b_first) == (unsigned) (b_last - b_first);
            }
            __syncthreads();
            if (!is_last) {
                continue;
            }
            __threadfence();
#pragma unroll
            for (int j = 0; j < NJ; ++j) {
#pragma unroll
                for (int r = 0; r < RG; ++r) {
                    sum[j][r][0] = sum[j][r][1] = 0.0f;
                }
            }
            for (int b = b_first; b <= b_last; ++b) {
                const float * part = g.partial + ((size_t) 2*b + (b == b_first))*PART + tid;
#pragma unroll
                for (int j = 0; j < NJ; ++j) {
#pragma unroll
                    for (int r = 0; r < RG; ++r) {
                        sum[j][r][0] += __ldcg(part + ((j*RG + r)*2 + 0)*32*WARPS);
                        sum[j][r][1] += __ldcg(part + ((j*RG + r)*2 + 1)*32*WARPS);
                    }
                }
            }
        }

        if constexpr (glu) {
            static_assert(RG % 2 == 0 && ROW_WARPS*NJ*2*2*32*sizeof(float) <= 2*NJ*GROUP_BYTES, "up does not fit");
            float * up = (float *) tile_y + (threadIdx.y % ROW_WARPS)*NJ*2*2*32 + threadIdx.x;
#pragma unroll
            for (int r0 = 0; r0 < RG; r0 += 2) {
                __syncthreads();
                if (i_m == 1) {
#pragma unroll
                    for (int i = 0; i < NJ*2*2; ++i) {
                        up[i*32] = sum[i/4][r0 + i/2 % 2][i % 2];
                    }
                }
                __syncthreads();
                if (i_m == 0) {
#pragma unroll
                    for (int i = 0; i < NJ*2*2; ++i) {
                        float & gate = sum[i/4][r0 + i/2 % 2][i % 2];
                        gate = gate/(1.0f + expf(-gate))*up[i*32];
                    }
                }
            }
            __syncthreads();
            if (i_m == 1) {
                continue;
            }
        }

        if (row0 + RG*8 <= m.n_rows) {
#pragma unroll
            for (int j = 0; j < NJ; ++j) {
#pragma unroll
                for (int l = 0; l < 2; ++l) {
                    const int col = col_tile*J + j*8 + 2*q + l;
                    if (col < g.n_cols) {
#pragma unroll
                        for (int r = 0; r < RG; ++r) {
                            m.dst[(size_t) col*m.stride_dst + row0 + r*8 + row_in_lanes] = sum[j][r][l];
                        }
                    }
                }
            }
        }
    }
#else
    GGML_UNUSED(g);
    NO_DEVICE_CODE;
#endif // defined(TURING_MMA_AVAILABLE) && !defined(CP_ASYNC_AVAILABLE)
}

} // namespace mmq_direct
