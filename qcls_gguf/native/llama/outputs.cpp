// What a context returns for a token: its hidden state, the residual streams at other depths, and the logits of label
// tokens (patches/0001-hidden-only.patch and 0002-label-logits.patch).
#include "qcls_llama.h"

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <memory>
#include <stdexcept>

// --- graphs ---------------------------------------------------------------------------------------------------------

namespace qcls {
namespace {

class label_tokens_input : public llm_graph_input_i {
public:
    label_tokens_input(const llama_cparams & cparams, uint32_t n_outputs)
        : tokens(cparams.label_tokens), n_outputs(n_outputs) {}

    void set_input(const llama_ubatch *) override {
        for (uint32_t i = 0; i < n_outputs; ++i) {
            ggml_backend_tensor_set(label_tokens, tokens.data(), i * label_tokens->nb[1],
                                    tokens.size() * sizeof(llama_token));
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        return n_outputs == params.n_outputs && tokens == params.cparams.label_tokens;
    }

    ggml_tensor * label_tokens = nullptr;  // I32 [n_label_tokens, n_outputs]
    const std::vector<llama_token> tokens;
    const uint32_t n_outputs;
};

// [n_label_tokens + 1, n_outputs] The logits of the label tokens, then the log-sum-exp over the vocabulary.
ggml_tensor * label_logits(const llm_graph_context & graph) {
    ggml_context * ctx = graph.ctx0;
    ggml_tensor * logits = graph.res->t_logits;  // [n_vocab, n_outputs]
    const int64_t n_vocab = logits->ne[0];
    const int64_t n_rows = logits->ne[1];
    const int64_t n_labels = (int64_t) graph.cparams.label_tokens.size();

    auto input = std::make_unique<label_tokens_input>(graph.cparams, graph.n_outputs);
    input->label_tokens = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_labels, n_rows);
    ggml_set_input(input->label_tokens);
    ggml_set_name(input->label_tokens, "label_tokens");

    // get_rows reads rows, so each logit is made a row of one float
    ggml_tensor * rows = ggml_reshape_3d(ctx, logits, 1, n_vocab, n_rows);
    ggml_tensor * chosen = ggml_get_rows(ctx, rows, input->label_tokens);
    ggml_tensor * top = ggml_get_rows(ctx, rows, ggml_reshape_2d(ctx, ggml_argmax(ctx, logits), 1, n_rows));
    top = ggml_reshape_2d(ctx, top, 1, n_rows);
    ggml_tensor * sum = ggml_sum_rows(ctx, ggml_exp(ctx, ggml_sub(ctx, logits, top)));
    graph.res->add_input(std::move(input));
    return ggml_concat(ctx, ggml_reshape_2d(ctx, chosen, n_labels, n_rows), ggml_add(ctx, ggml_log(ctx, sum), top), 0);
}

// The index of the node that is the residual stream after `depth` layers: the input of the next layer, if the
// architecture's graph records it, otherwise the output of layer depth - 1, found by its name.
int find_layer_output(const llm_graph_context & graph, ggml_cgraph * nodes, int32_t depth) {
    const std::vector<ggml_tensor *> & taken = graph.res->t_layer_inp;
    const ggml_tensor * input = (size_t) depth < taken.size() ? taken[depth] : nullptr;
    const std::string layer = "-" + std::to_string(depth - 1);
    const auto is_output = [&](const ggml_tensor * node) {
        return "l_out" + layer == ggml_get_name(node) || "nemotron_h_block_out" + layer == ggml_get_name(node);
    };
    for (int i = 0; i < ggml_graph_n_nodes(nodes); ++i) {
        const ggml_tensor * node = ggml_graph_node(nodes, i);
        if (input ? node == input : is_output(node)) {
            // the last layer of a graph may compute its output only for the flagged tokens
            const bool has_rows = node->ne[1] == graph.n_tokens || (depth == graph.n_layer && node->ne[1] == graph.n_outputs);
            if (node->type == GGML_TYPE_F32 && node->ne[0] == graph.n_embd && has_rows && node->ne[2] * node->ne[3] == 1) {
                return i;
            }
            break;
        }
    }
    throw std::runtime_error("llama.cpp's graph of this model shows no residual stream of one row a token after layer " +
                             std::to_string(depth));
}

// [n_embd, n_outputs] The rows of a node that belong to flagged tokens.
ggml_tensor * flagged_rows(const llm_graph_context & graph, ggml_tensor * node) {
    for (const auto & input : graph.res->inputs) {
        if (const auto * outputs = dynamic_cast<const llm_graph_input_out_ids *>(input.get())) {
            return ggml_get_rows(graph.ctx0, node, outputs->out_ids);
        }
    }
    return ggml_get_rows(graph.ctx0, node, graph.build_inp_out_ids());
}

}  // namespace

void end_at_hidden_state(const llm_graph_context & graph, const llm_graph_params & params, const ggml_tensor * head,
                         const ggml_tensor * bias) {
    const llama_cparams & cparams = params.cparams;
    llm_graph_result * res = graph.res;
    ggml_cgraph * nodes = res->get_gf();
    res->head_tail = read_head_tail(nodes, res->t_embd, head, bias);
    if (res->t_embd->ne[1] != params.n_outputs) {
        throw std::runtime_error("this model's final norm is not that of the flagged tokens");
    }
    std::vector<ggml_tensor *> beside;
    for (const int32_t depth : cparams.depths) {
        beside.push_back(flagged_rows(graph, ggml_graph_node(nodes, find_layer_output(graph, nodes, depth))));
    }
    if (cparams.end_depth) {
        const int last = find_layer_output(graph, nodes, cparams.end_depth);
        ggml_tensor * state = ggml_graph_node(nodes, last);
        res->t_embd = state->ne[1] == graph.n_outputs ? state : flagged_rows(graph, state);
        drop_last_nodes(nodes, ggml_graph_n_nodes(nodes) - 1 - last);
        ggml_build_forward_expand(nodes, res->t_embd);
    } else if (cparams.label_tokens.empty()) {
        drop_last_nodes(nodes, res->head_tail.n_nodes);
    } else {
        beside.push_back(label_logits(graph));
    }
    for (ggml_tensor * vector : beside) {
        res->t_beside = res->t_beside ? ggml_concat(graph.ctx0, res->t_beside, vector, 0) : vector;
    }
    if (res->t_beside) {
        graph.cb(res->t_beside, "beside", -1);
        ggml_build_forward_expand(nodes, res->t_beside);
    }
    res->t_logits = nullptr;
}

}  // namespace qcls

// --- the context ----------------------------------------------------------------------------------------------------

void llama_context::set_hidden_only(bool value) {
    if (cparams.hidden_only == value) {
        return;
    }
    cparams.hidden_only = value;
    reserve_outputs();
}

void llama_context::set_label_tokens(std::vector<llama_token> tokens) {
    if (!cparams.hidden_only) {
        throw std::runtime_error("label tokens need a hidden-only context");
    }
    for (const llama_token token : tokens) {
        if (token < 0 || (uint32_t) token >= model.vocab.n_tokens()) {
            throw std::runtime_error(format("label token %d is outside the vocabulary", token));
        }
    }
    cparams.label_tokens = std::move(tokens);
    count_beside();
    reserve_outputs();
}

void llama_context::set_depths(std::vector<int32_t> depths, int32_t end) {
    if (!cparams.hidden_only || (end && !cparams.label_tokens.empty())) {
        throw std::runtime_error("depths need a hidden-only context, and label tokens the whole graph");
    }
    if (model.hparams.n_embd_out() != model.hparams.n_embd) {
        throw std::runtime_error("the hidden states of this model are not as long as its residual stream");
    }
    cparams.depths = std::move(depths);
    cparams.end_depth = end;
    count_beside();
    reserve_outputs();
}

void llama_context::count_beside() {
    const size_t n_labels = cparams.label_tokens.size();
    cparams.n_beside = cparams.depths.size() * model.hparams.n_embd + (n_labels ? n_labels + 1 : 0);
}

// The compute and output buffers were sized for a graph with another tail. Sizes them again, now rather than in the
// first decode.
void llama_context::reserve_outputs() {
    synchronize();
    buf_output.reset();
    sched_need_reserve = true;
    sched_reserve();
    if (output_reserve(cparams.n_seq_max) < cparams.n_seq_max) {
        throw std::runtime_error("failed to reserve output buffer");
    }
}

void llama_context::extract_beside(ggml_tensor * from, int64_t first, int64_t n) {
    const int64_t n_floats = (int64_t) cparams.n_beside;
    GGML_ASSERT((first + n) * n_floats <= (int64_t) beside.size);
    ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched.get(), from);
    ggml_backend_tensor_get_async(backend, from, beside.data + first * n_floats, 0, n * n_floats * sizeof(float));
}

const float * llama_context::get_beside() {
    synchronize();
    output_reorder();
    return beside.data;
}

qcls::head_tail llama_context::get_head_tail() const {
    return get_gf_res_reserve()->head_tail;
}

// --- what the shim calls --------------------------------------------------------------------------------------------

namespace qcls {
namespace {

// Whether a call succeeded; if it did not, llama.cpp's log says why.
template <typename Call> bool went_well(const char * what, const Call & call) {
    try {
        call();
        return true;
    } catch (const std::exception & err) {
        LLAMA_LOG_ERROR("%s: %s\n", what, err.what());
        return false;
    }
}

}  // namespace

bool set_hidden_only(llama_context * ctx) {
    return went_well("hidden-only", [&] { ctx->set_hidden_only(true); });
}

head_tail head_tail_of(const llama_context * ctx) {
    return ctx->get_head_tail();
}

bool set_label_tokens(llama_context * ctx, const std::vector<llama_token> & tokens) {
    return went_well("label tokens", [&] { ctx->set_label_tokens(tokens); });
}

bool set_depths(llama_context * ctx, const std::vector<int32_t> & depths, int32_t end) {
    return went_well("depths", [&] { ctx->set_depths(depths, end); });
}

const float * beside_of(llama_context * ctx) {
    return ctx->get_beside();
}

bool set_n_shapes(llama_context * ctx, size_t n) {
    return went_well("shapes", [&] { ctx->set_n_shapes(n); });
}

size_t n_shapes_of(const llama_context * ctx, size_t & bytes) {
    return ctx->get_n_shapes(bytes);
}

const char * why_no_visible_cells(const llama_context * ctx) {
    return ctx->why_no_visible_cells;
}

}  // namespace qcls
