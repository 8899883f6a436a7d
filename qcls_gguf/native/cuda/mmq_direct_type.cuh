// The launch of the kernels for one type of weights. Each type has its own source file, so that files compile in
// parallel, and so that a driver that makes code from PTX does so only for the types that a model has.
#pragma once

#include "mmq_direct_launch.h"
#include "mmq_direct.cuh"

#include <algorithm>

namespace mmq_direct {

#ifdef __CUDA_ARCH_LIST__
// Whether code for any device of a generation is compiled.
template <int... archs> constexpr bool any_turing(std::integer_sequence<int, archs...>) {
    return ((archs >= GGML_CUDA_CC_TURING && archs < GGML_CUDA_CC_AMPERE) || ...);
}
template <int... archs> constexpr bool any_ampere(std::integer_sequence<int, archs...>) {
    return ((archs >= GGML_CUDA_CC_AMPERE) || ...);
}
constexpr bool HAS_TURING = any_turing(std::integer_sequence<int, __CUDA_ARCH_LIST__>());
constexpr bool HAS_AMPERE = any_ampere(std::integer_sequence<int, __CUDA_ARCH_LIST__>());
#else
constexpr bool HAS_TURING = true;
constexpr bool HAS_AMPERE = true;
#endif // __CUDA_ARCH_LIST__

// How many blocks a multiprocessor runs at once.
template <typename S, typename K> static int blocks_of_multiprocessor(const K kernel, const int device) {
    if (S::GENERATION == generation::TURING) {
        return S::BLOCKS;
    }
    static int found[GGML_CUDA_MAX_DEVICES] = {};  // 0: not determined yet
    if (found[device] == 0) {  // by device, because they differ in shared memory
        CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found[device], kernel, 32*S::WARPS, S::SMEM_BYTES));
        GGML_ASSERT(found[device] > 0);
    }
    return std::min(found[device], S::BLOCKS);
}

template <typename S, bool glu>
static void launch(ggml_backend_cuda_context & ctx, args & g, const product & p) {
    constexpr int ROWS = part<S, glu>::ROWS;
    static_assert(ROWS >= (glu ? LEAST_TILE_ROWS/2 : LEAST_TILE_ROWS), "more tiles than counted");
    const auto kernel = mul_mat<S, glu>;
    CUDA_SET_SHARED_MEMORY_LIMIT(kernel, S::SMEM_BYTES);

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
    const int nsm = ggml_cuda_info().devices[ctx.device].nsm;
    const int n_units = g.n_tiles*g.n_kblocks;
    int n_blocks = std::min(nsm*blocks_of_multiprocessor<S>(kernel, ctx.device), n_units);
    if (S::GENERATION == generation::AMPERE) {
        // If blocks have little to do, adding parts costs more than a second block on a multiprocessor gains.
        n_blocks = std::min(n_blocks, std::max(n_units/4, nsm));
    }
    if (const int n_parts = n_fixed_parts(ctx, p.x[0]); n_parts > 0) {
        n_blocks = g.n_tiles*n_parts;
    }
    g.n_units = n_units/n_blocks;
    g.n_longer = n_units % n_blocks;
    ggml_cuda_pool_alloc<float> partial(ctx.pool());
    if (g.n_tiles % n_blocks != 0) {
        g.partial = partial.alloc((size_t) 2*n_blocks*S::NJ*S::RG*2*32*S::WARPS);
    }
    kernel<<<n_blocks, dim3(32, S::WARPS), S::SMEM_BYTES, ctx.stream()>>>(g);
    CUDA_CHECK(cudaGetLastError());
}

template <ggml_type type, bool lanes, bool glu, int J>
static void launch_short_loop(ggml_backend_cuda_context & ctx, args & g, const product & p) {
    constexpr bool may_halve = type == GGML_TYPE_Q8_0 && lanes;
    constexpr bool always = may_halve && J >= LEAST_COLUMNS_OF_HALVES;
    if constexpr (may_halve && !always && J >= LEAST_COLUMNS_OF_HALVES_ON_MANY) {
        if (ggml_cuda_info().devices[ctx.device].nsm > FEW_MULTIPROCESSORS) {
            launch<shape<type, J, generation::TURING, true, lanes, true>, glu>(ctx, g, p);
            return;
        }
    }
    launch<shape<type, J, generation::TURING, true, lanes, always>, glu>(ctx, g, p);
}

template <ggml_type type, bool lanes, generation gen, bool glu, int J = 8>
static void launch_columns(ggml_backend_cuda_context & ctx, args & g, const product & p) {
    constexpr int NEXT = J >= 48 && !has_all_columns(type, gen) ? J + 16 : J + 8;
    const int columns = columns_of_tile(type, gen, g.n_cols);
    if (columns == J) {
        if constexpr (gen == generation::TURING && J >= least_columns_of_short_loop(type, lanes)) {
            if (has_short_loops(ctx)) {
                launch_short_loop<type, lanes, glu, J>(ctx, g, p);
                return;
            }
        }
        launch<shape<type, J, gen, false, lanes>, glu>(ctx, g, p);
    } else if constexpr (NEXT <= max_columns_of_tile(type, gen)) {
        launch_columns<type, lanes, gen, glu, NEXT>(ctx, g, p);
    } else {
        GGML_ABORT("no direct kernel of %s has tiles of %d columns; the widest has %d", ggml_type_name(type), columns, J);
    }
}

template <ggml_type type, bool lanes, generation gen>
static void launch_generation(ggml_backend_cuda_context & ctx, args & g, const product & p) {
    p.glu ? launch_columns<type, lanes, gen, true>(ctx, g, p) : launch_columns<type, lanes, gen, false>(ctx, g, p);
}

template <ggml_type type, bool lanes>
void launch_type(ggml_backend_cuda_context & ctx, args & g, const product & p) {
    const generation gen = generation_of(ctx);
    if constexpr (HAS_AMPERE && !lanes) {
        if (gen == generation::AMPERE) {
            launch_generation<type, false, generation::AMPERE>(ctx, g, p);
            return;
        }
    }
    if constexpr (HAS_TURING) {
        if (gen == generation::TURING) {
            launch_generation<type, lanes, generation::TURING>(ctx, g, p);
            return;
        }
    }
    GGML_ABORT("no direct kernel of %s is compiled for this device", ggml_type_name(type));
}

} // namespace mmq_direct
