// What a context gives for a token: hidden states, and beside them the logits of label tokens
// (patches/0001-hidden-only.patch and 0002-label-logits.patch).
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

void add_label_logits(const llm_graph_context & graph) {
    ggml_context * ctx = graph.ctx0;
    llm_graph_result * res = graph.res;
    ggml_tensor * logits = res->t_logits;  // [n_vocab, n_outputs]
    const int64_t n_vocab = logits->ne[0];
    const int64_t n_rows = logits->ne[1];
    const int64_t n_labels = (int64_t) graph.cparams.label_tokens.size();

    auto input = std::make_unique<label_tokens_input>(graph.cparams, graph.n_outputs);
    input->label_tokens = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_labels, n_rows);
    ggml_set_input(input->label_tokens);
    ggml_set_name(input->label_tokens, "label_tokens");

    // a logit is a row of one float
    ggml_tensor * each = ggml_reshape_3d(ctx, logits, 1, n_vocab, n_rows);
    ggml_tensor * chosen = ggml_get_rows(ctx, each, input->label_tokens);
    ggml_tensor * top = ggml_get_rows(ctx, each, ggml_reshape_2d(ctx, ggml_argmax(ctx, logits), 1, n_rows));
    top = ggml_reshape_2d(ctx, top, 1, n_rows);
    ggml_tensor * sum = ggml_sum_rows(ctx, ggml_exp(ctx, ggml_sub(ctx, logits, top)));

    res->t_label_logits = ggml_concat(ctx, ggml_reshape_2d(ctx, chosen, n_labels, n_rows),
                                      ggml_add(ctx, ggml_log(ctx, sum), top), 0);
    graph.cb(res->t_label_logits, "label_logits", -1);
    res->add_input(std::move(input));
    ggml_build_forward_expand(graph.gf, res->t_label_logits);
}

}  // namespace

void end_at_hidden_state(const llm_graph_context & graph, const llm_graph_params & params, const ggml_tensor * head,
                         const ggml_tensor * bias) {
    llm_graph_result * res = graph.res;
    ggml_cgraph * nodes = res->get_gf();
    res->head_tail = read_head_tail(nodes, res->t_embd, head, bias);
    if (res->t_embd->ne[1] != params.n_outputs) {
        throw std::runtime_error("this model's final norm is not that of the flagged tokens");
    }
    if (params.cparams.label_tokens.empty()) {
        drop_last_nodes(nodes, res->head_tail.n_nodes);
    } else {
        add_label_logits(graph);
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
    reserve_outputs();
}

// The compute and output buffers were sized with another tail: they are sized anew, now rather than in the first decode.
void llama_context::reserve_outputs() {
    synchronize();
    buf_output.reset();
    sched_need_reserve = true;
    sched_reserve();
    if (output_reserve(cparams.n_seq_max) < cparams.n_seq_max) {
        throw std::runtime_error("failed to reserve output buffer");
    }
}

void llama_context::extract_label_logits(ggml_tensor * from, int64_t first, int64_t n) {
    const int64_t n_floats = (int64_t) cparams.label_tokens.size() + 1;
    GGML_ASSERT((first + n) * n_floats <= (int64_t) label_logits.size);
    ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched.get(), from);
    ggml_backend_tensor_get_async(backend, from, label_logits.data + first * n_floats, 0, n * n_floats * sizeof(float));
}

const float * llama_context::get_label_logits() {
    synchronize();
    output_reorder();
    return label_logits.data;
}

qcls::head_tail llama_context::get_head_tail() const {
    return get_gf_res_reserve()->head_tail;
}

// --- what the shim calls --------------------------------------------------------------------------------------------

namespace qcls {
namespace {

// Whether a call went well; otherwise llama.cpp's log says why not.
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

const float * label_logits_of(llama_context * ctx) {
    return ctx->get_label_logits();
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
