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

ggml_custom_op_t operation(const char * name) {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    void * found = cpu ? ggml_backend_reg_get_proc_address(cpu, name) : nullptr;
    if (!found) {
        throw std::runtime_error("the CPU backend cannot walk token trees");
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

class changed_graph {
public:
    changed_graph(const llm_graph_context & graph, const llama_memory_recurrent_context & states)
        : ctx(graph.ctx0), nodes(graph.res->get_gf()), tree(tree_of(*graph.res)) {
        for (int32_t il = 0; il < graph.n_layer; ++il) {
            caches.insert(states.get_r_l(il));
            caches.insert(states.get_s_l(il));
        }
        for (int i = 0; i < ggml_graph_n_nodes(nodes); ++i) {
            before.push_back(ggml_graph_node(nodes, i));
        }
    }

    void change() {
        std::unordered_set<const ggml_tensor *> used;
        for (const ggml_tensor * node : before) {
            used.insert(node->src, node->src + GGML_MAX_SRC);
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
            if (!used.count(node) && !(node->op == GGML_OP_CPY && is_cache(base_of(node)))) {
                need(node);
            }
        }
        ggml_graph_clear(nodes);
        for (ggml_tensor * node : before) {  // in the same order: it decides which results share memory
            if (needed.count(node)) {
                ggml_build_forward_expand(nodes, node);
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

    void become(ggml_tensor * node, const char * name, std::initializer_list<ggml_tensor *> sources) {
        std::vector<ggml_tensor *> args(sources);
        ggml_tensor * made = ggml_custom_4d(ctx, node->type, node->ne[0], node->ne[1], node->ne[2], node->ne[3],
                                            args.data(), (int) args.size(), operation(name), GGML_N_TASKS_MAX, nullptr);
        node->op = made->op;
        memcpy(node->op_params, made->op_params, sizeof(node->op_params));
        memcpy(node->src, made->src, sizeof(node->src));
    }

    void change_convolution(ggml_tensor * node) {
        ggml_tensor * input = node->src[0];
        ggml_tensor * kernel = node->src[1];
        expect(input->op == GGML_OP_CONCAT && input->src[1]->nb[1] == sizeof(float) && kernel->type == GGML_TYPE_F32 &&
               kernel->ne[0] >= least_taps && kernel->ne[0] <= most_taps && node->ne[2] == 1);
        become(node, "qcls_tree_convolution", {input->src[1], kernel, state(input->src[0]), tree});
    }

    void change_delta_net(ggml_tensor * node) {
        ggml_tensor ** from = node->src;
        expect(from[0]->ne[0] <= most_state_values && from[0]->ne[3] == 1);
        become(node, "qcls_tree_delta_net",
               {from[0], from[1], from[2], ggml_exp(ctx, from[3]), from[4], state(from[5]), tree});
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
        become(node, "qcls_tree_scan", {from[5], from[4], from[1], ggml_exp(ctx, decay), step, first, tree});
    }

    ggml_context * ctx;
    ggml_cgraph * nodes;
    ggml_tensor * tree;
    std::unordered_set<const ggml_tensor *> caches;
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
