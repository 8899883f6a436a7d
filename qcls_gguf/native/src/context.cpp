// Contexts: opening them, what their rows hold, what they keep.
#include "shim.h"

#include "ggml.h"
#include "llama-ext.h"

#include <algorithm>
#include <cstdio>
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
    const int64_t most = qcls_max_sequences();
    check_range("n_seq_max", params.n_seq_max, 1, most, ("between 1 and " + std::to_string(most)).c_str());
    check_range("n_batch", params.n_batch, params.n_seq_max, params.n_ctx, "between n_seq_max and n_ctx");
    check_range("n_outputs_max", params.n_outputs_max, params.n_seq_max, params.n_batch,
                "between n_seq_max and n_batch");
    check_range("n_threads", params.n_threads, 1, 512, "between 1 and 512");
}

llama_context_params llama_params(const qcls_context_params & from) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = from.n_ctx;
    params.n_batch = from.n_batch;
    // a plan is one pass over the weights; batch-invariant kernels take no more tokens at once
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

llama_memory_breakdown_data memory_of(const llama_context * ctx) {
    llama_memory_breakdown_data sum;
    for (const auto & [_, bytes] : llama_get_memory_breakdown(ctx)) {
        sum.context += bytes.context;
        sum.compute += bytes.compute;
    }
    return sum;
}

// Contexts created while it lives are batch-invariant, if that is asked for.
struct batch_invariant_scope {
    explicit batch_invariant_scope(bool is_wanted) {
        if (is_wanted && !llama_set_batch_invariant(true)) {
            throw failure{QCLS_UNSUPPORTED, "batch_invariant is for NVIDIA GPUs, and this build has no CUDA backend: leave it "
                                            "out; max_batch 1 keeps queries apart"};
        }
    }
    ~batch_invariant_scope() { llama_set_batch_invariant(false); }
    batch_invariant_scope(const batch_invariant_scope &) = delete;
    batch_invariant_scope & operator=(const batch_invariant_scope &) = delete;
};

void set_label_tokens(qcls_context & context, int64_t n, const int32_t * token) {
    check_array(token, n, "label tokens");
    if (n > 0 && !context.is_hidden_only()) {
        throw bad_argument("label tokens need a hidden-only context: the rows of this one hold all logits");
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
    if (!llama_set_label_tokens(ctx, wanted.data(), (int32_t) n)) {
        // no memory for buffers for the wanted tokens: allocate those for the former tokens again
        const std::vector<llama_token> & former = context.label_token;
        const bool restored = llama_set_label_tokens(ctx, former.data(), (int32_t) former.size());
        throw llama_failure(QCLS_LOAD_FAILED, restored ? "label tokens: llama.cpp could not make its buffers"
                                                       : "label tokens: the context is lost: close it");
    }
    context.label_token = std::move(wanted);
    context.note_graphs();
    context.compute_bytes = (int64_t) memory_of(ctx).compute;
}

// A context but for its threads.
std::unique_ptr<qcls_context> make_context(const qcls_model & model, const qcls_context_params * given_params) {
    const qcls_context_params params =
        taken(given_params, QCLS_UP_TO(qcls_context_params, n_threads), "qcls_context_params");
    check_params(params);
    llama_context_params wanted = llama_params(params);
    const batch_invariant_scope invariant(params.batch_invariant != 0);

    auto made = std::make_unique<qcls_context>();
    made->ctx.reset(llama_init_from_model(model.model.get(), wanted));
    if (!made->ctx && wanted.flash_attn_type != flash_attn_type(params.flash_attn)) {
        // a graph that has no such attention says so when it is built
        wanted.flash_attn_type = flash_attn_type(params.flash_attn);
        made->ctx.reset(llama_init_from_model(model.model.get(), wanted));
    }
    llama_context * ctx = made->ctx.get();
    if (!ctx) {
        throw llama_failure(QCLS_LOAD_FAILED, "llama.cpp could not make a context");
    }
    if (const char * why = llama_why_no_visible_cells(ctx); why && params.batch_invariant) {
        throw failure{QCLS_UNSUPPORTED, std::string("batch_invariant: attention reads every used cell, since ") + why +
                                            "; leave it out, max_batch 1 keeps queries apart"};
    }
    if (params.hidden_only && !llama_set_hidden_only(ctx, true)) {
        throw llama_failure(QCLS_UNSUPPORTED, "no exact hidden-state path for this model");
    }
    made->memory = llama_get_memory(ctx);
    made->n_batch = (int32_t) llama_n_batch(ctx);
    made->n_seq_max = params.n_seq_max;
    made->n_outputs_max = params.n_outputs_max;
    made->is_batch_invariant = params.batch_invariant != 0;
    made->compute_bytes = (int64_t) memory_of(ctx).compute;
    made->n_vocab = model.n_vocab();
    made->n_hidden = params.hidden_only ? llama_model_n_embd_out(model.model.get()) : 0;
    made->n_seq_id.resize(made->n_batch);
    made->seq_id.resize(made->n_batch);
    made->output.resize(made->n_batch);
    set_label_tokens(*made, params.n_label_tokens, params.label_token);
    return made;
}

}  // namespace

void qcls_context::note_graphs() {
    size_t shapes_bytes = 0;
    n_graphs_reused = llama_perf_context(ctx.get()).n_reused;
    n_shapes = llama_get_n_shapes(ctx.get(), &shapes_bytes);
}

int32_t qcls_max_sequences(void) {
    return (int32_t) llama_max_parallel_sequences();
}

int32_t qcls_context_open(const qcls_model * model, const qcls_context_params * params, qcls_context ** context,
                          qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        given(context, "context") = nullptr;
        if (!given(model, "model").has_weights) {
            throw bad_argument("the model was opened without weights: qcls_context_measure takes it");
        }
        const assertions_throw scope;
        auto made = make_context(*model, params);
        start_threads(*made, given(params, "params").n_threads);
        *context = made.release();
    });
}

int32_t qcls_context_measure(const qcls_model * model, const qcls_context_params * params, qcls_context_memory * memory,
                             qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        if (given(model, "model").has_weights) {
            throw bad_argument("the model was opened with its weights: qcls_context_open and qcls_context_counters tell");
        }
        const assertions_throw scope;
        const auto made = make_context(*model, params);
        qcls_context_memory found = {};
        found.cache_bytes = (int64_t) memory_of(made->ctx.get()).context;
        found.compute_bytes = made->compute_bytes;
        const std::vector<ggml_backend_dev_t> gpus = discrete_gpus();
        found.n_gpus = (int32_t) gpus.size();
        for (const auto & [buft, bytes] : llama_get_memory_breakdown(made->ctx.get())) {
            const auto gpu = std::find(gpus.begin(), gpus.end(), ggml_backend_buft_get_device(buft));
            if (gpu != gpus.end() && !ggml_backend_buft_is_host(buft)) {
                found.gpu_cache_bytes[gpu - gpus.begin()] += (int64_t) bytes.context;
            }
        }
        fill(memory, "memory", found);
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

int32_t qcls_context_limits(const qcls_context * context, qcls_limits * limits, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        qcls_limits found = {};
        found.n_ctx = (int32_t) llama_n_ctx(given(context, "context").ctx.get());
        found.n_batch = context->n_batch;
        found.n_seq_max = context->n_seq_max;
        found.n_outputs_max = context->n_outputs_max;
        found.row_size = (int32_t) context->row_size();
        fill(limits, "limits", found);
    });
}

int32_t qcls_context_head_tail(const qcls_context * context, qcls_head_tail * tail, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        if (!given(context, "context").is_hidden_only()) {
            throw bad_argument("head_tail: rows of this context are logits");
        }
        bool has_bias = false;
        qcls_head_tail found = {};
        llama_get_head_tail(context->ctx.get(), &found.scale, &found.cap, &has_bias);
        found.has_bias = has_bias;
        fill(tail, "tail", found);
    });
}

int32_t qcls_context_set_label_tokens(qcls_context * context, int64_t n, const int32_t * token, qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        const assertions_throw scope;
        set_label_tokens(given(context, "context"), n, token);
    });
}

int32_t qcls_context_attention(const qcls_context * context, char * why, int64_t capacity, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const char * reason = llama_why_no_visible_cells(given(context, "context").ctx.get());
        check_array(why, capacity, "why");
        if (capacity > 0) {
            snprintf(why, (size_t) capacity, "%s", reason ? reason : "");
        }
    });
}

int32_t qcls_context_keep_shapes(qcls_context * context, int32_t n_shapes, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        given(context, "context");
        check_range("n_shapes", n_shapes, 0, INT32_MAX, "0 or more, not negative");
        context->settle();
        if (!llama_set_n_shapes(context->ctx.get(), n_shapes)) {
            throw llama_failure(QCLS_DECODE_FAILED, "the kept graphs could not be freed");
        }
        context->note_graphs();
    });
}

int32_t qcls_context_counters(const qcls_context * context, qcls_counters * counters, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const llama_context * ctx = given(context, "context").ctx.get();
        size_t shapes_bytes = 0;
        qcls_counters found = {};
        found.n_graphs_reused = llama_perf_context(ctx).n_reused;
        found.n_shapes = llama_get_n_shapes(ctx, &shapes_bytes);
        found.shapes_bytes = (int64_t) shapes_bytes;
        found.n_cuda_graphs = n_cuda_graph_launches();
        found.cache_bytes = (int64_t) memory_of(ctx).context;
        found.compute_bytes = context->compute_bytes;
        fill(counters, "counters", found);
    });
}

int32_t qcls_context_graphs(const qcls_context * context, int64_t * n_reused, int64_t * n_kept, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        given(n_reused, "n_reused") = given(context, "context").n_graphs_reused;
        given(n_kept, "n_kept") = context->n_shapes;
    });
}
