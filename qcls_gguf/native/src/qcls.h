/* The C ABI between qcls-gguf and llama.cpp. Handles are opaque, everything else is a scalar or a flat array.
 *
 * Every function that can fail returns a qcls_status and, on failure, writes a zero-terminated UTF-8 message into the
 * caller's `error` buffer of `error_size` bytes. The caller owns every buffer; C borrows it for the call. A context
 * belongs to the model it was opened on and must be closed before it. One thread at a time may use a context; the
 * tokenizer of a model may be used by any number of threads.
 */
#ifndef QCLS_H
#define QCLS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QCLS_ABI 7
#define QCLS_API __attribute__((visibility("default")))

typedef struct qcls_model qcls_model;
typedef struct qcls_context qcls_context;

typedef enum qcls_status {
    QCLS_OK = 0,
    QCLS_BAD_ARGUMENT = 1, /* refused before llama.cpp saw it; nothing changed */
    QCLS_LOAD_FAILED = 2,  /* the model or the context could not be made */
    QCLS_UNSUPPORTED = 3,  /* the model's architecture has no exact hidden-state path */
    QCLS_DECODE_FAILED = 4,/* llama_decode failed; sequences may hold part of the plan */
    QCLS_TOO_SMALL = 5     /* the caller's buffer is too small; the needed count was written */
} qcls_status;

/* llama.cpp's log, a line or a part of one at a time; level: 1 debug, 2 info, 3 warning, 4 error, 5 continuation. */
typedef void (*qcls_log_fn)(int32_t level, const char * text, void * user);
/* Model loading, 0..1; return 0 to stop. */
typedef int32_t (*qcls_progress_fn)(float progress, void * user);

QCLS_API int32_t qcls_abi(void);
/* Tab-separated: llama.cpp commit, llama-cpp-python version, digest of source and patches, backend of this build. */
QCLS_API const char * qcls_build_info(void);
/* Sends the log to `log`, or nowhere where it is NULL (the state at start). */
QCLS_API void qcls_set_log(qcls_log_fn log, void * user);

/* Device i's name and memory in bytes; QCLS_BAD_ARGUMENT past the last one. type: 0 CPU, 1 GPU, 2 integrated GPU, 3 other. */
QCLS_API int32_t qcls_device(int32_t index, int32_t * type, char * name, int32_t name_size, uint64_t * free_bytes,
                             uint64_t * total_bytes);

/* count[3], of the first CUDA device: the multiprocessors that its kernels are planned for, that they run on, and that it
 * has; they differ where GGML_CUDA_SM_SLICE was set when the device was first asked for. 0 where there is no such
 * device, else 1. */
QCLS_API int32_t qcls_multiprocessors(int32_t * count);

/* Loads a model (NULL progress: none). n_gpu_layers < 0: all layers. Free with qcls_model_close. */
QCLS_API int32_t qcls_model_open(const char * path, int32_t n_gpu_layers, qcls_progress_fn progress, void * user,
                                 qcls_model ** out, char * error, int32_t error_size);
QCLS_API void qcls_model_close(qcls_model * model);

/* fact[QCLS_N_FACTS]: see the enum. A token id is -1 where the vocabulary has none. */
enum {
    QCLS_FACT_N_VOCAB, QCLS_FACT_N_EMBD, QCLS_FACT_N_LAYER, QCLS_FACT_N_CTX_TRAIN, QCLS_FACT_SIZE_BYTES,
    QCLS_FACT_N_PARAMS, QCLS_FACT_TOKEN_BOS, QCLS_FACT_TOKEN_EOS, QCLS_FACT_TOKEN_EOT, QCLS_FACT_ADD_BOS,
    QCLS_N_FACTS
};
QCLS_API void qcls_model_facts(const qcls_model * model, int64_t * fact);
/* llama.cpp's one-line description, such as "qwen3 8B Q4_K - Medium". */
QCLS_API void qcls_model_description(const qcls_model * model, char * text, int32_t text_size);

/* Token ids of UTF-8 text. parse_special != 0: text that spells a special token becomes that token. No BOS is added. */
QCLS_API int32_t qcls_tokenize(const qcls_model * model, const char * text, int32_t n_bytes, int32_t parse_special,
                               int32_t * token, int32_t capacity, int32_t * n_tokens, char * error, int32_t error_size);
/* The bytes of a token, not zero-terminated; special tokens as they are spelt. special: 1 for a control
 * token, which splits text before it is tokenised where special tokens are parsed, and only there. */
QCLS_API int32_t qcls_token_piece(const qcls_model * model, int32_t token, char * text, int32_t capacity,
                                  int32_t * n_bytes, int32_t * special, char * error, int32_t error_size);

/* The most sequences that a context can have. */
QCLS_API int32_t qcls_max_sequences(void);

/* Opens a context. hidden_only != 0: qcls_decode returns final-norm hidden states and no LM head is computed;
 * otherwise it returns logits, as stock llama.cpp does. With n_label_tokens > 0, hidden_only must be set, the LM head
 * is computed after all, and every row has, behind its hidden state, the logits of these tokens and the log-sum-exp of
 * all logits. flash_attn: -1 auto, 0 off, 1 on, 2 off with attention that reads only the cells that a token may see,
 * where the context can have it. kv_type: "f16", "q8_0", ...
 * Free with qcls_context_close, before the model. */
QCLS_API int32_t qcls_context_open(qcls_model * model, int32_t hidden_only, int32_t n_label_tokens,
                                   const int32_t * label_token, int32_t n_ctx, int32_t n_batch,
                                   int32_t n_seq_max, int32_t n_outputs_max, int32_t n_threads, int32_t flash_attn,
                                   const char * kv_type, qcls_context ** out, char * error, int32_t error_size);
QCLS_API void qcls_context_close(qcls_context * context);
/* limit[4]: n_ctx, n_batch, n_seq_max, floats a row, as the context really has them. */
QCLS_API void qcls_context_limits(const qcls_context * context, int64_t * limit);

/* 1 where attention reads only the cells that a token may see, else 0; `why` receives the reason, or "". */
QCLS_API int32_t qcls_context_visible_cells(const qcls_context * context, char * why, int32_t why_size);

/* Keeps the graphs of the last n_shapes shapes of decode, each with its compute buffers; 0: llama.cpp's one. */
QCLS_API int32_t qcls_context_keep_shapes(qcls_context * context, int32_t n_shapes, char * error, int32_t error_size);
/* counter[QCLS_N_COUNTERS]: see the enum. */
enum {
    QCLS_COUNTER_GRAPHS_REUSED,  /* decodes that found their graph built, since the context was opened */
    QCLS_COUNTER_SHAPES,         /* graphs kept now */
    QCLS_COUNTER_SHAPES_BYTES,   /* their compute buffers, on all devices */
    QCLS_COUNTER_CUDA_GRAPHS,    /* CUDA graphs launched by this process, -1 in a build without CUDA */
    QCLS_N_COUNTERS
};
QCLS_API void qcls_context_counters(const qcls_context * context, int64_t * counter);

/* Lets dst share src's cells at positions [from, to); to < 0: to the end. Copies nothing. */
QCLS_API int32_t qcls_seq_share(qcls_context * context, int32_t src, int32_t dst, int32_t from, int32_t to,
                                char * error, int32_t error_size);
/* Trims n sequences: seq[i] loses its cells at positions >= from[i]. */
QCLS_API int32_t qcls_seq_trim(qcls_context * context, int32_t n, const int32_t * seq, const int32_t * from,
                               char * error, int32_t error_size);

/* Forgets every sequence, and overwrites the cells. */
QCLS_API void qcls_context_clear(qcls_context * context);

/* The cells of all sequences as bytes, which only this build and a context like this one reads. size_bytes: of `state`
 * on the way in, what was needed on the way out; QCLS_TOO_SMALL where that is more. */
QCLS_API int32_t qcls_state_save(qcls_context * context, uint8_t * state, int64_t * size_bytes, char * error,
                                 int32_t error_size);
/* Replaces all sequences by saved ones. On failure the cache is empty. */
QCLS_API int32_t qcls_state_load(qcls_context * context, const uint8_t * state, int64_t size_bytes, char * error,
                                 int32_t error_size);

/* One llama_decode of a plan: token[n_tokens], pos[n_tokens], the sequences of token i in
 * seq_id[seq_offset[i] .. seq_offset[i + 1]), output[n_tokens] != 0 where a row is wanted. rows receives
 * n_rows * row_size float32 in plan order, n_rows being the number of flagged tokens. Then, and where llama_decode
 * fails, too, n_trim sequences are trimmed as by qcls_seq_trim.
 * elapsed_us[2]: filling the batch; trimming.
 * With rows == NULL and n_rows > 0 it returns as soon as llama_decode does, which on a GPU is when the work is queued;
 * qcls_decode_rows waits for it and delivers the rows. Whatever else is asked of the context before that waits, too, and
 * the rows are lost. */
QCLS_API int32_t qcls_decode(qcls_context * context, int32_t n_tokens, const int32_t * token, const int32_t * pos,
                             const int32_t * seq_offset, const int32_t * seq_id, const uint8_t * output, float * rows,
                             int32_t n_rows, int32_t n_trim, const int32_t * trim_seq, const int32_t * trim_from,
                             int64_t * elapsed_us, char * error, int32_t error_size);
QCLS_API int32_t qcls_decode_rows(qcls_context * context, float * rows, int32_t n_rows, char * error, int32_t error_size);

/* Label tries to scores (score.cpp). Node i's edges are [node_start[i], node_start[i + 1]), label j's path the edges
 * label_edge[label_start[j]] .. label_edge[label_start[j + 1] - 1]; both starts begin with 0. For each query, edge
 * [node_start[n_nodes]] holds the edges' logits and becomes their log-softmax among the siblings; log_probability
 * [n_labels] is its sum over the path, probability [n_labels] exp of that. Returns 1 if all of it is finite, else 0. */
QCLS_API int32_t qcls_trie_scores(int32_t n_queries, int32_t n_nodes, const int32_t * node_start, int32_t n_labels,
                                  const int32_t * label_start, const int32_t * label_edge, float * edge,
                                  float * log_probability, float * probability);

/* Attention that reads only the cells that a token may see, on plain arrays, as n_threads threads compute it
 * (attention.cpp). Sequence s has the cells list_cell[list_start[s]] .. list_cell[list_start[s + 1] - 1] at the
 * positions list_pos, which ascend; token i is of sequence token_seq[i] at token_pos[i] and sees the cells up to there,
 * the last `window` positions of them where window > 0. q is [n_tokens][n_head][head_size_k], k [n_cells][n_head_kv]
 * [head_size_k], v [n_cells][n_head_kv][head_size_v], both F16 where is_f16 != 0, else F32; out receives [n_tokens]
 * [n_head][head_size_v]. */
QCLS_API int32_t qcls_attention(int32_t n_tokens, const int32_t * token_seq, const int32_t * token_pos, int32_t n_seqs,
                                const int32_t * list_start, const int32_t * list_pos, const int32_t * list_cell,
                                int32_t n_cells, int32_t window, int32_t n_head, int32_t n_head_kv,
                                int32_t head_size_k, int32_t head_size_v, float scale, int32_t is_f16,
                                const float * q, const void * k, const void * v, int32_t n_threads, float * out,
                                char * error, int32_t error_size);

/* What device i can do at best, measured for about budget_s seconds (probe.cpp). seconds[2]: of one operation, the best
 * and the median of five samples. n_threads matters on a CPU. */
/* The copy of n_bytes, which are read once and written once; twice n_bytes of memory are needed. */
QCLS_API int32_t qcls_probe_copy(int32_t device, int32_t n_threads, int64_t n_bytes, double budget_s, double * seconds,
                                 char * error, int32_t error_size);
/* The product of a (n_inner, n_rows) matrix of weights of a ggml type with n_columns F32 columns: 2 * n_inner * n_rows *
 * n_columns operations. */
QCLS_API int32_t qcls_probe_matmul(int32_t device, int32_t n_threads, int32_t weight_type, int32_t n_inner,
                                   int32_t n_rows, int32_t n_columns, double budget_s, double * seconds, char * error,
                                   int32_t error_size);

#ifdef __cplusplus
}
#endif

#endif
