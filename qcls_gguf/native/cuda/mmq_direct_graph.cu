// Which nodes of a graph the direct matrix kernels compute, and which neighbouring nodes in the same launch.
#include "mmq_direct.h"
#include "lane_order_tensor.h"
#include "mmq_direct_launch.h"
#include "rope_cache.h"

#include "ggml-impl.h"

#include <algorithm>
#include <optional>

using namespace mmq_direct;

constexpr int MIN_COLUMNS = 2;
constexpr int MAX_COLUMNS = 512;
constexpr int MAX_INVARIANT_COLUMNS = 1024;  // from 1 column on, in batch-invariant contexts
constexpr int MAX_LANE_COLUMNS = 2048;       // from 1 column on, in lane order: llama.cpp's kernels would need a copy
constexpr int LOOK_AHEAD = 40;  // nodes; the products for Q, K and V of a layer are about 12 nodes apart
constexpr int MAX_COMPANIONS = 4;  // products of the same activations, as recurrent layers have them

static bool is_matrix(const ggml_tensor * t) {
    return t->ne[2] == 1 && t->ne[3] == 1;
}

bool ggml_cuda_mmq_direct_is_on(const ggml_cuda_mmq_direct_steps & steps, const int device) {
    const int cc = ggml_cuda_info().devices[device].cc;
    const int compiled = ggml_cuda_highest_compiled_arch(cc);
    // the default: on if they were measured to be faster than stock's for this code
    const bool is_measured =
        compiled == GGML_CUDA_CC_TURING || (compiled >= GGML_CUDA_CC_AMPERE && compiled <= GGML_CUDA_CC_HOPPER);
    return turing_mma_available(cc) && (steps.direct == steps.BY_DEVICE ? is_measured : steps.direct == steps.ON);
}

bool ggml_cuda_mmq_direct_takes(const ggml_tensor * x) {
    return is_direct_type(x->type) && is_matrix(x) && ggml_is_contiguous(x) && x->ne[0] > 0 && x->ne[1] > 0 &&
        (uintptr_t) x->data % sizeof(int4) == 0 &&
        x->ne[0] % (x->type == GGML_TYPE_Q6_K ? 2*K_BLOCK : K_BLOCK) == 0 &&  // rows of Q6_K begin at words
        x->ne[1] % 32 == 0;
}

int64_t ggml_cuda_mmq_direct_graph::n_tiles_at_most(const ggml_tensor * x, const int64_t n_cols) const {
    return (x->ne[1] + LEAST_TILE_ROWS - 1)/LEAST_TILE_ROWS*n_col_tiles(x->type, generation_, n_cols);
}

// Whether a node is a product that the kernels can compute.
bool ggml_cuda_mmq_direct_graph::can_compute(const ggml_tensor * node) const {
    if (node->op != GGML_OP_MUL_MAT || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
        return false;
    }
    const ggml_tensor * x = node->src[0];
    const ggml_tensor * y = node->src[1];
    const bool lanes = ggml_cuda_is_lane_ordered(x);
    const int most = lanes ? MAX_LANE_COLUMNS : steps_.batch_invariant ? MAX_INVARIANT_COLUMNS : MAX_COLUMNS;
    return ggml_cuda_mmq_direct_takes(x) && is_matrix(y) &&
        y->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32 &&
        y->nb[0] == sizeof(float) && y->nb[1] % sizeof(float4) == 0 && (uintptr_t) y->data % sizeof(float4) == 0 &&
        node->nb[0] == sizeof(float) && node->nb[1] % sizeof(float) == 0 &&
        n_tiles_at_most(x, y->ne[1]) <= MAX_TILES &&
        y->ne[1] >= (lanes || steps_.batch_invariant ? 1 : MIN_COLUMNS) && y->ne[1] <= most &&
        ggml_backend_buffer_get_usage(x->buffer) != GGML_BACKEND_BUFFER_USAGE_COMPUTE;
}

// Whether product i reads activations in the layout of a type.
bool ggml_cuda_mmq_direct_graph::has_layout_of(const int i, const ggml_type type) const {
    return have_same_layout(type_of(i), type, generation_, graph_->nodes[i]->ne[1]);
}

static bool overlap(const ggml_tensor * a, const ggml_tensor * b) {
    const char * a0 = (const char *) a->data;
    const char * b0 = (const char *) b->data;
    return a0 < b0 + ggml_nbytes(b) && b0 < a0 + ggml_nbytes(a);
}

static bool is_noop(const ggml_tensor * t) {
    return ggml_is_empty(t) || ggml_op_is_empty(t->op);
}

// Whether product k may be computed at node i's turn: the nodes in between must neither use the memory of its result
// nor write what it reads.
static bool can_go_ahead(const ggml_cgraph * graph, const int i, const int k) {
    const ggml_tensor * ahead = graph->nodes[k];
    for (int n = i; n < k; ++n) {
        const ggml_tensor * node = graph->nodes[n];
        if (is_noop(node)) {
            continue;
        }
        if (overlap(ahead, node) || overlap(ahead->src[0], node) || overlap(ahead->src[1], node)) {
            return false;
        }
        for (const ggml_tensor * src : node->src) {
            if (src != nullptr && src->data != nullptr && overlap(ahead, src)) {
                return false;
            }
        }
    }
    return true;
}

static bool is_plain(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && is_matrix(t) && ggml_is_contiguous(t) && (uintptr_t) t->data % sizeof(float4) == 0;
}

ggml_cuda_mmq_direct_graph::ggml_cuda_mmq_direct_graph(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph)
        : ctx_(ctx), graph_(graph), steps_(ctx.mmq_direct_steps), generation_(generation_of(ctx)) {
    const bool is_wanted = steps_.batch_invariant && turing_mma_available(ggml_cuda_info().devices[ctx.device].cc);
    usable_ = (is_wanted || ggml_cuda_mmq_direct_is_on(steps_, ctx.device)) &&
        ctx.stream_context().concurrent_events.empty();
}

// Product i and later products that read the same activations and may be computed at its turn.
std::vector<int> ggml_cuda_mmq_direct_graph::companions(const int i) const {
    std::vector<int> found = {i};
    if (!steps_.quantize_once) {
        return found;
    }
    const ggml_tensor * y = graph_->nodes[i]->src[1];
    int64_t n_tiles = n_tiles_at_most(graph_->nodes[i]->src[0], y->ne[1]);
    for (int k = i + 1; k < std::min(graph_->n_nodes, i + LOOK_AHEAD) && found.size() < MAX_COMPANIONS; ++k) {
        const ggml_tensor * node = graph_->nodes[k];
        if (node->op == GGML_OP_MUL_MAT && node->src[1] == y && can_compute(node) && can_go_ahead(graph_, i, k) &&
                n_tiles + n_tiles_at_most(node->src[0], y->ne[1]) <= MAX_TILES) {
            n_tiles += n_tiles_at_most(node->src[0], y->ne[1]);
            found.push_back(k);
        }
    }
    return found;
}

// Whether the results of products i and i + 1 are used only by the silu(gate)*up of node i + 2.
bool ggml_cuda_mmq_direct_graph::is_glu(const int i) const {
    if (!steps_.fuse_glu || !steps_.quantize_once ||
            !ggml_can_fuse_subgraph(graph_, i, {GGML_OP_MUL_MAT, GGML_OP_MUL_MAT, GGML_OP_GLU}, {i + 2})) {
        return false;
    }
    const ggml_tensor * a = graph_->nodes[i];
    const ggml_tensor * b = graph_->nodes[i + 1];
    const ggml_tensor * glu = graph_->nodes[i + 2];
    const int64_t n_cols = steps_.batch_invariant ? MAX_INVARIANT_COLUMNS : a->ne[1];  // for any number of columns
    return ggml_get_glu_op(glu) == GGML_GLU_OP_SWIGLU && a->src[0]->type == b->src[0]->type && a->src[1] == b->src[1] &&
        ((glu->src[0] == a && glu->src[1] == b) || (glu->src[0] == b && glu->src[1] == a)) &&
        is_plain(glu) && ggml_are_same_shape(glu, a) && can_compute(a) && can_compute(b) &&
        ggml_cuda_is_lane_ordered(a->src[0]) == ggml_cuda_is_lane_ordered(b->src[0]) &&
        2*n_tiles_at_most(a->src[0], n_cols) <= MAX_TILES &&  // with glu a tile has half as many rows of each matrix
        n_fixed_parts(ctx_, a->src[0]) == n_fixed_parts(ctx_, b->src[0]);
}

// Whether the nodes from i on are [a sum,] an RMS norm, its multiplication by a weight, and a product that reads the
// result.
bool ggml_cuda_mmq_direct_graph::find_norm(const int i, norm_nodes & found) const {
    const ggml_tensor * first = graph_->nodes[i];
    if (!steps_.fuse_norm || (first->op != GGML_OP_ADD && first->op != GGML_OP_RMS_NORM)) {
        return false;
    }
    const bool has_sum = first->op == GGML_OP_ADD;
    const int n = has_sum ? i + 1 : i;
    if (n + 2 >= graph_->n_nodes) {
        return false;
    }
    const ggml_tensor * norm = graph_->nodes[n];
    const ggml_tensor * mul = graph_->nodes[n + 1];
    if (has_sum && (!is_plain(first) || !is_plain(first->src[0]) || !is_plain(first->src[1]) ||
            !ggml_are_same_shape(first->src[0], first->src[1]) || norm->src[0] != first)) {
        return false;
    }
    if (norm->op != GGML_OP_RMS_NORM || mul->op != GGML_OP_MUL || (mul->src[0] != norm && mul->src[1] != norm) ||
            !is_plain(norm->src[0]) || !is_plain(mul) || !ggml_are_same_shape(norm, mul) ||
            !ggml_node_has_n_uses(graph_, n, 1) || !can_normalize(norm->ne[0])) {
        return false;
    }
    const ggml_tensor * weight = mul->src[0] == norm ? mul->src[1] : mul->src[0];
    const ggml_tensor * product = graph_->nodes[n + 2];
    if (!is_plain(weight) || weight->ne[0] != norm->ne[0] || ggml_nrows(weight) != 1 || !can_compute(product) ||
            product->src[1] != mul) {
        return false;
    }
    found = {has_sum ? first : nullptr, norm, weight, n + 1, n + 2};
    return true;
}

bool ggml_cuda_mmq_direct_graph::compute(const int i) {
    return (usable_ && compute_directly(i)) || ggml_cuda_mul_mat_in_file_order(ctx_, graph_->nodes[i]);
}

bool ggml_cuda_mmq_direct_graph::compute_directly(const int i) {
    const auto ahead = std::find(done_.begin(), done_.end(), i);
    if (ahead != done_.end()) {
        done_.erase(ahead);
        return true;
    }
    if (const int n = steps_.fuse_rope ? ggml_cuda_rope_into_cache(ctx_, graph_, i) : 0; n > 0) {
        for (int k = i + 1; k < i + n; ++k) {
            if (!is_noop(graph_->nodes[k])) {
                done_.push_back(k);
            }
        }
        return true;
    }
    norm_nodes norm;
    const bool has_norm = find_norm(i, norm);
    if (!has_norm && !can_compute(graph_->nodes[i])) {
        return false;
    }
    const int first = has_norm ? norm.product : i;
    const bool glu = is_glu(first);
    std::vector<int> nodes = glu ? std::vector<int>{first, first + 1} : companions(first);
    std::stable_sort(nodes.begin(), nodes.end(), [&](const int a, const int b) { return type_of(a) < type_of(b); });
    std::vector<ggml_type> types;  // of each layout of the activations, the first type that has it
    for (const int k : nodes) {
        if (std::none_of(types.begin(), types.end(), [&](const ggml_type type) { return has_layout_of(k, type); })) {
            types.push_back(type_of(k));
        }
    }
    if (types.size() > 2) {  // there is room for two layouts
        types = {type_of(first)};
        nodes = {first};
    }
    if (has_norm && !ggml_node_has_n_uses(graph_, norm.mul, nodes.size())) {
        return false;
    }
    multiply_all(first, nodes, types, has_norm ? &norm : nullptr, glu);

    for (int k = i + 1; k < first; ++k) {
        done_.push_back(k);
    }
    for (const int k : nodes) {
        if (k != i) {
            done_.push_back(k);
        }
    }
    if (glu) {
        done_.push_back(first + 2);
    }
    return true;
}

// Memory must be returned to the pool in reverse order, so the order of the definitions here matters.
void ggml_cuda_mmq_direct_graph::multiply_all(const int first, const std::vector<int> & nodes, const std::vector<ggml_type> & types,
        const norm_nodes * norm, const bool glu) {
    const ggml_tensor * x = graph_->nodes[first]->src[1];
    const counters arrived(ctx_.pool(), MAX_TILES);
    const quantized y(ctx_, types[0], x->ne[0], x->ne[1]);
    std::optional<quantized> other;
    if (types.size() == 2) {
        other.emplace(ctx_, types[1], x->ne[0], x->ne[1]);
    }
    if (norm != nullptr) {
        normalize(ctx_, norm->sum, norm->norm, norm->weight, y, other ? &*other : nullptr, arrived);
    } else {
        quantize(ctx_, x, y, arrived);
        if (other) {
            quantize(ctx_, x, *other, arrived);
        }
    }
    if (glu) {
        const ggml_tensor * result = graph_->nodes[first + 2];
        multiply(ctx_, y, {{result->src[0]->src[0], result->src[1]->src[0]}, {result}, true}, arrived);
        return;
    }
    product p;
    for (size_t n = 0; n < nodes.size(); ++n) {
        p.x.push_back(graph_->nodes[nodes[n]]->src[0]);
        p.dst.push_back(graph_->nodes[nodes[n]]);
        const bool is_last = n + 1 == nodes.size();
        const auto is_lane_ordered = [&](const int k) { return ggml_cuda_is_lane_ordered(graph_->nodes[k]->src[0]); };
        if (is_last || p.x.size() == MAX_MATRICES || type_of(nodes[n + 1]) != type_of(nodes[n]) || !steps_.fuse_matrices ||
                is_lane_ordered(nodes[n + 1]) != is_lane_ordered(nodes[n]) ||
                n_fixed_parts(ctx_, graph_->nodes[nodes[n + 1]]->src[0]) != n_fixed_parts(ctx_, p.x[0])) {
            multiply(ctx_, has_layout_of(nodes[n], types[0]) ? y : *other, p, arrived);
            p = {};
        }
    }
}
