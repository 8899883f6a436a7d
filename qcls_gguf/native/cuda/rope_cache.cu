// Normalises and rotates Q and K, and writes K and V to the cache, with a warp for each head of a token.
//
// llama.cpp has a launch for Q, one for K and one for V, with a block of 256 threads for each head; with a Qwen3 head
// of 128 values half of them have no work. Squares are added in the order of llama.cpp's kernels.
#include "rope_cache.h"

#include "ggml-impl.h"

#include <cmath>

namespace rope_cache {

constexpr int WARPS = 4;          // of a block, one head each
constexpr int MAX_TOKENS = 65535;  // the limit of a grid's dimension

// Rows of one head each; strides count values.
template <typename T> struct heads {
    T * x;
    int64_t stride_head;
    int64_t stride_token;
};

struct rotation {
    heads<const float> q, k, v;
    heads<float> q_out;
    heads<half> k_cache, v_cache;  // indexed by cell instead of token
    const int64_t * k_cells;       // (n_tokens) the cell of each token
    const int64_t * v_cells;
    const float * q_weight;        // (values of a head) the norm's weight
    const float * k_weight;
    const int32_t * pos;           // (n_tokens)
    int n_q;                       // heads of Q
    int n_kv;
    float q_eps, k_eps;
    float theta_scale, freq_scale, magnitude;
};

// Which two values are rotated together: i and i + half a head (NEOX), or 2*i and 2*i + 1. With a norm it is always
// NEOX.
enum class pairs { NEOX, NEOX_BEHIND_NORM, NEIGHBOURS };

// A lane holds n pairs: lane, lane + 32, …
template <int n, pairs kind> struct pair_values {
    static constexpr int HEAD = 64*n;
    float v[n][2];

    static __device__ __forceinline__ int index(const int i, const int of_pair) {
        const int pair = 32*i + threadIdx.x;
        return kind == pairs::NEIGHBOURS ? 2*pair + of_pair : pair + of_pair*(HEAD/2);
    }
    __device__ __forceinline__ void read(const float * x) {
#pragma unroll
        for (int i = 0; i < n; ++i) {
            v[i][0] = x[index(i, 0)];
            v[i][1] = x[index(i, 1)];
        }
    }
    // Adds in the order of llama.cpp's block: first 32 neighbours, then these sums as the block's last step does.
    __device__ __forceinline__ void normalize(const float eps, const float * weight) {
        float sums[2*n];
#pragma unroll
        for (int c = 0; c < 2*n; ++c) {
            const float x = v[c % n][c / n];
            sums[c] = warp_reduce_sum(x*x);
        }
#pragma unroll
        for (int offset = n; offset > 0; offset /= 2) {
#pragma unroll
            for (int c = 0; c < offset; ++c) {
                sums[c] += sums[c + offset];
            }
        }
        const float scale = rsqrtf(sums[0]/HEAD + eps);
#pragma unroll
        for (int i = 0; i < n; ++i) {
#pragma unroll
            for (int of_pair = 0; of_pair < 2; ++of_pair) {
                v[i][of_pair] = scale*v[i][of_pair]*weight[index(i, of_pair)];
            }
        }
    }
    __device__ __forceinline__ void rotate(const int pos, const rotation & r) {
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const int i0 = 2*(32*i + threadIdx.x);
            const float theta = r.freq_scale*(pos*powf(r.theta_scale, i0/2.0f));
            const float c = cosf(theta)*r.magnitude;
            const float s = sinf(theta)*r.magnitude;
            const float x0 = v[i][0];
            const float x1 = v[i][1];
            v[i][0] = x0*c - x1*s;
            v[i][1] = x0*s + x1*c;
        }
    }
    template <typename T> __device__ __forceinline__ void write(T * to) const {
#pragma unroll
        for (int i = 0; i < n; ++i) {
            to[index(i, 0)] = T(v[i][0]);
            to[index(i, 1)] = T(v[i][1]);
        }
    }
};

template <int n, pairs kind> static __global__ __launch_bounds__(32*WARPS) void rope_into_cache(const rotation r) {
    // ggml_cuda_pdl_lc() is not called: with it, on 9.0, the attention of a single token read data not written yet
    ggml_cuda_pdl_sync();
    const int row = blockIdx.x*WARPS + threadIdx.y;  // the heads of Q, then those of K, then those of V
    const int token = blockIdx.y;
    if (row >= r.n_q + 2*r.n_kv) {
        return;
    }
    pair_values<n, kind> x;
    if (row >= r.n_q + r.n_kv) {
        const int head = row - r.n_q - r.n_kv;
        x.read(r.v.x + token*r.v.stride_token + head*r.v.stride_head);
        x.write(r.v_cache.x + r.v_cells[token]*r.v_cache.stride_token + head*r.v_cache.stride_head);
        return;
    }
    const bool is_q = row < r.n_q;
    const int head = is_q ? row : row - r.n_q;
    const heads<const float> from = is_q ? r.q : r.k;
    x.read(from.x + token*from.stride_token + head*from.stride_head);
    if constexpr (kind == pairs::NEOX_BEHIND_NORM) {
        x.normalize(is_q ? r.q_eps : r.k_eps, is_q ? r.q_weight : r.k_weight);
    }
    x.rotate(r.pos[token], r);
    if (is_q) {
        x.write(r.q_out.x + token*r.q_out.stride_token + head*r.q_out.stride_head);
    } else {
        x.write(r.k_cache.x + r.k_cells[token]*r.k_cache.stride_token + head*r.k_cache.stride_head);
    }
}

template <int n> static void launch(ggml_backend_cuda_context & ctx, const rotation & r, const pairs kind, const int n_tokens) {
    const auto kernel = kind == pairs::NEOX ? rope_into_cache<n, pairs::NEOX> :
        kind == pairs::NEOX_BEHIND_NORM ? rope_into_cache<n, pairs::NEOX_BEHIND_NORM> : rope_into_cache<n, pairs::NEIGHBOURS>;
    const dim3 grid((r.n_q + 2*r.n_kv + WARPS - 1)/WARPS, n_tokens);
    ggml_cuda_kernel_launch(kernel, ggml_cuda_kernel_launch_params(grid, dim3(32, WARPS), size_t(0), ctx.stream()), r);
}

// --- which nodes ----------------------------------------------------------------------------------------------------

// A norm, the multiplication by its weight and a rotation, or the rotation alone.
struct chain {
    const ggml_tensor * norm = nullptr;
    const ggml_tensor * weight = nullptr;
    const ggml_tensor * rope = nullptr;
    const ggml_tensor * input() const { return (norm != nullptr ? norm : rope)->src[0]; }
};

static bool is_row_of_heads(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->ne[3] == 1;
}

static bool find_chain(const ggml_cgraph * graph, const int i, const bool has_norm, chain & found) {
    found = {};
    found.rope = graph->nodes[has_norm ? i + 2 : i];
    if (has_norm) {
        const ggml_tensor * mul = graph->nodes[i + 1];
        found.norm = graph->nodes[i];
        if ((mul->src[0] != found.norm && mul->src[1] != found.norm) || found.rope->src[0] != mul) {
            return false;
        }
        found.weight = mul->src[0] == found.norm ? mul->src[1] : mul->src[0];
        if (!ggml_is_contiguous(found.weight) || found.weight->type != GGML_TYPE_F32 || ggml_nrows(found.weight) != 1 ||
                found.weight->ne[0] != found.norm->ne[0] || !ggml_are_same_shape(found.norm, mul)) {
            return false;
        }
    }
    return is_row_of_heads(found.input()) && is_row_of_heads(found.rope) && ggml_are_same_shape(found.input(), found.rope);
}

// Whether set_rows writes a view, of (n_heads, n_tokens) rows as n_tokens rows, to cells of a cache of halves.
static bool is_cache_write(const ggml_tensor * view, const ggml_tensor * set_rows, const int64_t n_values, const int64_t n_tokens) {
    const ggml_tensor * cells = set_rows->src[1];
    return view->op == GGML_OP_VIEW && set_rows->op == GGML_OP_SET_ROWS && set_rows->src[0] == view &&
        (set_rows->flags & GGML_TENSOR_FLAG_COMPUTE) != 0 && set_rows->type == GGML_TYPE_F16 &&
        view->type == GGML_TYPE_F32 && view->nb[0] == sizeof(float) && view->ne[0] == n_values && view->ne[1] == n_tokens &&
        view->ne[2] == 1 && view->ne[3] == 1 && set_rows->ne[0] == n_values && set_rows->nb[0] == sizeof(half) &&
        cells->type == GGML_TYPE_I64 && ggml_is_contiguous(cells) && ggml_nelements(cells) == n_tokens;
}

static bool overlap(const ggml_tensor * a, const ggml_tensor * b) {
    const char * a0 = (const char *) a->data;
    const char * b0 = (const char *) b->data;
    return a0 < b0 + ggml_nbytes(b) && b0 < a0 + ggml_nbytes(a);
}

// Whether two tensors are the same rows. That is allowed, because a warp reads a head before it writes it.
static bool are_same_rows(const ggml_tensor * a, const ggml_tensor * b) {
    return a->data == b->data && a->nb[1] == b->nb[1] && a->nb[2] == b->nb[2];
}

template <typename T> static heads<T> heads_of(const ggml_tensor * t) {
    return {(T *) t->data, (int64_t) (t->nb[1]/sizeof(T)), (int64_t) (t->nb[2]/sizeof(T))};
}

static heads<half> cells_of(const ggml_tensor * set_rows, const int64_t n_head_values) {
    return {(half *) set_rows->data, n_head_values, (int64_t) (set_rows->nb[1]/sizeof(half))};
}

} // namespace rope_cache

using namespace rope_cache;

int ggml_cuda_rope_into_cache(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, const int i) {
    const bool has_norm = graph->nodes[i]->op == GGML_OP_RMS_NORM;
    const int n_chain = has_norm ? 3 : 1;
    const int n_nodes = 2*n_chain + 4;  // a view and a write each for K and V
    if (i + n_nodes > graph->n_nodes) {
        return 0;
    }
    const int q_end = i + n_chain - 1;
    const int k_write = i + 2*n_chain + 1;
    if (!(has_norm ?
            ggml_can_fuse_subgraph(graph, i, {GGML_OP_RMS_NORM, GGML_OP_MUL, GGML_OP_ROPE, GGML_OP_RMS_NORM, GGML_OP_MUL,
                GGML_OP_ROPE, GGML_OP_VIEW, GGML_OP_SET_ROWS}, {q_end, k_write}) :
            ggml_can_fuse_subgraph(graph, i, {GGML_OP_ROPE, GGML_OP_ROPE, GGML_OP_VIEW, GGML_OP_SET_ROWS}, {q_end, k_write}))) {
        return 0;
    }
    chain q;
    chain k;
    if (!find_chain(graph, i, has_norm, q) || !find_chain(graph, i + n_chain, has_norm, k)) {
        return 0;
    }
    const ggml_tensor * k_view = graph->nodes[k_write - 1];
    const ggml_tensor * v_view = graph->nodes[k_write + 1];
    const ggml_tensor * write_k = graph->nodes[k_write];
    const ggml_tensor * write_v = graph->nodes[k_write + 2];
    const int64_t n_head_values = q.rope->ne[0];
    const int64_t n_tokens = q.rope->ne[2];
    const int64_t n_kv = k.rope->ne[1];
    const ggml_tensor * pos = q.rope->src[1];
    if (k.rope->ne[0] != n_head_values || k.rope->ne[2] != n_tokens || k_view->src[0] != k.rope ||
            k_view->data != k.rope->data || !ggml_is_contiguous(k.rope) ||
            !is_cache_write(k_view, write_k, n_kv*n_head_values, n_tokens) ||
            !is_cache_write(v_view, write_v, n_kv*n_head_values, n_tokens) ||
            k.rope->src[1] != pos || pos->type != GGML_TYPE_I32 || ggml_nelements(pos) != n_tokens || n_tokens > MAX_TOKENS) {
        return 0;
    }
    const int32_t * params = q.rope->op_params;
    const int mode = params[2];
    const float freq_base = ggml_get_op_params_f32(q.rope, 5);
    const float ext_factor = ggml_get_op_params_f32(q.rope, 7);
    const bool is_plain = params[1] == n_head_values && params[15] == 0 && ext_factor == 0.0f && q.rope->src[2] == nullptr &&
        k.rope->src[2] == nullptr && memcmp(params, k.rope->op_params, sizeof(k.rope->op_params)) == 0;
    if (!is_plain || (mode != GGML_ROPE_TYPE_NEOX && (mode != GGML_ROPE_TYPE_NORMAL || has_norm))) {
        return 0;
    }
    // other memory must not overlap, because some heads are read while others are written
    if (overlap(q.rope, k.input()) || overlap(q.rope, v_view) ||
            (overlap(q.rope, q.input()) && !are_same_rows(q.rope, q.input()))) {
        return 0;
    }

    rotation r = {};
    r.q = heads_of<const float>(q.input());
    r.k = heads_of<const float>(k.input());
    r.v = {(const float *) v_view->data, n_head_values, (int64_t) (v_view->nb[1]/sizeof(float))};
    r.q_out = heads_of<float>(q.rope);
    r.k_cache = cells_of(write_k, n_head_values);
    r.v_cache = cells_of(write_v, n_head_values);
    r.k_cells = (const int64_t *) write_k->src[1]->data;
    r.v_cells = (const int64_t *) write_v->src[1]->data;
    if (has_norm) {
        r.q_weight = (const float *) q.weight->data;
        r.k_weight = (const float *) k.weight->data;
        r.q_eps = ggml_get_op_params_f32(q.norm, 0);
        r.k_eps = ggml_get_op_params_f32(k.norm, 0);
    }
    r.pos = (const int32_t *) pos->data;
    r.n_q = q.rope->ne[1];
    r.n_kv = n_kv;
    r.theta_scale = powf(freq_base, -2.0f/n_head_values);
    r.freq_scale = ggml_get_op_params_f32(q.rope, 6);
    r.magnitude = ggml_get_op_params_f32(q.rope, 8);
    const pairs kind = has_norm ? pairs::NEOX_BEHIND_NORM : mode == GGML_ROPE_TYPE_NEOX ? pairs::NEOX : pairs::NEIGHBOURS;
    switch (n_head_values) {
        case 64: launch<1>(ctx, r, kind, n_tokens); break;
        case 128: launch<2>(ctx, r, kind, n_tokens); break;
        case 256: launch<4>(ctx, r, kind, n_tokens); break;
        default: return 0;
    }
    return n_nodes;
}
