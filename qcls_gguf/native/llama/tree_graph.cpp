// The graph in which recurrent layers walk a token tree: that of one sequence, with other operations in three places.
#include "tree_rows.h"
#include "tree_walk.h"

#include "llama-graph.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace qcls {
namespace {

const llama_memory_recurrent_context * states_of(const llama_memory_context_i * memory) {
    if (const auto * hybrid = dynamic_cast<const llama_memory_hybrid_context *>(memory)) {
        return hybrid->get_recr();
    }
    const auto * hybrid = dynamic_cast<const llama_memory_hybrid_iswa_context *>(memory);
    return hybrid ? hybrid->get_recr() : nullptr;
}

// The input that has the rows of the tree.
ggml_tensor * tree_of(const llm_graph_result & result) {
    for (const auto & input : result.inputs) {
        if (const auto * hybrid = dynamic_cast<const llm_graph_input_mem_hybrid *>(input.get())) {
            return hybrid->inp_rs->s_copy;
        }
        if (const auto * hybrid = dynamic_cast<const llm_graph_input_mem_hybrid_k *>(input.get())) {
            return hybrid->inp_rs->s_copy;
        }
        if (const auto * hybrid = dynamic_cast<const llm_graph_input_mem_hybrid_iswa *>(input.get())) {
            return hybrid->inp_rs->s_copy;
        }
    }
    throw std::runtime_error("a graph with recurrent layers has no input for them");
}

// The operation of the backend on whose device the states are.
ggml_custom_op_t operation(const char * name, const ggml_tensor * states) {
    ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(states->buffer));
    ggml_backend_reg_t backend = device ? ggml_backend_dev_backend_reg(device) : ggml_backend_reg_by_name("CPU");
    void * found = backend ? ggml_backend_reg_get_proc_address(backend, name) : nullptr;
    if (!found) {
        throw std::runtime_error("the backend that has the states of recurrent layers cannot walk token trees");
    }
    return (ggml_custom_op_t) found;
}

void expect(bool is_known) {
    if (!is_known) {
        throw std::runtime_error("this model's recurrent layers cannot walk a token tree: their graph is not known");
    }
}

ggml_tensor * base_of(ggml_tensor * tensor) {
    return tensor->view_src ? tensor->view_src : tensor;
}

ggml_tensor * unshaped(ggml_tensor * tensor) {
    return tensor->op == GGML_OP_RESHAPE ? unshaped(tensor->src[0]) : tensor;
}

bool is_unary(const ggml_tensor * node, ggml_unary_op op) {
    return node->op == GGML_OP_UNARY && ggml_get_unary_op(node) == op;
}

float float_param(const ggml_tensor * node, int i) {
    float found;
    memcpy(&found, node->op_params + i, sizeof(found));
    return found;
}

void write_node(ggml_tensor * node, const tree_node & what) {
    static_assert(tree_node_offset + sizeof(what) <= GGML_MAX_OP_PARAMS);
    memcpy((char *) node->op_params + tree_node_offset, &what, sizeof(what));
}

class changed_graph {
public:
    changed_graph(const llm_graph_context & graph, const llama_memory_recurrent_context & states)
        : ctx(graph.ctx0), nodes(graph.res->get_gf()), tree(tree_of(*graph.res)),
          sizes(tree_walk::sizes_of(states.get_rs_z())) {
        for (int32_t il = 0; il < graph.n_layer; ++il) {
            caches.insert(states.get_r_l(il));
            caches.insert(states.get_s_l(il));
        }
        for (int i = 0; i < ggml_graph_n_nodes(nodes); ++i) {
            before.push_back(ggml_graph_node(nodes, i));
        }
    }

    void change() {
        for (ggml_tensor * node : before) {
            for (const ggml_tensor * source : node->src) {
                ++n_uses[source];
            }
            if (node->op == GGML_OP_MUL_MAT) {
                products[node->src[1]].push_back(node);
            } else if (is_unary(node, GGML_UNARY_OP_SILU)) {
                silu_of[node->src[0]] = node;
            }
        }
        for (ggml_tensor * node : before) {
            switch (node->op) {
                case GGML_OP_SSM_CONV:        change_convolution(node); break;
                case GGML_OP_GATED_DELTA_NET: change_delta_net(node); break;
                case GGML_OP_SSM_SCAN:        change_scan(node); break;
                default: break;
            }
        }
        for (ggml_tensor * node : before) {
            // what nothing uses writes a cache or is a result; states are not written
            if (!n_uses.count(node) && !(node->op == GGML_OP_CPY && is_cache(base_of(node)))) {
                need(node);
            }
        }
        ggml_graph_clear(nodes);
        for (ggml_tensor * node : before) {  // in the same order: it decides which results share memory
            if (!needed.count(node)) {
                continue;
            }
            ggml_build_forward_expand(nodes, node);
            if (node->op == GGML_OP_MUL_MAT) {  // products of the same activations in a row: kernels compute them at once
                for (ggml_tensor * product : products[node->src[1]]) {
                    ggml_build_forward_expand(nodes, product);
                }
            }
        }
    }

private:
    bool is_cache(const ggml_tensor * tensor) const { return caches.count(tensor) > 0; }

    void need(ggml_tensor * node) {
        if (!needed.insert(node).second) {
            return;
        }
        const bool computes = node->op != GGML_OP_VIEW && node->op != GGML_OP_RESHAPE && node->op != GGML_OP_CUSTOM;
        for (ggml_tensor * source : node->src) {
            if (source) {
                expect(!computes || !is_cache(base_of(source)));
                need(source);
            }
        }
    }

    // What the graph took for the state of its one sequence, as a tensor in the cache's first row.
    ggml_tensor * state(ggml_tensor * read) {
        ggml_tensor * rows = base_of(read);
        expect(rows->op == GGML_OP_GET_ROWS && is_cache(base_of(rows->src[0])));
        ggml_tensor * cache = base_of(rows->src[0]);
        expect(cache->type == GGML_TYPE_F32);
        return ggml_view_3d(ctx, cache, read->ne[0], read->ne[1], read->ne[2], read->nb[1], read->nb[2],
                            read->view_src ? read->view_offs : 0);
    }

    // first: the state in the cache's first row.
    void become(ggml_tensor * node, const char * name, const ggml_tensor * first, bool has_more,
                std::initializer_list<ggml_tensor *> sources) {
        std::vector<ggml_tensor *> args(sources);
        ggml_tensor * made = ggml_custom_4d(ctx, node->type, node->ne[0], node->ne[1], node->ne[2], node->ne[3], args.data(),
                                            (int) args.size(), operation(name, first->view_src), GGML_N_TASKS_MAX, nullptr);
        node->op = made->op;
        memcpy(node->op_params, made->op_params, sizeof(node->op_params));
        tree_node what = sizes;
        what.has_more = has_more;
        write_node(node, what);
        memcpy(node->src, made->src, sizeof(node->src));
    }

    void change_convolution(ggml_tensor * node) {
        ggml_tensor * input = node->src[0];
        ggml_tensor * kernel = node->src[1];
        expect(input->op == GGML_OP_CONCAT && input->src[1]->nb[1] == sizeof(float) && kernel->type == GGML_TYPE_F32 &&
               kernel->ne[0] >= least_taps && kernel->ne[0] <= most_taps && node->ne[2] == 1);
        ggml_tensor * first = state(input->src[0]);
        const auto silu = silu_of.find(node);
        const bool has_silu = silu != silu_of.end() && n_uses[node] == 1;
        become(has_silu ? silu->second : node, "qcls_tree_convolution", first, has_silu, {input->src[1], kernel, first, tree});
    }

    // Leaves the norm of q or k to the convolution that it comes from, if that can compute it. Returns what is to be read.
    ggml_tensor * without_norm(ggml_tensor * scaled) {
        ggml_tensor * norm = scaled->src[0];
        if (scaled->op != GGML_OP_SCALE || norm->op != GGML_OP_RMS_NORM || float_param(scaled, 1) != 0) {
            return scaled;
        }
        ggml_tensor * heads = norm->src[0];
        ggml_tensor * convolution = heads->view_src;
        if (!convolution || convolution->op != GGML_OP_CUSTOM || n_uses[scaled] + n_uses[norm] + n_uses[heads] > 3) {
            return scaled;
        }
        tree_node more = read_node(convolution->op_params);
        const tree_node before_it = more;
        more.head_size = (int32_t) heads->ne[0];
        more.eps = float_param(norm, 0);
        more.scale = float_param(scaled, 0);
        const bool is_other = before_it.n_normed > 0 && (more.head_size != before_it.head_size ||
                                                         more.eps != before_it.eps || more.scale != before_it.scale);
        const bool is_next = heads->view_offs == more.n_normed * sizeof(float) && heads->nb[1] == heads->ne[0] * sizeof(float) &&
                             (heads->ne[2] == 1 || heads->nb[2] == convolution->nb[1]);
        if (!more.has_more || is_other || !is_next || normed_channels % more.head_size || more.head_size % least_normed) {
            return scaled;
        }
        more.n_normed += more.head_size * (int32_t) heads->ne[1];
        write_node(convolution, more);
        return heads;
    }

    void change_delta_net(ggml_tensor * node) {
        ggml_tensor ** from = node->src;
        expect(from[0]->ne[0] <= most_state_values && from[0]->ne[3] == 1);
        ggml_tensor * first = state(from[5]);
        ggml_tensor * q = without_norm(from[0]);
        ggml_tensor * k = without_norm(from[1]);
        // decay = exp(softplus(alpha + bias) * a), gain = sigmoid(beta), of each head
        ggml_tensor * product = unshaped(from[3]);
        ggml_tensor * softplus = product->op == GGML_OP_MUL ? unshaped(product->src[0]) : product;
        const bool has_softplus = softplus != product && is_unary(softplus, GGML_UNARY_OP_SOFTPLUS);
        ggml_tensor * sum = has_softplus ? unshaped(softplus->src[0]) : product;
        ggml_tensor * sigmoid = unshaped(from[4]);
        const int64_t n_heads = from[2]->ne[1];
        if (sum->op == GGML_OP_ADD && is_unary(sigmoid, GGML_UNARY_OP_SIGMOID) && is_of_heads(sum->src[0], n_heads) &&
            is_of_heads(unshaped(sigmoid->src[0]), n_heads) && ggml_nelements(sum->src[1]) == n_heads &&
            ggml_nelements(product->src[1]) == n_heads) {
            become(node, "qcls_tree_delta_net", first, true,
                   {q, k, from[2], sum->src[0], unshaped(sigmoid->src[0]), first, tree, sum->src[1], product->src[1]});
        } else {
            become(node, "qcls_tree_delta_net", first, false, {q, k, from[2], ggml_exp(ctx, from[3]), from[4], first, tree});
        }
    }

    // Whether a tensor is [n_heads, n_tokens].
    static bool is_of_heads(const ggml_tensor * t, int64_t n_heads) {
        return t->type == GGML_TYPE_F32 && t->ne[0] == n_heads && t->nb[0] == sizeof(float) && t->ne[2] == 1;
    }

    void change_scan(ggml_tensor * node) {
        ggml_tensor ** from = node->src;  // states, x, dt, A, B, C
        ggml_tensor * a = from[3];
        const int64_t n_heads = from[1]->ne[1];
        const int64_t n_tokens = from[1]->ne[2];
        expect(from[0]->ne[0] <= most_state_values && from[1]->ne[3] == 1 && is_cache(base_of(from[0])));
        ggml_tensor * step = ggml_reshape_3d(ctx, ggml_softplus(ctx, from[2]), 1, n_heads, n_tokens);
        ggml_tensor * decay;
        if (a->ne[0] == 1) {
            decay = ggml_mul(ctx, step, a);
        } else {
            decay = ggml_mul(ctx, ggml_repeat_4d(ctx, a, a->ne[0], n_heads, n_tokens, 1), step);
        }
        ggml_tensor * first = ggml_view_3d(ctx, base_of(from[0]), from[0]->ne[0], from[0]->ne[1], from[0]->ne[2],
                                           from[0]->nb[1], from[0]->nb[2], 0);
        become(node, "qcls_tree_scan", first, false, {from[5], from[4], from[1], ggml_exp(ctx, decay), step, first, tree});
    }

    ggml_context * ctx;
    ggml_cgraph * nodes;
    ggml_tensor * tree;
    const tree_node sizes;
    std::unordered_set<const ggml_tensor *> caches;
    std::unordered_map<const ggml_tensor *, int> n_uses;
    std::unordered_map<const ggml_tensor *, std::vector<ggml_tensor *>> products;  // of these activations
    std::unordered_map<const ggml_tensor *, ggml_tensor *> silu_of;
    std::vector<ggml_tensor *> before;
    std::unordered_set<const ggml_tensor *> needed;
};

}  // namespace

void walk_tree(const llm_graph_context & graph, const llm_graph_params & params) {
    const llama_memory_recurrent_context * states = states_of(params.mctx);
    if (states && states->walks_tree()) {
        changed_graph(graph, *states).change();
    }
}

}  // namespace qcls
