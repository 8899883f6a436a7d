#include "tree_walk.h"

#include "tree_rows.h"

#include <cstring>

using namespace qcls;

namespace {

// The rows of tree_rows.h, and the sizes that the graph was built for.
struct tree {
    const int32_t * rows;
    int32_t n_tokens;
    int32_t n_roots;
    int32_t n_slots;

    __device__ int32_t at(const tree_row row, const int32_t i) const { return rows[row * n_tokens + i]; }
};

// The rows of states in the cache, of which a parent that is not in the batch names one.
struct cells {
    const float * first;
    int64_t stride;  // in floats

    __device__ const float * of(const int32_t parent) const { return first + ~parent * stride; }
};

// --- short convolutions ---------------------------------------------------------------------------------------------

// A block has some channels of a token: whole heads, where heads are normed.
constexpr int convolution_threads = normed_channels;

struct convolution {
    const float * input;  // [token][channel], the stride in floats
    int64_t input_stride;
    const float * weight;  // [channel][tap], the newest token last
    int64_t weight_stride;
    cells kept;  // [channel][tap but the newest]
    float * out;  // [token][channel]
    int64_t out_stride;
    int32_t n_channels;
    tree_node node;
};

// The channel's value over the norm of its head. All threads of the block call it.
__device__ float normed(const float value, const convolution & in) {
    __shared__ float squares[convolution_threads / WARP_SIZE];
    const float square = warp_reduce_sum<WARP_SIZE>(value * value);
    const int warp = threadIdx.x / WARP_SIZE;
    if (threadIdx.x % WARP_SIZE == 0) {
        squares[warp] = square;
    }
    __syncthreads();
    const int n_warps = in.node.head_size / WARP_SIZE;
    float sum = 0.0f;
    for (int i = 0; i < n_warps; ++i) {
        sum += squares[warp / n_warps * n_warps + i];
    }
    return value * rsqrtf(sum / in.node.head_size + in.node.eps) * in.node.scale;
}

template <int n_taps> __device__ float convolved(const convolution & in, const tree & walk, const int c) {
    float tap[n_taps];
    int32_t token = blockIdx.y;
    int i_kept = n_taps - 2;  // of the taps before the batch, the newest first
#pragma unroll
    for (int j = n_taps - 1; j >= 0; --j) {
        if (token >= 0) {
            tap[j] = in.input[token * in.input_stride + c];
            token = walk.at(tree_parent, token);
        } else {
            tap[j] = token == tree_no_state ? 0.0f : in.kept.of(token)[c * (n_taps - 1) + i_kept];
            --i_kept;
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < n_taps; ++j) {
        sum = fmaf(in.weight[c * in.weight_stride + j], tap[j], sum);
    }
    return sum;
}

template <int n_taps> __global__ void __launch_bounds__(convolution_threads)
convolve(const convolution in, const tree walk) {
    const int first = blockIdx.x * convolution_threads;
    const int c = first + threadIdx.x;
    float out = c < in.n_channels ? convolved<n_taps>(in, walk, c) : 0.0f;
    if (in.node.has_more) {
        out /= 1.0f + expf(-out);
    }
    if (first < in.node.n_normed) {
        const float of_head = normed(out, in);
        out = c < in.node.n_normed ? of_head : out;
    }
    if (c < in.n_channels) {
        in.out[blockIdx.y * in.out_stride + c] = out;
    }
}

// --- delta nets and state spaces ------------------------------------------------------------------------------------

constexpr int row_lanes = 8;  // of a row of a state; each has every eighth group of four values
constexpr int max_values = most_state_values / row_lanes;
// Rows of a lane: they share what is read of a token, as far as registers allow.
template <int n_values> constexpr int lane_rows = n_values < max_values ? 2 : 1;
constexpr int most_walk_threads = 128;
constexpr size_t most_slot_bytes = 48 * 1024;  // of a block, which every card has

// A value for each token and head, strides in floats.
struct of_heads {
    const float * first;
    int64_t head_stride;
    int64_t token_stride;

    __device__ const float * at(const int64_t head, const int64_t token) const {
        return first + head * head_stride + token * token_stride;
    }
};

struct recurrence {
    of_heads q, k;  // [size] of their own heads
    of_heads x;  // [rows]
    of_heads decay;  // one, or [size]
    of_heads gain;
    const float * bias;  // [head], NULL unless decay and gain are inputs of the gates
    const float * factor;
    cells kept;  // [head][row][size]
    float * out;  // [token][head][row]
    float scale;
    int32_t size;
    int32_t n_rows;
    int32_t n_heads;
    int32_t n_key_heads;
};

// What one lane reads of a token.
template <int n_values, bool has_decays> struct step {
    float4 k[n_values / 4];
    float4 q[n_values / 4];
    float4 decay[has_decays ? n_values / 4 : 1];
    float x[lane_rows<n_values>];
    float gain;
};

template <int n_values>
__device__ void load(float4 (&to)[n_values / 4], const float * from, const int part, const int size) {
#pragma unroll
    for (int v = 0; v < n_values / 4; ++v) {
        const int i = (v * row_lanes + part) * 4;
        to[v] = i < size ? *(const float4 *) (from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

template <int n_values, bool has_decays>
__device__ void load(step<n_values, has_decays> & to, const recurrence & in, const int32_t token, const int head,
                     const int key_head, const int row, const int part) {
    load<n_values>(to.k, in.k.at(key_head, token), part, in.size);
    load<n_values>(to.q, in.q.at(key_head, token), part, in.size);
    if constexpr (has_decays) {
        load<n_values>(to.decay, in.decay.at(head, token), part, in.size);
    } else {
        to.decay[0].x = *in.decay.at(head, token);
    }
#pragma unroll
    for (int r = 0; r < lane_rows<n_values>; ++r) {
        to.x[r] = in.x.at(head, token)[min(row + r, in.n_rows - 1)];
    }
    to.gain = *in.gain.at(head, token);
}

__device__ float softplus(const float x) {
    return x > 20.0f ? x : logf(1.0f + expf(x));
}

__device__ float sum_of_row(float sum) {
#pragma unroll
    for (int lane = row_lanes / 2; lane > 0; lane /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, lane);
    }
    return sum;
}

__device__ float dot(const float4 & a, const float4 & b, const float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ float4 times(const float4 & a, const float4 & b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

// A block has some rows of one head's state and walks from one root. As in the CPU's code, of each row r:
//   delta net:   r = decay * r;  r += (x - r . k) * gain * k;  out = r . q
//   state space: r = decay * r;  r += x * gain * k;            out = r . q
template <int n_values, bool is_delta, bool has_decays> __global__ void __launch_bounds__(most_walk_threads)
walk_states(const recurrence in, const tree walk) {
    constexpr int n_groups = n_values / 4;
    constexpr int n_rows = lane_rows<n_values>;
    extern __shared__ float4 kept[];  // [slot][row][group][thread]
    const int part = threadIdx.x % row_lanes;
    const int n_block_rows = blockDim.x / row_lanes * n_rows;
    const int row = blockIdx.x * n_block_rows + threadIdx.x / row_lanes * n_rows;  // those past the last repeat it
    const int head = blockIdx.y;
    // delta nets deal heads of q and k out in turn, state spaces by groups
    const int key_head = is_delta ? head % in.n_key_heads : head / (in.n_heads / in.n_key_heads);
    const int32_t root = blockIdx.z;
    const int32_t begin = walk.at(tree_begin, root);
    const int32_t end = root + 1 < walk.n_roots ? walk.at(tree_begin, root + 1) : walk.n_tokens;
    const auto for_each_value = [&](auto && work) {
#pragma unroll
        for (int r = 0; r < n_rows; ++r) {
#pragma unroll
            for (int v = 0; v < n_groups; ++v) {
                work(r, v);
            }
        }
    };
    const auto in_slot = [&](const int32_t slot, const int r, const int v) -> float4 & {
        return kept[((slot * n_rows + r) * n_groups + v) * blockDim.x + threadIdx.x];
    };
    float4 state[n_rows][n_groups];
    step<n_values, has_decays> now;
    step<n_values, has_decays> next;
    int32_t token = walk.at(tree_order, begin);
    load(next, in, token, head, key_head, row, part);
    for (int32_t place = begin; place < end; ++place) {
        const int32_t parent = walk.at(tree_parent, token);
        const int32_t source = walk.at(tree_source, place);
        const int32_t slot = walk.at(tree_slot, place);
        const int32_t this_token = token;
        now = next;
        if (place + 1 < end) {  // its loads come while this token is computed
            token = walk.at(tree_order, place + 1);
            load(next, in, token, head, key_head, row, part);
        }
        if (parent < 0) {
#pragma unroll
            for (int r = 0; r < n_rows; ++r) {
                const int state_row = min(row + r, in.n_rows - 1);
                const float * from = in.kept.of(parent) + ((int64_t) head * in.n_rows + state_row) * in.size;
                load<n_values>(state[r], from, part, parent == tree_no_state ? 0 : in.size);
            }
        } else if (source != tree_running) {
            for_each_value([&](const int r, const int v) { state[r][v] = in_slot(source, r, v); });
        }
        if (in.bias) {
            now.decay[0].x = expf(softplus(now.decay[0].x + in.bias[head]) * in.factor[head]);
            now.gain = 1.0f / (1.0f + expf(-now.gain));
        }
        const float d = now.decay[0].x;
        float sum[n_rows] = {};
        if constexpr (is_delta) {
            for_each_value([&](const int r, const int v) {
                sum[r] = dot(state[r][v], has_decays ? times(now.k[v], now.decay[v]) : now.k[v], sum[r]);
            });
        }
        float change[n_rows];
#pragma unroll
        for (int r = 0; r < n_rows; ++r) {
            change[r] = now.x[r] * now.gain;
            if constexpr (is_delta) {
                const float product = sum_of_row(sum[r]);
                change[r] = (now.x[r] - (has_decays ? product : d * product)) * now.gain;
            }
            sum[r] = 0.0f;
        }
        for_each_value([&](const int r, const int v) {
            const float4 decayed = times(state[r][v], has_decays ? now.decay[v] : make_float4(d, d, d, d));
            const float4 k = now.k[v];
            state[r][v] = make_float4(fmaf(change[r], k.x, decayed.x), fmaf(change[r], k.y, decayed.y),
                                      fmaf(change[r], k.z, decayed.z), fmaf(change[r], k.w, decayed.w));
            sum[r] = dot(state[r][v], now.q[v], sum[r]);
        });
#pragma unroll
        for (int r = 0; r < n_rows; ++r) {
            const float out = sum_of_row(sum[r]) * in.scale;
            if (part == 0 && row + r < in.n_rows) {
                in.out[((int64_t) this_token * in.n_heads + head) * in.n_rows + row + r] = out;
            }
        }
        if (slot != tree_no_slot) {
            for_each_value([&](const int r, const int v) { in_slot(slot, r, v) = state[r][v]; });
        }
    }
}

// --- launches -------------------------------------------------------------------------------------------------------

ggml_custom_op_t function_of(const ggml_tensor * node) {
    ggml_custom_op_t function;
    memcpy(&function, node->op_params, sizeof(function));
    return function;
}

tree tree_of(const tree_node & node, const ggml_tensor * rows) {
    return {(const int32_t *) rows->data, (int32_t) (rows->ne[0] / n_tree_rows), node.n_roots, node.n_slots};
}

cells cells_of(const ggml_tensor * first) {
    return {(const float *) first->data, (int64_t) (first->view_src->nb[1] / sizeof(float))};
}

of_heads heads_of(const ggml_tensor * t) {
    return {(const float *) t->data, (int64_t) (t->nb[1] / sizeof(float)), (int64_t) (t->nb[2] / sizeof(float))};
}

// of [head, token], one value each
of_heads gate_of(const ggml_tensor * t) {
    return {(const float *) t->data, 1, (int64_t) (t->nb[1] / sizeof(float))};
}

void convolve(ggml_tensor * node, cudaStream_t stream) {
    const ggml_tensor * input = node->src[0];
    const ggml_tensor * kernel = node->src[1];
    const convolution in = {
        (const float *) input->data,  (int64_t) (input->nb[0] / sizeof(float)),
        (const float *) kernel->data, (int64_t) (kernel->nb[1] / sizeof(float)),
        cells_of(node->src[2]),
        (float *) node->data,         (int64_t) (node->nb[1] / sizeof(float)),
        (int32_t) kernel->ne[1],
        read_node(node->op_params),
    };
    const tree walk = tree_of(in.node, node->src[3]);
    const dim3 grid((in.n_channels + convolution_threads - 1) / convolution_threads, walk.n_tokens);
    switch (kernel->ne[0]) {
        case 2:  convolve<2><<<grid, convolution_threads, 0, stream>>>(in, walk); break;
        case 3:  convolve<3><<<grid, convolution_threads, 0, stream>>>(in, walk); break;
        default: convolve<4><<<grid, convolution_threads, 0, stream>>>(in, walk); break;
    }
}

template <int n_values, bool is_delta, bool has_decays>
void launch(const recurrence & in, const tree & walk, cudaStream_t stream) {
    const size_t slot_bytes = walk.n_slots * lane_rows<n_values> * n_values * sizeof(float);  // of a thread
    int n_threads = most_walk_threads;
    while (n_threads > WARP_SIZE && n_threads * slot_bytes > most_slot_bytes / 3) {
        n_threads /= 2;
    }
    const int n_block_rows = n_threads / row_lanes * lane_rows<n_values>;
    const dim3 grid((in.n_rows + n_block_rows - 1) / n_block_rows, in.n_heads, walk.n_roots);
    walk_states<n_values, is_delta, has_decays><<<grid, n_threads, n_threads * slot_bytes, stream>>>(in, walk);
}

template <bool is_delta, bool has_decays>
void launch(const recurrence & in, const tree & walk, cudaStream_t stream) {
    const int n_values = (in.size + row_lanes - 1) / row_lanes;
    if (n_values <= 4) {
        launch<4, is_delta, has_decays>(in, walk, stream);
    } else if (n_values <= 8) {
        launch<8, is_delta, has_decays>(in, walk, stream);
    } else if (n_values <= 16) {
        launch<16, is_delta, has_decays>(in, walk, stream);
    } else {
        launch<32, is_delta, has_decays>(in, walk, stream);
    }
}

template <bool is_delta> void walk_states(ggml_tensor * node, cudaStream_t stream) {
    ggml_tensor ** from = node->src;
    const auto size = (int32_t) from[0]->ne[0];
    const tree_node what = read_node(node->op_params);
    const recurrence in = {
        heads_of(from[0]),
        heads_of(from[1]),
        heads_of(from[2]),
        what.has_more ? gate_of(from[3]) : heads_of(from[3]),
        what.has_more ? gate_of(from[4]) : heads_of(from[4]),
        what.has_more ? (const float *) from[7]->data : nullptr,
        what.has_more ? (const float *) from[8]->data : nullptr,
        cells_of(from[5]),
        (float *) node->data,
        is_delta ? 1.0f / sqrtf((float) size) : 1.0f,
        size,
        (int32_t) from[2]->ne[0],
        (int32_t) from[2]->ne[1],
        (int32_t) from[0]->ne[1],
    };
    const tree walk = tree_of(what, from[6]);
    if (from[3]->ne[0] > 1 && !what.has_more) {
        launch<is_delta, true>(in, walk, stream);
    } else {
        launch<is_delta, false>(in, walk, stream);
    }
}

}  // namespace

static_assert(WARP_SIZE * max_values * sizeof(float) * n_tree_slots <= most_slot_bytes, "the states of a warp's branch points");

void qcls_tree_convolution(ggml_tensor *, int, int, void *) {
    GGML_ABORT("a short convolution over a token tree on a GPU was left to the CPU");
}

void qcls_tree_delta_net(ggml_tensor *, int, int, void *) {
    GGML_ABORT("a delta net over a token tree on a GPU was left to the CPU");
}

void qcls_tree_scan(ggml_tensor *, int, int, void *) {
    GGML_ABORT("a state space over a token tree on a GPU was left to the CPU");
}

// Whether rows can be read 16 bytes at once.
static bool is_aligned(const ggml_tensor * t) {
    return t->ne[0] % 4 == 0 && t->nb[0] == sizeof(float) && t->nb[1] % 16 == 0 && t->nb[2] % 16 == 0 && t->view_offs % 16 == 0;
}

bool qcls_walk_supported(const ggml_tensor * node) {
    const ggml_custom_op_t function = function_of(node);
    if (function == qcls_tree_convolution) {
        return true;
    }
    return (function == qcls_tree_delta_net || function == qcls_tree_scan) && is_aligned(node->src[0]) &&
        is_aligned(node->src[1]) && is_aligned(node->src[5]) &&
        (read_node(node->op_params).has_more || node->src[3]->ne[0] == 1 || is_aligned(node->src[3]));
}

void qcls_walk(ggml_backend_cuda_context & ctx, ggml_tensor * node) {
    const ggml_custom_op_t function = function_of(node);
    if (function == qcls_tree_convolution) {
        convolve(node, ctx.stream());
    } else if (function == qcls_tree_delta_net) {
        walk_states<true>(node, ctx.stream());
    } else {
        walk_states<false>(node, ctx.stream());
    }
    CUDA_CHECK(cudaGetLastError());
}
