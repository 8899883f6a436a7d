#include "qcls.h"

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

struct qcls_model {
    llama_model * model;
    const llama_vocab * vocab;
};

struct qcls_context {
    llama_context * ctx;
    llama_memory_t memory;
    int32_t n_batch;
    int32_t n_seq_max;
    int32_t n_outputs_max;
    int32_t n_vocab;
    int32_t n_hidden;        // floats of a hidden state, 0 where the context computes logits
    int32_t n_label_logits;  // floats behind it
    int32_t row_size;        // n_hidden + n_label_logits, or n_vocab
    bool hidden_only;
    int32_t n_rows_left = 0;  // of the last decode, for qcls_decode_rows
    // what llama_batch wants beside the caller's own arrays, [n_batch] each
    std::vector<int32_t> n_seq_id;
    std::vector<llama_seq_id *> seq_id;
    std::vector<int8_t> output;
};

namespace {

struct {
    std::recursive_mutex mutex;  // a log function may set another one
    qcls_log_fn log = nullptr;
    void * user = nullptr;
} sink;

// llama.cpp reports the cause of a failure through its log only: the errors of this thread's call
thread_local std::string complaints;

void on_log(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        complaints += text;
    }
    std::lock_guard<std::recursive_mutex> lock(sink.mutex);
    if (sink.log) {
        sink.log((int32_t) level, text, sink.user);
    }
}

// While a file is being loaded, a failed assertion of llama.cpp (a damaged vocabulary, say) is an error like others:
// its loader catches exceptions. Anywhere else the process ends, as llama.cpp means it to.
thread_local bool loading = false;

struct loading_scope {
    loading_scope() { loading = true; }
    ~loading_scope() { loading = false; }
};

void on_abort(const char * message) {
    if (loading) {
        throw std::runtime_error(message);
    }
    fprintf(stderr, "%s\n", message);
}

void init_once() {
    static const bool done = [] {
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_abort);
        llama_backend_init();
        return true;
    }();
    (void) done;
}

int32_t fail(int32_t status, const std::string & message, char * error, int32_t error_size) {
    if (error && error_size > 0) {
        snprintf(error, error_size, "%s", message.c_str());
    }
    return status;
}

std::string with_complaints(std::string message) {
    while (!complaints.empty() && complaints.back() == '\n') {
        complaints.pop_back();
    }
    return complaints.empty() ? message : message + ": " + complaints;
}

// No exception may cross the border to Python.
template <typename F> int32_t guarded(char * error, int32_t error_size, int32_t status, F && body) {
    complaints.clear();
    try {
        return body();
    } catch (const std::exception & e) {
        return fail(status, with_complaints(e.what()), error, error_size);
    } catch (...) {
        return fail(status, with_complaints("unknown C++ exception"), error, error_size);
    }
}

const char * why_unsupported(const llama_model * model) {
    if (llama_model_is_hybrid(model)) {
        return "a hybrid model: its recurrent layers cannot share prefix cells between label branches";
    }
    if (llama_model_is_recurrent(model)) {
        return "a recurrent model: its state cannot branch by sequence in one decode";
    }
    if (llama_model_is_diffusion(model)) {
        return "a diffusion model: it has no next-token distribution";
    }
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        return "not a decoder-only model";
    }
    char text[128];
    std::string key = llama_model_meta_val_str(model, "general.architecture", text, sizeof(text)) > 0 ? text : "";
    key += ".attention.causal";
    if (llama_model_meta_val_str(model, key.c_str(), text, sizeof(text)) > 0 && strcmp(text, "false") == 0) {
        return "a bidirectional model: it has no next-token distribution";
    }
    return nullptr;
}

ggml_type kv_type_from_name(const char * name) {
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
        if (strcmp(ggml_type_name(type), name) == 0) {
            return type;
        }
    }
    return GGML_TYPE_COUNT;
}

// A function that a patch adds to the CUDA backend; NULL in a build without it.
void * cuda_function(const char * name) {
    ggml_backend_reg_t cuda = ggml_backend_reg_by_name("CUDA");
    return cuda ? ggml_backend_reg_get_proc_address(cuda, name) : nullptr;
}

int64_t n_cuda_graph_launches() {
    void * launches = cuda_function("ggml_backend_cuda_n_graph_launches");
    return launches ? reinterpret_cast<int64_t (*)()>(launches)() : -1;
}

}  // namespace

int32_t qcls_abi(void) {
    return QCLS_ABI;
}

const char * qcls_build_info(void) {
    return QCLS_LLAMA_COMMIT "\t" QCLS_LLAMA_VERSION "\t" QCLS_SOURCE_DIGEST "\t" QCLS_BACKEND;
}

void qcls_set_log(qcls_log_fn log, void * user) {
    {
        std::lock_guard<std::recursive_mutex> lock(sink.mutex);
        sink.log = log;
        sink.user = user;
    }
    init_once();
}

int32_t qcls_device(int32_t index, int32_t * type, char * name, int32_t name_size, uint64_t * free_bytes,
                    uint64_t * total_bytes) {
    init_once();
    if (index < 0 || (size_t) index >= ggml_backend_dev_count()) {
        return QCLS_BAD_ARGUMENT;
    }
    ggml_backend_dev_t device = ggml_backend_dev_get(index);
    switch (ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU:  *type = 0; break;
        case GGML_BACKEND_DEVICE_TYPE_GPU:  *type = 1; break;
        case GGML_BACKEND_DEVICE_TYPE_IGPU: *type = 2; break;
        default:                            *type = 3; break;
    }
    size_t free_size = 0;
    size_t total_size = 0;
    ggml_backend_dev_memory(device, &free_size, &total_size);
    *free_bytes = free_size;
    *total_bytes = total_size;
    snprintf(name, name_size, "%s", ggml_backend_dev_description(device));
    return QCLS_OK;
}

int32_t qcls_multiprocessors(int32_t * count) {
    init_once();
    void * multiprocessors = cuda_function("ggml_backend_cuda_multiprocessors");
    return multiprocessors && reinterpret_cast<bool (*)(int, int *)>(multiprocessors)(0, count);
}

int32_t qcls_model_open(const char * path, int32_t n_gpu_layers, qcls_progress_fn progress, void * user,
                        qcls_model ** out, char * error, int32_t error_size) {
    return guarded(error, error_size, QCLS_LOAD_FAILED, [&] {
        init_once();
        *out = nullptr;
        struct progress_state {
            qcls_progress_fn fn;
            void * user;
        } state = {progress, user};

        llama_model_params params = llama_model_default_params();
        params.n_gpu_layers = n_gpu_layers;
        params.lazy_mode = LLAMA_LAZY_MODE_OFF;
        if (progress) {
            params.progress_callback_user_data = &state;
            params.progress_callback = [](float done, void * data) {
                auto * s = static_cast<progress_state *>(data);
                return s->fn(done, s->user) != 0;
            };
        }
        const loading_scope scope;
        llama_model * model = llama_model_load_from_file(path, params);
        if (!model) {
            return fail(QCLS_LOAD_FAILED, with_complaints("llama.cpp could not load the model"), error, error_size);
        }
        if (const char * why = why_unsupported(model)) {
            llama_model_free(model);
            return fail(QCLS_UNSUPPORTED, why, error, error_size);
        }
        *out = new qcls_model{model, llama_model_get_vocab(model)};
        return (int32_t) QCLS_OK;
    });
}

void qcls_model_close(qcls_model * model) {
    if (model) {
        llama_model_free(model->model);
        delete model;
    }
}

void qcls_model_facts(const qcls_model * model, int64_t * fact) {
    const llama_model * m = model->model;
    const llama_vocab * v = model->vocab;
    fact[QCLS_FACT_N_VOCAB]     = llama_vocab_n_tokens(v);
    fact[QCLS_FACT_N_EMBD]      = llama_model_n_embd(m);
    fact[QCLS_FACT_N_LAYER]     = llama_model_n_layer(m);
    fact[QCLS_FACT_N_CTX_TRAIN] = llama_model_n_ctx_train(m);
    fact[QCLS_FACT_SIZE_BYTES]  = (int64_t) llama_model_size(m);
    fact[QCLS_FACT_N_PARAMS]    = (int64_t) llama_model_n_params(m);
    fact[QCLS_FACT_TOKEN_BOS]   = llama_vocab_bos(v);
    fact[QCLS_FACT_TOKEN_EOS]   = llama_vocab_eos(v);
    fact[QCLS_FACT_TOKEN_EOT]   = llama_vocab_eot(v);
    fact[QCLS_FACT_ADD_BOS]     = llama_vocab_get_add_bos(v);
}

void qcls_model_description(const qcls_model * model, char * text, int32_t text_size) {
    llama_model_desc(model->model, text, text_size);
}

int32_t qcls_tokenize(const qcls_model * model, const char * text, int32_t n_bytes, int32_t parse_special,
                      int32_t * token, int32_t capacity, int32_t * n_tokens, char * error, int32_t error_size) {
    return guarded(error, error_size, QCLS_BAD_ARGUMENT, [&] {
        const int32_t n = llama_tokenize(model->vocab, text, n_bytes, token, capacity, false, parse_special != 0);
        if (n == INT32_MIN) {
            return fail(QCLS_BAD_ARGUMENT, "the text has more tokens than an int32 can count", error, error_size);
        }
        *n_tokens = n < 0 ? -n : n;
        return (int32_t) (n < 0 ? QCLS_TOO_SMALL : QCLS_OK);
    });
}

int32_t qcls_token_piece(const qcls_model * model, int32_t token, char * text, int32_t capacity, int32_t * n_bytes,
                         int32_t * special, char * error, int32_t error_size) {
    return guarded(error, error_size, QCLS_BAD_ARGUMENT, [&] {
        if (token < 0 || token >= llama_vocab_n_tokens(model->vocab)) {
            return fail(QCLS_BAD_ARGUMENT, "token " + std::to_string(token) + " is outside the vocabulary", error, error_size);
        }
        const int32_t n = llama_token_to_piece(model->vocab, token, text, capacity, 0, true);
        const int attr = llama_vocab_get_attr(model->vocab, token);
        *n_bytes = n < 0 ? -n : n;
        *special = (attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0;
        return (int32_t) (n < 0 ? QCLS_TOO_SMALL : QCLS_OK);
    });
}

int32_t qcls_max_sequences(void) {
    return (int32_t) llama_max_parallel_sequences();
}

int32_t qcls_context_open(qcls_model * model, int32_t hidden_only, int32_t n_label_tokens,
                          const int32_t * label_token, int32_t n_ctx, int32_t n_batch, int32_t n_seq_max,
                          int32_t n_outputs_max, int32_t n_threads, int32_t flash_attn, const char * kv_type,
                          qcls_context ** out, char * error, int32_t error_size) {
    return guarded(error, error_size, QCLS_LOAD_FAILED, [&] {
        *out = nullptr;
        const char * wanted = getenv("QCLS_VISIBLE_CELLS");
        const bool switched_off = wanted && strcmp(wanted, "0") == 0;
        // llama.cpp aborts the process on some of these, so none may reach it
        const ggml_type type = kv_type_from_name(kv_type);
        const std::string seq_range = "n_seq_max must be between 1 and " + std::to_string(llama_max_parallel_sequences());
        const char * bad = n_ctx < 1                                       ? "n_ctx must be positive"
                         : n_seq_max < 1 || n_seq_max > qcls_max_sequences()
                                                                           ? seq_range.c_str()
                         : n_batch < n_seq_max || n_batch > n_ctx          ? "n_batch must be between n_seq_max and n_ctx"
                         : n_outputs_max < n_seq_max || n_outputs_max > n_batch
                                                                           ? "n_outputs_max must be between n_seq_max and n_batch"
                         : n_threads < 1 || n_threads > 512                ? "n_threads must be between 1 and 512"
                         : n_label_tokens < 0 || (n_label_tokens > 0 && !hidden_only)
                                                                           ? "label tokens need a hidden-only context"
                         : type == GGML_TYPE_COUNT                         ? "the KV type must be one of f32 f16 bf16 q8_0 q4_0"
                         : nullptr;
        if (bad) {
            return fail(QCLS_BAD_ARGUMENT, bad, error, error_size);
        }

        llama_context_params params = llama_context_default_params();
        params.n_ctx = n_ctx;
        params.n_batch = n_batch;
        params.n_ubatch = n_batch;  // a plan is one pass over the weights
        params.n_seq_max = n_seq_max;
        params.n_outputs_max = n_outputs_max;
        params.n_threads = n_threads;
        params.n_threads_batch = n_threads;
        params.pooling_type = LLAMA_POOLING_TYPE_NONE;
        params.attention_type = LLAMA_ATTENTION_TYPE_CAUSAL;
        const bool visible_cells = flash_attn == 2 && (type == GGML_TYPE_F16 || type == GGML_TYPE_F32) && !switched_off;
        params.flash_attn_type = flash_attn < 0    ? LLAMA_FLASH_ATTN_TYPE_AUTO
                                 : flash_attn == 1 ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                 : visible_cells   ? LLAMA_FLASH_ATTN_TYPE_VISIBLE_CELLS
                                                   : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        params.type_k = type;
        params.type_v = type;
        params.no_perf = true;
        params.swa_full = true;    // trimmed sequences need their old cells
        params.kv_unified = true;  // tokens of several sequences share cells

        llama_context * ctx = llama_init_from_model(model->model, params);
        if (!ctx && visible_cells) {  // a graph that has no such attention says so when it is built
            params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
            ctx = llama_init_from_model(model->model, params);
        }
        if (!ctx) {
            return fail(QCLS_LOAD_FAILED, with_complaints("llama.cpp could not make a context"), error, error_size);
        }
        if (hidden_only && !llama_set_hidden_only(ctx, true)) {
            llama_free(ctx);
            return fail(QCLS_UNSUPPORTED, with_complaints("no exact hidden-state path for this model"), error, error_size);
        }
        if (n_label_tokens > 0 && !llama_set_label_tokens(ctx, label_token, n_label_tokens)) {
            llama_free(ctx);
            return fail(QCLS_BAD_ARGUMENT, with_complaints("label tokens refused"), error, error_size);
        }
        auto * context = new qcls_context();
        context->ctx = ctx;
        context->memory = llama_get_memory(ctx);
        context->n_batch = (int32_t) llama_n_batch(ctx);
        context->n_seq_max = n_seq_max;
        context->n_outputs_max = n_outputs_max;
        context->n_vocab = llama_vocab_n_tokens(model->vocab);
        context->n_hidden = hidden_only ? llama_model_n_embd_out(model->model) : 0;
        context->n_label_logits = n_label_tokens > 0 ? n_label_tokens + 1 : 0;
        context->row_size = hidden_only ? context->n_hidden + context->n_label_logits : context->n_vocab;
        context->hidden_only = hidden_only != 0;
        context->n_seq_id.resize(context->n_batch);
        context->seq_id.resize(context->n_batch);
        context->output.resize(context->n_batch);
        *out = context;
        return (int32_t) QCLS_OK;
    });
}

void qcls_context_close(qcls_context * context) {
    if (context) {
        llama_free(context->ctx);
        delete context;
    }
}

void qcls_context_limits(const qcls_context * context, int64_t * limit) {
    limit[0] = llama_n_ctx(context->ctx);
    limit[1] = context->n_batch;
    limit[2] = context->n_seq_max;
    limit[3] = context->row_size;
}

int32_t qcls_context_visible_cells(const qcls_context * context, char * why, int32_t why_size) {
    const char * reason = llama_why_no_visible_cells(context->ctx);
    fail(QCLS_OK, reason ? reason : "", why, why_size);
    return reason == nullptr;
}

int32_t qcls_context_keep_shapes(qcls_context * context, int32_t n_shapes, char * error, int32_t error_size) {
    return guarded(error, error_size, QCLS_BAD_ARGUMENT, [&] {
        if (n_shapes < 0 || !llama_set_n_shapes(context->ctx, n_shapes)) {
            return fail(QCLS_BAD_ARGUMENT, with_complaints("n_shapes must not be negative"), error, error_size);
        }
        return (int32_t) QCLS_OK;
    });
}

void qcls_context_counters(const qcls_context * context, int64_t * counter) {
    size_t shapes_bytes = 0;
    counter[QCLS_COUNTER_GRAPHS_REUSED] = llama_perf_context(context->ctx).n_reused;
    counter[QCLS_COUNTER_SHAPES]        = llama_get_n_shapes(context->ctx, &shapes_bytes);
    counter[QCLS_COUNTER_SHAPES_BYTES]  = (int64_t) shapes_bytes;
    counter[QCLS_COUNTER_CUDA_GRAPHS]   = n_cuda_graph_launches();
}

static bool is_seq(const qcls_context * context, int32_t seq) {
    return seq >= 0 && seq < context->n_seq_max;
}

// An interrupt may have left a decode whose rows nobody waited for.
static void settle(qcls_context * context) {
    if (context->n_rows_left > 0) {
        llama_synchronize(context->ctx);
        context->n_rows_left = 0;
    }
}

static bool can_trim(const qcls_context * context, int32_t n, const int32_t * seq, const int32_t * from) {
    for (int32_t i = 0; i < n; ++i) {
        if (!is_seq(context, seq[i]) || from[i] < 0) {
            return false;
        }
    }
    return true;
}

static void trim(qcls_context * context, int32_t n, const int32_t * seq, const int32_t * from) {
    for (int32_t i = 0; i < n; ++i) {
        llama_memory_seq_rm(context->memory, seq[i], from[i], -1);
    }
}

// Trims once: when asked to, or, however its scope is left, at the end of it.
struct trim_at_end {
    qcls_context * context;
    int32_t n;
    const int32_t * seq;
    const int32_t * from;

    void now() {
        trim(context, n, seq, from);
        n = 0;
    }
    ~trim_at_end() { now(); }
};

int32_t qcls_seq_share(qcls_context * context, int32_t src, int32_t dst, int32_t from, int32_t to, char * error,
                       int32_t error_size) {
    return guarded(error, error_size, QCLS_BAD_ARGUMENT, [&] {
        if (!is_seq(context, src) || !is_seq(context, dst) || from < 0) {
            return fail(QCLS_BAD_ARGUMENT, "seq_share: a sequence id or position is out of range", error, error_size);
        }
        settle(context);
        llama_memory_seq_cp(context->memory, src, dst, from, to);
        return (int32_t) QCLS_OK;
    });
}

int32_t qcls_seq_trim(qcls_context * context, int32_t n, const int32_t * seq, const int32_t * from, char * error,
                      int32_t error_size) {
    return guarded(error, error_size, QCLS_BAD_ARGUMENT, [&] {
        if (!can_trim(context, n, seq, from)) {
            return fail(QCLS_BAD_ARGUMENT, "seq_trim: a sequence id or position is out of range", error, error_size);
        }
        settle(context);
        trim(context, n, seq, from);
        return (int32_t) QCLS_OK;
    });
}

void qcls_context_clear(qcls_context * context) {
    settle(context);
    llama_memory_clear(context->memory, true);
}

int32_t qcls_state_save(qcls_context * context, uint8_t * state, int64_t * size_bytes, char * error,
                        int32_t error_size) {
    return guarded(error, error_size, QCLS_DECODE_FAILED, [&] {
        settle(context);
        const int64_t capacity = *size_bytes;
        *size_bytes = (int64_t) llama_state_get_size(context->ctx);
        if (*size_bytes > capacity) {
            return (int32_t) QCLS_TOO_SMALL;
        }
        if ((int64_t) llama_state_get_data(context->ctx, state, *size_bytes) != *size_bytes) {
            return fail(QCLS_DECODE_FAILED, with_complaints("the cells could not be saved"), error, error_size);
        }
        return (int32_t) QCLS_OK;
    });
}

int32_t qcls_state_load(qcls_context * context, const uint8_t * state, int64_t size_bytes, char * error,
                        int32_t error_size) {
    const int32_t status = guarded(error, error_size, QCLS_DECODE_FAILED, [&] {
        settle(context);
        if ((int64_t) llama_state_set_data(context->ctx, state, size_bytes) != size_bytes) {
            return fail(QCLS_DECODE_FAILED, with_complaints("the saved cells do not fit this context"), error, error_size);
        }
        return (int32_t) QCLS_OK;
    });
    if (status != QCLS_OK) {
        llama_memory_clear(context->memory, true);
    }
    return status;
}

// Waits for the last decode and copies its rows.
static int32_t take_rows(qcls_context * context, float * rows, int32_t n_rows, char * error, int32_t error_size) {
    if (n_rows == 0) {
        llama_synchronize(context->ctx);
        return QCLS_OK;
    }
    const float * source = context->hidden_only ? llama_get_embeddings(context->ctx) : llama_get_logits(context->ctx);
    if (!source) {
        return fail(QCLS_DECODE_FAILED, with_complaints("llama.cpp returned no rows"), error, error_size);
    }
    const float * labels = context->n_label_logits ? llama_get_label_logits(context->ctx) : nullptr;
    const size_t n_source = context->hidden_only ? context->n_hidden : context->row_size;
    for (size_t i = 0; i < (size_t) n_rows; ++i) {
        memcpy(rows + i * context->row_size, source + i * n_source, sizeof(float) * n_source);
        if (labels) {
            memcpy(rows + i * context->row_size + n_source, labels + i * context->n_label_logits,
                   sizeof(float) * context->n_label_logits);
        }
    }
    return QCLS_OK;
}

int32_t qcls_decode(qcls_context * context, int32_t n_tokens, const int32_t * token, const int32_t * pos,
                    const int32_t * seq_offset, const int32_t * seq_id, const uint8_t * output, float * rows,
                    int32_t n_rows, int32_t n_trim, const int32_t * trim_seq, const int32_t * trim_from,
                    int64_t * elapsed_us, char * error, int32_t error_size) {
    return guarded(error, error_size, QCLS_DECODE_FAILED, [&] {
        const int64_t start = ggml_time_us();
        settle(context);
        if (n_tokens < 1 || n_tokens > context->n_batch) {
            return fail(QCLS_BAD_ARGUMENT, "decode: " + std::to_string(n_tokens) + " tokens do not fit a batch of " +
                        std::to_string(context->n_batch), error, error_size);
        }
        int32_t n_flagged = 0;
        bool ascending = seq_offset[0] >= 0;
        for (int32_t i = 0; i < n_tokens; ++i) {
            ascending = ascending && seq_offset[i + 1] > seq_offset[i];
        }
        if (!ascending) {
            return fail(QCLS_BAD_ARGUMENT, "decode: seq_offset must ascend, so that every token has a sequence", error, error_size);
        }
        for (int32_t i = 0; i < n_tokens; ++i) {
            bool good = token[i] >= 0 && token[i] < context->n_vocab && pos[i] >= 0;
            for (int32_t j = seq_offset[i]; good && j < seq_offset[i + 1]; ++j) {
                good = is_seq(context, seq_id[j]);
            }
            if (!good) {
                return fail(QCLS_BAD_ARGUMENT, "decode: token " + std::to_string(i) +
                            " of the plan has an id, position or sequence out of range", error, error_size);
            }
            context->n_seq_id[i] = seq_offset[i + 1] - seq_offset[i];
            context->seq_id[i] = const_cast<llama_seq_id *>(seq_id + seq_offset[i]);
            context->output[i] = output[i] != 0;
            n_flagged += output[i] != 0;
        }
        if (n_flagged != n_rows || n_rows > context->n_outputs_max) {
            return fail(QCLS_BAD_ARGUMENT, "decode: " + std::to_string(n_flagged) + " flagged tokens, room for " +
                        std::to_string(std::min(n_rows, context->n_outputs_max)) + " rows", error, error_size);
        }
        if (!can_trim(context, n_trim, trim_seq, trim_from)) {
            return fail(QCLS_BAD_ARGUMENT, "decode: a sequence to trim is out of range", error, error_size);
        }
        llama_batch batch = {};
        batch.n_tokens = n_tokens;
        batch.token = const_cast<llama_token *>(token);
        batch.pos = const_cast<llama_pos *>(pos);
        batch.n_seq_id = context->n_seq_id.data();
        batch.seq_id = context->seq_id.data();
        batch.logits = context->output.data();
        const int64_t filled = ggml_time_us();

        trim_at_end trimming{context, n_trim, trim_seq, trim_from};
        const int32_t result = llama_decode(context->ctx, batch);
        if (result != 0) {
            const char * what = result == 1 ? "llama_decode found no free cells for the plan" : "llama_decode failed";
            return fail(QCLS_DECODE_FAILED, with_complaints(what), error, error_size);
        }
        context->n_rows_left = rows ? 0 : n_rows;
        const int32_t status = context->n_rows_left ? QCLS_OK : take_rows(context, rows, n_rows, error, error_size);
        if (status != QCLS_OK) {
            return status;
        }
        const int64_t decoded = ggml_time_us();
        trimming.now();
        elapsed_us[0] = filled - start;
        elapsed_us[1] = ggml_time_us() - decoded;
        return (int32_t) QCLS_OK;
    });
}

int32_t qcls_decode_rows(qcls_context * context, float * rows, int32_t n_rows, char * error, int32_t error_size) {
    return guarded(error, error_size, QCLS_DECODE_FAILED, [&] {
        if (n_rows != context->n_rows_left) {
            return fail(QCLS_BAD_ARGUMENT, "decode_rows: " + std::to_string(context->n_rows_left) +
                        " rows are left of the last decode, room for " + std::to_string(n_rows), error, error_size);
        }
        context->n_rows_left = 0;
        return take_rows(context, rows, n_rows, error, error_size);
    });
}
