// Launches of the direct matrix kernels: their shapes, the division of work among blocks, their memory.
#include "mmq_direct_launch.h"
#include "lane_order_tensor.h"
#include "mmq_direct.cuh"
#include "mmq_quantize.cuh"

#include <algorithm>

namespace mmq_direct {

// The launch of each type, and of those that have it in lane order.
using launch_fn = void (*)(ggml_backend_cuda_context &, args &, const product &);
struct direct_type {
    ggml_type type;
    launch_fn launch;
    launch_fn launch_lanes;
};
static const direct_type DIRECT_TYPES[] = {
    {GGML_TYPE_Q4_K, launch_type<GGML_TYPE_Q4_K, false>, nullptr},
    {GGML_TYPE_Q6_K, launch_type<GGML_TYPE_Q6_K, false>, launch_type<GGML_TYPE_Q6_K, true>},
    {GGML_TYPE_Q8_0, launch_type<GGML_TYPE_Q8_0, false>, launch_type<GGML_TYPE_Q8_0, true>},
    {GGML_TYPE_Q3_K, launch_type<GGML_TYPE_Q3_K, false>, nullptr},
    {GGML_TYPE_Q4_0, launch_type<GGML_TYPE_Q4_0, false>, nullptr},
    {GGML_TYPE_Q4_1, launch_type<GGML_TYPE_Q4_1, false>, nullptr},
    {GGML_TYPE_Q5_0, launch_type<GGML_TYPE_Q5_0, false>, nullptr},
    {GGML_TYPE_Q5_1, launch_type<GGML_TYPE_Q5_1, false>, nullptr},
    {GGML_TYPE_Q5_K, launch_type<GGML_TYPE_Q5_K, false>, nullptr},
    {GGML_TYPE_IQ3_S, launch_type<GGML_TYPE_IQ3_S, false>, nullptr},
    {GGML_TYPE_IQ4_NL, launch_type<GGML_TYPE_IQ4_NL, false>, nullptr},
    {GGML_TYPE_IQ4_XS, launch_type<GGML_TYPE_IQ4_XS, false>, nullptr},
    {GGML_TYPE_MXFP4, launch_type<GGML_TYPE_MXFP4, false>, nullptr},
};

static const direct_type * find_type(const ggml_type type) {
    const auto found = std::find_if(std::begin(DIRECT_TYPES), std::end(DIRECT_TYPES), [&](const direct_type & t) { return t.type == type; });
    return found == std::end(DIRECT_TYPES) ? nullptr : found;
}

bool is_direct_type(const ggml_type type) {
    return find_type(type) != nullptr;
}

generation generation_of(const ggml_backend_cuda_context & ctx) {
    return cp_async_available(ggml_cuda_info().devices[ctx.device].cc) ? generation::AMPERE : generation::TURING;
}

bool has_short_loops(const ggml_backend_cuda_context & ctx) {
    using steps = ggml_cuda_mmq_direct_steps;
    const steps::choice chosen = ctx.mmq_direct_steps.short_loops;
    return chosen == steps::BY_DEVICE ? ggml_cuda_info().devices[ctx.device].cc == GGML_CUDA_CC_TURING : chosen == steps::ON;
}

static bool is_split_order(const ggml_type type) {
    return type != GGML_TYPE_Q4_K && type != GGML_TYPE_IQ3_S;
}

int n_col_tiles(const ggml_type type, const generation gen, const int64_t n_cols) {
    const int j_max = max_columns_of_tile(type, gen);
    return (n_cols + j_max - 1)/j_max;
}

int columns_of_tile(const ggml_type type, const generation gen, const int64_t n_cols) {
    const int n = n_col_tiles(type, gen, n_cols);
    const int64_t columns = (n_cols + n - 1)/n;
    return GGML_PAD(columns, columns > 48 && !has_all_columns(type, gen) ? 16 : 8);
}

bool have_same_layout(const ggml_type a, const ggml_type b, const generation gen, const int64_t n_cols) {
    const auto n_padded = [&](const ggml_type type) { return n_col_tiles(type, gen, n_cols)*columns_of_tile(type, gen, n_cols); };
    return is_split_order(a) == is_split_order(b) && n_padded(a) == n_padded(b);
}

int n_fixed_parts(const ggml_backend_cuda_context & ctx, const ggml_tensor * x) {
    constexpr int64_t PART = 8;             // about so many K_BLOCKs: enough work before parts are added
    constexpr int64_t ENOUGH_ROWS = 8192;   // tiles of so many rows occupy a whole card without parts
    if (!ctx.mmq_direct_steps.batch_invariant) {
        return 0;
    }
    const int64_t n_kblocks = x->ne[0]/K_BLOCK;
    int64_t n_parts = x->ne[1] >= ENOUGH_ROWS ? 1 : std::max<int64_t>(n_kblocks/PART, 1);
    while (n_kblocks % n_parts != 0) {  // so that blocks have equal shares
        --n_parts;
    }
    return n_parts;
}

quantized::quantized(ggml_backend_cuda_context & ctx, const ggml_type type, const int64_t n_k, const int64_t n_cols)
        : memory(ctx.pool()) {
    const generation gen = generation_of(ctx);
    a.n_groups = n_col_tiles(type, gen, n_cols)*columns_of_tile(type, gen, n_cols)/8;
    a.split_order = is_split_order(type);
    a.y = memory.alloc(n_k/K_STEP*a.n_groups*GROUP_BYTES);
}

void quantize(ggml_backend_cuda_context & ctx, const ggml_tensor * x, const quantized & out, const counters & arrived) {
    const int n_k = x->ne[0];
    const dim3 grid((n_k + 4*K_STEP - 1)/(4*K_STEP), out.a.n_groups*8);
    const ggml_cuda_kernel_launch_params params(grid, dim3(K_STEP), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(quantize_values, params, (const float *) x->data, (int64_t) (x->nb[1]/sizeof(float)), n_k, (int) x->ne[1],
        out.a, arrived.ptr);
}

// How many groups of four values of K a thread of `normalize` takes; 0: no number fits.
static int normalize_share(const int64_t n_k) {
    for (int n = 1; n <= 4; ++n) {
        if (n_k % (4*WARP_SIZE*n) == 0 && n_k/(4*n) <= 1024) {
            return n;
        }
    }
    return 0;
}

bool can_normalize(const int64_t n_k) {
    return normalize_share(n_k) > 0;
}

template <int N>
static void launch_normalize(ggml_backend_cuda_context & ctx, const ggml_tensor * add, const ggml_tensor * norm,
        const ggml_tensor * weight, const quantized & out, const quantized * other_out, const counters & arrived) {
    const int n_k = norm->ne[0];
    const float * a = (const float *) (add != nullptr ? add->src[0]->data : norm->src[0]->data);
    const float * b = add != nullptr ? (const float *) add->src[1]->data : nullptr;
    float * sum = add != nullptr ? (float *) add->data : nullptr;
    const int n_groups = std::max(out.a.n_groups, other_out != nullptr ? other_out->a.n_groups : 0);
    const auto kernel = other_out != nullptr ? normalize<N, 2> : normalize<N, 1>;
    const ggml_cuda_kernel_launch_params params(dim3(n_groups*8), dim3(n_k/(4*N)), WARP_SIZE*sizeof(float), ctx.stream());
    ggml_cuda_kernel_launch(kernel, params, a, b, sum, (const float *) weight->data, ggml_get_op_params_f32(norm, 0), n_k,
        (int) norm->ne[1], out.a, other_out != nullptr ? other_out->a : out.a, arrived.ptr);
}

template <int CHUNK, int N = 1>
static void launch_normalize_in_order(ggml_backend_cuda_context & ctx, const ggml_tensor * add, const ggml_tensor * norm,
        const ggml_tensor * weight, const quantized & out, const quantized * other_out, const counters & arrived) {
    constexpr int N_MOST = 16;
    const int n_k = norm->ne[0];
    if constexpr (N < N_MOST) {
        if (n_k > N*CHUNK) {
            launch_normalize_in_order<CHUNK, N < 6 ? N + 1 : N < 8 ? 8 : N_MOST>(ctx, add, norm, weight, out, other_out, arrived);
            return;
        }
    }
    GGML_ASSERT(n_k <= N*CHUNK);
    const float * a = (const float *) (add != nullptr ? add->src[0]->data : norm->src[0]->data);
    const float * b = add != nullptr ? (const float *) add->src[1]->data : nullptr;
    float * sum = add != nullptr ? (float *) add->data : nullptr;
    const int n_groups = std::max(out.a.n_groups, other_out != nullptr ? other_out->a.n_groups : 0);
    const ggml_cuda_kernel_launch_params params(dim3(n_groups*8), dim3(CHUNK/4), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(normalize_in_order<CHUNK, N>, params, a, b, sum, (const float *) weight->data,
        ggml_get_op_params_f32(norm, 0), n_k, (int) norm->ne[1], out.a, other_out != nullptr ? other_out->a : activations{},
        arrived.ptr);
}

void normalize(ggml_backend_cuda_context & ctx, const ggml_tensor * add, const ggml_tensor * norm, const ggml_tensor * weight,
        const quantized & out, const quantized * other_out, const counters & arrived) {
    if (ctx.mmq_direct_steps.batch_invariant) {
        const auto launch = norm->ne[0] < 1024 ? launch_normalize_in_order<256> : launch_normalize_in_order<1024>;
        launch(ctx, add, norm, weight, out, other_out, arrived);
        return;
    }
    switch (normalize_share(norm->ne[0])) {
        case 1: launch_normalize<1>(ctx, add, norm, weight, out, other_out, arrived); break;
        case 2: launch_normalize<2>(ctx, add, norm, weight, out, other_out, arrived); break;
        case 3: launch_normalize<3>(ctx, add, norm, weight, out, other_out, arrived); break;
        case 4: launch_normalize<4>(ctx, add, norm, weight, out, other_out, arrived); break;
        default: GGML_ABORT("no norm of %d values", (int) norm->ne[0]);
    }
}

void multiply(ggml_backend_cuda_context & ctx, const quantized & y, const product & p, const counters & arrived) {
    const ggml_tensor * x = p.x[0];
    args g = {};
    g.y = y.a;
    g.arrived = arrived.ptr;
    g.stride_row = x->nb[1];
    g.n_kblocks = x->ne[0]/K_BLOCK;
    g.n_cols = p.dst[0]->ne[1];
    g.n_col_tiles = n_col_tiles(x->type, generation_of(ctx), g.n_cols);
    g.start = make_int4(MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS);
    const direct_type * type = find_type(x->type);
    (ggml_cuda_is_lane_ordered(x) ? type->launch_lanes : type->launch)(ctx, g, p);
}

} // namespace mmq_direct
