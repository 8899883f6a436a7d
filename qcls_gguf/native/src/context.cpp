// Contexts: opening and describing them, the contents of rows, kept graphs.
#include "shim.h"

#include "ggml.h"
#include "llama-ext.h"
#include "qcls_llama.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

ggml_type kv_type_from_name(const char * name) {
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
        if (strcmp(ggml_type_name(type), name) == 0) {
            return type;
        }
    }
    throw bad_argument(std::string("kv_type is ") + name + ": it must be one of f32 f16 bf16 q8_0 q4_0");
}

llama_flash_attn_type flash_attn_type(int32_t flash_attn) {
    switch (flash_attn) {
        case QCLS_FLASH_ATTN_AUTO: return LLAMA_FLASH_ATTN_TYPE_AUTO;
        case QCLS_FLASH_ATTN_OFF:  return LLAMA_FLASH_ATTN_TYPE_DISABLED;
        case QCLS_FLASH_ATTN_ON:   return LLAMA_FLASH_ATTN_TYPE_ENABLED;
        default: throw bad_argument("flash_attn is " + std::to_string(flash_attn) +
                                    ": it must be 0 (auto), 1 (off) or 2 (on)");
    }
}

void check_range(const char * name, int64_t value, int64_t least, int64_t most, const char * range) {
    if (value < least || value > most) {
        throw bad_argument(std::string(name) + " is " + std::to_string(value) + ": it must be " + range);
    }
}

// llama.cpp ends the process on some of these arguments, so they are refused here.
void check_params(const qcls_context_params & params) {
    check_range("n_ctx", params.n_ctx, 1, INT32_MAX, "positive");
    const int64_t most = (int64_t) llama_max_parallel_sequences();
    check_range("n_seq_max", params.n_seq_max, 1, most, ("between 1 and " + std::to_string(most)).c_str());
    check_range("n_batch", params.n_batch, params.n_seq_max, params.n_ctx, "between n_seq_max and n_ctx");
    check_range("n_outputs_max", params.n_outputs_max, params.n_seq_max, params.n_batch,
                "between n_seq_max and n_batch");
    check_range("n_state_seqs", params.n_state_seqs, 0, params.n_seq_max, "between 0 and n_seq_max");
    check_range("n_threads", params.n_threads, 1, 512, "between 1 and 512");
}

llama_context_params llama_params(const qcls_context_params & from) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = from.n_ctx;
    params.n_batch = from.n_batch;
    // a plan is one pass over the weights, but batch-invariant kernels take at most 1,024 tokens at once
    params.n_ubatch = from.batch_invariant ? std::min(from.n_batch, 1024) : from.n_batch;
    params.n_seq_max = from.n_seq_max;
    params.n_outputs_max = from.n_outputs_max;
    params.n_threads = from.n_threads;
    params.n_threads_batch = from.n_threads;
    params.pooling_type = LLAMA_POOLING_TYPE_NONE;
    params.attention_type = LLAMA_ATTENTION_TYPE_CAUSAL;
    params.flash_attn_type = flash_attn_type(from.flash_attn);
    params.type_k = kv_type_from_name(from.kv_type ? from.kv_type : "f16");
    params.type_v = params.type_k;
    const char * wanted = getenv("QCLS_VISIBLE_CELLS");  // "0" selects llama.cpp's attention, to compare
    const bool is_float = params.type_k == GGML_TYPE_F16 || params.type_k == GGML_TYPE_F32;
    if (from.visible_cells && from.flash_attn != QCLS_FLASH_ATTN_ON && is_float &&
        !(wanted && strcmp(wanted, "0") == 0)) {
        params.flash_attn_type = from.flash_attn == QCLS_FLASH_ATTN_OFF ? LLAMA_FLASH_ATTN_TYPE_VISIBLE_CELLS
                                                                        : LLAMA_FLASH_ATTN_TYPE_VISIBLE_CELLS_GPU;
    }
    params.no_perf = true;
    params.swa_full = true;    // after a trim, sequences need cells that a sliding window would have freed
    params.kv_unified = true;  // tokens of several sequences share cells
    return params;
}

// Contexts that are created while one of these lives are batch-invariant if is_wanted.
struct batch_invariant_scope {
    explicit batch_invariant_scope(bool is_wanted) {
        if (is_wanted && !qcls::set_batch_invariant(true)) {
            throw failure{QCLS_UNSUPPORTED, "batch_invariant is for NVIDIA GPUs, and this build has no CUDA backend: leave it "
                                            "out; max_batch 1 keeps queries apart"};
        }
    }
    ~batch_invariant_scope() { qcls::set_batch_invariant(false); }
    batch_invariant_scope(const batch_invariant_scope &) = delete;
    batch_invariant_scope & operator=(const batch_invariant_scope &) = delete;
};

void set_label_tokens(qcls_context & context, int64_t n, const int32_t * token) {
    check_array(token, n, "label tokens");
    if (n > 0 && !context.is_hidden_only()) {
        throw bad_argument("label tokens need a hidden-only context: the rows of this one hold all logits");
    }
    if (n > 0 && context.end_depth) {
        throw bad_argument("label tokens need all layers: the graph of this context ends after layer " +
                           std::to_string(context.end_depth));
    }
    if (n > 0 && context.is_batch_invariant) {
        check_range("n_outputs_max", context.n_outputs_max, 1, 112,
                    "at most 112 where exact scorings are to be batch-invariant: lower max_batch or kept_queries");
    }
    check_range("the number of label tokens", n, 0, context.n_vocab, "at most the vocabulary's size");
    for (int64_t i = 0; i < n; ++i) {
        if (token[i] < 0 || token[i] >= context.n_vocab) {
            throw bad_argument("label token " + std::to_string(token[i]) + " is outside the vocabulary of " +
                               std::to_string(context.n_vocab) + " tokens");
        }
    }
    std::vector<llama_token> wanted(token, token + n);
    context.settle();
    if (wanted == context.label_token) {
        return;
    }
    llama_context * ctx = context.ctx.get();
    if (!qcls::set_label_tokens(ctx, wanted)) {
        // no memory for buffers for the wanted tokens: allocate those for the former tokens again
        const bool restored = qcls::set_label_tokens(ctx, context.label_token);
        throw llama_failure(QCLS_LOAD_FAILED, restored ? "label tokens: llama.cpp could not make its buffers"
                                                       : "label tokens: the context is lost: close it");
    }
    context.label_token = std::move(wanted);
    context.note_graphs();
    context.note_rows();
}

void set_depths(qcls_context & context, int64_t n, const int32_t * depth, int32_t end) {
    check_array(depth, n, "depths");
    if (!context.is_hidden_only()) {
        throw bad_argument("depths need a hidden-only context: the rows of this one hold all logits");
    }
    if (end && !context.label_token.empty()) {
        throw bad_argument("a graph that ends after a layer gives no logits of label tokens");
    }
    const int32_t last = context.n_layer - 1;
    const int32_t first_end = context.n_left_out > 0;
    const int32_t last_end = std::min(last, context.n_layer - context.n_left_out);
    if (end == 0 && first_end > 0) {
        throw bad_argument("only " + std::to_string(last_end) + " of the model's " + std::to_string(context.n_layer) +
                           " layers are loaded, and what is asked reads all");
    }
    check_range("the layer after which the graph ends", end, first_end, last_end,
                ("between " + std::to_string(first_end) + " and " + std::to_string(last_end)).c_str());
    const int32_t most = end ? end - 1 : last;
    check_range("the number of depths", n, 0, last, "below the number of layers");
    for (int64_t i = 0; i < n; ++i) {
        check_range("a depth", depth[i], 1, most, ("between 1 and " + std::to_string(most)).c_str());
    }
    std::vector<int32_t> wanted(depth, depth + n);
    context.settle();
    if (wanted == context.depth && end == context.end_depth) {
        return;
    }
    llama_context * ctx = context.ctx.get();
    if (!qcls::set_depths(ctx, wanted, end)) {
        const failure why = llama_failure(QCLS_UNSUPPORTED, "depths: llama.cpp could not make the graph");
        if (!qcls::set_depths(ctx, context.depth, context.end_depth)) {
            throw llama_failure(QCLS_LOAD_FAILED, "depths: the context is lost: close it");
        }
        throw why;
    }
    context.depth = std::move(wanted);
    context.end_depth = end;
    context.note_graphs();
    context.note_rows();
}

// Contexts that are created while one of these lives have states for n of their sequences; 0: for all.
struct state_seqs_scope {
    explicit state_seqs_scope(int32_t n) { qcls::set_n_with_states(n); }
    ~state_seqs_scope() { qcls::set_n_with_states(0); }
};

// Makes a context without its threads.
std::unique_ptr<qcls_context> make_context(const qcls_model & model, const qcls_context_params & params) {
    check_params(params);
    llama_context_params wanted = llama_params(params);
    const batch_invariant_scope invariant(params.batch_invariant != 0);
    const state_seqs_scope states(params.n_state_seqs);

    auto made = std::make_unique<qcls_context>();
    made->ctx.reset(llama_init_from_model(model.model.get(), wanted));
    if (!made->ctx && wanted.flash_attn_type != flash_attn_type(params.flash_attn)) {
        // some models show only when their graph is built that they cannot have this attention
        wanted.flash_attn_type = flash_attn_type(params.flash_attn);
        made->ctx.reset(llama_init_from_model(model.model.get(), wanted));
    }
    llama_context * ctx = made->ctx.get();
    if (!ctx) {
        throw llama_failure(QCLS_LOAD_FAILED, "llama.cpp could not make a context");
    }
    if (const char * why = qcls::why_no_visible_cells(ctx); why && params.batch_invariant) {
        throw failure{QCLS_UNSUPPORTED, std::string("batch_invariant: attention reads every used cell, since ") + why +
                                            "; leave it out, max_batch 1 keeps queries apart"};
    }
    if (params.hidden_only && !qcls::set_hidden_only(ctx)) {
        throw llama_failure(QCLS_UNSUPPORTED, "no exact hidden-state path for this model");
    }
    made->memory = llama_get_memory(ctx);
    made->n_batch = (int32_t) llama_n_batch(ctx);
    made->n_seq_max = params.n_seq_max;
    made->n_outputs_max = params.n_outputs_max;
    made->is_batch_invariant = params.batch_invariant != 0;
    made->has_weights = model.has_weights;
    made->walks_trees = model.walks_trees;
    made->n_vocab = model.n_vocab();
    made->n_left_out = qcls::n_layers_left_out(model.model.get());
    made->n_layer = llama_model_n_layer(model.model.get()) + made->n_left_out;
    made->n_hidden = params.hidden_only ? llama_model_n_embd_out(model.model.get()) : 0;
    made->n_seq_id.resize(made->n_batch);
    made->seq_id.resize(made->n_batch);
    made->output.resize(made->n_batch);
    if (made->n_left_out > 0 && params.hidden_only) {
        set_depths(*made, 0, nullptr, made->n_layer - made->n_left_out);
    } else if (made->n_left_out > 0 && made->has_weights) {
        throw bad_argument("logits need all layers of the model, and " + std::to_string(made->n_left_out) +
                           " of them are not loaded");
    }
    set_label_tokens(*made, params.n_label_tokens, params.label_token);
    made->note_rows();
    return made;
}

}  // namespace

void qcls_context::note_graphs() {
    size_t shapes_bytes = 0;
    const size_t n = qcls::n_shapes_of(ctx.get(), shapes_bytes);
    const std::lock_guard<std::mutex> lock(facts_mutex);
    facts.n_graphs_reused = llama_perf_context(ctx.get()).n_reused;
    facts.n_shapes = (int64_t) n;
    facts.shapes_bytes = (int64_t) shapes_bytes;
}

void qcls_context::note_rows() {
    const std::vector<ggml_backend_dev_t> gpus = discrete_gpus();
    qcls_context_facts found = {};
    found.n_ctx = (int32_t) llama_n_ctx(ctx.get());
    found.n_batch = n_batch;
    found.n_seq_max = n_seq_max;
    found.n_outputs_max = n_outputs_max;
    found.row_size = (int32_t) row_size();
    found.hidden_only = is_hidden_only();
    if (is_hidden_only()) {
        const qcls::head_tail tail = qcls::head_tail_of(ctx.get());
        found.has_bias = tail.has_bias;
        found.scale = tail.scale;
        found.cap = tail.cap;
    }
    found.reads_all_since = qcls::why_no_visible_cells(ctx.get());
    found.n_gpus = (int32_t) gpus.size();
    for (const auto & [buft, bytes] : llama_get_memory_breakdown(ctx.get())) {
        found.cache_bytes += (int64_t) bytes.context;
        found.compute_bytes = std::max(found.compute_bytes, (int64_t) bytes.compute);
        const auto gpu = std::find(gpus.begin(), gpus.end(), ggml_backend_buft_get_device(buft));
        if (gpu != gpus.end() && !ggml_backend_buft_is_host(buft)) {
            found.gpu_cache_bytes[gpu - gpus.begin()] += (int64_t) bytes.context;
        }
    }
    const std::lock_guard<std::mutex> lock(facts_mutex);
    found.n_graphs_reused = facts.n_graphs_reused;
    found.n_shapes = facts.n_shapes;
    found.shapes_bytes = facts.shapes_bytes;
    facts = found;
}

int32_t qcls_context_open(const qcls_model * model, const qcls_context_params * params, qcls_context ** context,
                          qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        given(context, "context") = nullptr;
        const assertions_throw scope;
        auto made = make_context(given(model, "model"), given(params, "params"));
        if (made->has_weights) {
            start_threads(*made, params->n_threads);
        }
        *context = made.release();
    });
}

int32_t qcls_context_close(qcls_context * context, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        delete context;
#ifdef __GLIBC__
        // Caches and compute buffers are large, and glibc would keep their pages for the thread that allocated them:
        // a service that reloads its configuration in new threads would grow.
        malloc_trim(0);
#endif
    });
}

int32_t qcls_context_describe(const qcls_context * context, qcls_context_facts * facts, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        given(context, "context");
        const std::lock_guard<std::mutex> lock(context->facts_mutex);
        given(facts, "facts") = context->facts;
        facts->n_cuda_graphs = n_cuda_graph_launches();
    });
}

int32_t qcls_context_set_label_tokens(qcls_context * context, int64_t n, const int32_t * token, qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        const assertions_throw scope;
        set_label_tokens(ready(context), n, token);
    });
}

int32_t qcls_context_set_depths(qcls_context * context, int64_t n, const int32_t * depth, int32_t end,
                                qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        const assertions_throw scope;
        set_depths(ready(context), n, depth, end);
    });
}

int32_t qcls_context_keep_shapes(qcls_context * context, int32_t n_shapes, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        check_range("n_shapes", n_shapes, 0, INT32_MAX, "0 or more, not negative");
        if (!qcls::set_n_shapes(ready(context).ctx.get(), (size_t) n_shapes)) {
            throw llama_failure(QCLS_DECODE_FAILED, "the kept graphs could not be freed");
        }
        context->note_graphs();
    });
}
