// The launch of the kernels of one type of weights. Each type has a source file of its own: they compile side by side, and
// where code for another device is made from PTX, it is made for the types that a model has.
#pragma once

#include "mmq_direct_launch.h"
#include "mmq_direct.cuh"

#include <algorithm>

namespace mmq_direct {

// The shape of a kernel for J columns: 8*RG rows a warp, warps a block, blocks a multiprocessor. What a T4 has decides:
// 64 KiB of shared memory and 65,536 registers a multiprocessor, and 64 bytes a cycle of shared memory, which more rows
// a warp save.
template <ggml_type type, int J> struct shape {
    static constexpr int SHARED = 65536 - 64;
    static constexpr int RG = type == GGML_TYPE_Q6_K || (type == GGML_TYPE_Q8_0 && J > 88) ? 2 : 4;
    static constexpr int BLOCKS = J <= 64 && smem_bytes<type, J, RG, 4>() <= SHARED/2 ? 2 : 1;
    static constexpr int WARPS = BLOCKS == 2 ? 4 : 8;
    static_assert(smem_bytes<type, J, RG, WARPS>() <= SHARED, "too much shared memory for 7.5");
};

template <ggml_type type, int J, bool glu>
static void launch(ggml_backend_cuda_context & ctx, args & g, const product & p) {
    using S = shape<type, J>;
    constexpr int BLOCK_ROWS = S::WARPS*S::RG*8;
    constexpr int ROWS = glu ? BLOCK_ROWS/2 : BLOCK_ROWS;
    constexpr size_t smem = smem_bytes<type, J, S::RG, S::WARPS>();
    const auto kernel = mul_mat<type, J, S::RG, S::WARPS, S::BLOCKS, glu>;
    CUDA_SET_SHARED_MEMORY_LIMIT(kernel, smem);

    for (int i = 0; i < MAX_MATRICES; ++i) {
        if (i < (int) p.x.size()) {
            g.m[i].x = (const char *) p.x[i]->data;
            g.m[i].n_rows = p.x[i]->ne[1];
        }
        if (i < (int) p.dst.size()) {
            g.m[i].dst = (float *) p.dst[i]->data;
            g.m[i].stride_dst = p.dst[i]->nb[1]/sizeof(float);
            g.n_tiles += (p.x[i]->ne[1] + ROWS - 1)/ROWS*g.n_col_tiles;
        }
        g.m[i].tile_end = g.n_tiles;
    }
    const int n_slots = ggml_cuda_info().devices[ctx.device].nsm*S::BLOCKS;
    const int n_blocks = std::min<int64_t>(n_slots, (int64_t) g.n_tiles*g.n_kblocks);
    ggml_cuda_pool_alloc<float> partial(ctx.pool());
    if (g.n_tiles % n_blocks != 0) {
        g.partial = partial.alloc((size_t) 2*n_blocks*J*BLOCK_ROWS);
    }
    kernel<<<n_blocks, dim3(32, S::WARPS), smem, ctx.stream()>>>(g);
    CUDA_CHECK(cudaGetLastError());
}

template <ggml_type type, bool glu, int J = 8>
static void launch_columns(ggml_backend_cuda_context & ctx, args & g, const product & p) {
    if (columns_of_tile(type, g.n_cols) == J) {
        launch<type, J, glu>(ctx, g, p);
    } else if constexpr (J < max_columns_of_tile(type)) {
        launch_columns<type, glu, J + 8>(ctx, g, p);
    }
}

template <ggml_type type>
void launch_type(ggml_backend_cuda_context & ctx, args & g, const product & p) {
    p.glu ? launch_columns<type, true>(ctx, g, p) : launch_columns<type, false>(ctx, g, p);
}

} // namespace mmq_direct
