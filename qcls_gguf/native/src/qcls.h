/* The C ABI between qcls-gguf and llama.cpp, all of it in one file: opaque handles, plain structs, arrays and scalars.
 *
 * Results. Every function but qcls_abi and qcls_build_info returns a qcls_status. On another one than QCLS_OK it writes
 * the reason into *error, the last argument of each; NULL where the caller wants no reason. No C++ exception leaves the
 * library.
 *
 * Structs. The first member of each is `size`: the caller sets it to the sizeof of the struct it was compiled with. A
 * later library may add members at the end. It takes a shorter struct and gives the members that are not there their
 * defaults; it takes a longer one, of a later caller, if all that it does not know is zero, and otherwise refuses it
 * with QCLS_BAD_ARGUMENT. Zero is the default of every member that has one, so a struct that is zeroed, `size` apart,
 * holds the defaults. Members without a default are marked "required". In a struct that the library fills, members
 * behind `size` bytes are left alone, and bytes that the library does not know are zeroed.
 *
 * Arrays and memory. The caller owns every buffer, and C borrows it for the call. Numbers of elements and of bytes are
 * int64, so that no length of the caller is cut; ids, positions and settings are int32. "[n]" says how many elements an
 * array has; an array of none may be NULL. Text is UTF-8 and ends with a zero unless said otherwise.
 *
 * Threads. One thread at a time may use a context. The tokenizer of a model may be used by any number of threads. A
 * context belongs to the model that it was opened on, and must be closed before it.
 */
#ifndef QCLS_H
#define QCLS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QCLS_ABI 9
#define QCLS_API __attribute__((visibility("default")))

typedef struct qcls_model qcls_model;
typedef struct qcls_context qcls_context;

typedef enum qcls_status {
    QCLS_OK = 0,
    QCLS_BAD_ARGUMENT = 1,  /* refused before llama.cpp saw it; nothing changed */
    QCLS_LOAD_FAILED = 2,   /* the model or the context could not be made */
    QCLS_UNSUPPORTED = 3,   /* this model, or this build, cannot do it */
    QCLS_DECODE_FAILED = 4, /* llama.cpp failed at its work; sequences may hold part of a plan */
    QCLS_TOO_SMALL = 5      /* the caller's buffer is too small; the needed number of elements was written */
} qcls_status;

/* Why a function did not return QCLS_OK. message: cut where it is longer than the room that `size` leaves for it. */
typedef struct qcls_error {
    uint32_t size; /* required */
    char message[2044];
} qcls_error;

/* --- the library ------------------------------------------------------------------------------------------------- */

/* QCLS_ABI of the library. It grows when a caller compiled for an earlier one cannot go on; a member or a function that
 * is added leaves it as it is. */
QCLS_API int32_t qcls_abi(void);

/* Four texts with tabs between them: llama.cpp's commit, the llama-cpp-python version that brought it, the first 16 hex
 * digits of the digest of source and patches, and the backend. Owned by the library. */
QCLS_API const char * qcls_build_info(void);

/* What llama.cpp's CPU code was compiled for, by ggml's names with tabs between them: "NAME" or "NAME=VALUE". AMX is
 * among them only where the system lets the process use it. Owned by the library. */
QCLS_API const char * qcls_cpu_features(void);

/* Which of a portable build's variants of CPU code computes, such as "haswell"; empty in a build for one kind of processor.
 * Owned by the library. */
QCLS_API const char * qcls_cpu_variant(void);

/* The most sequences that a context can have. */
QCLS_API int32_t qcls_max_sequences(void);

/* A line of llama.cpp's log, or a part of one. level: 1 debug, 2 info, 3 warning, 4 error, 5 continuation. */
typedef void (*qcls_log_fn)(int32_t level, const char * text, void * user);

/* Sends the log to `log`, with `user`, from any thread but one line at a time; NULL: nowhere, as at start. */
QCLS_API int32_t qcls_set_log(qcls_log_fn log, void * user, qcls_error * error);

/* --- devices ------------------------------------------------------------------------------------------------------ */

typedef enum qcls_device_kind {
    QCLS_DEVICE_CPU = 0,
    QCLS_DEVICE_GPU = 1,
    QCLS_DEVICE_INTEGRATED_GPU = 2,
    QCLS_DEVICE_OTHER = 3
} qcls_device_kind;

typedef struct qcls_device {
    uint32_t size;        /* required */
    int32_t kind;         /* a qcls_device_kind */
    uint64_t free_bytes;  /* memory that is free now */
    uint64_t total_bytes; /* memory in all */
    char name[256];       /* such as "NVIDIA H200" */
} qcls_device;

/* Describes device `index`, from 0, GPUs first; QCLS_BAD_ARGUMENT behind the last one. */
QCLS_API int32_t qcls_device_describe(int32_t index, qcls_device * device, qcls_error * error);

/* Multiprocessors of the first CUDA device. The numbers differ where GGML_CUDA_SM_SLICE was set when the device was
 * first asked for. */
typedef struct qcls_multiprocessors {
    uint32_t size;     /* required */
    int32_t n_planned; /* that kernels plan their work for */
    int32_t n_given;   /* that they run on */
    int32_t n_device;  /* of the whole device */
} qcls_multiprocessors;

/* Counts the multiprocessors; QCLS_UNSUPPORTED where there is no CUDA device. */
QCLS_API int32_t qcls_count_multiprocessors(qcls_multiprocessors * counts, qcls_error * error);

/* --- what a device can do at best, measured ----------------------------------------------------------------------- */

/* Seconds of one operation. */
typedef struct qcls_seconds {
    uint32_t size; /* required */
    int32_t reserved;
    double best;   /* the least of five samples */
    double median; /* of the five */
} qcls_seconds;

typedef struct qcls_copy {
    uint32_t size;     /* required */
    int32_t device;    /* index of the device; 0 */
    int32_t n_threads; /* required, 1 to 512; matters on a CPU */
    int32_t reserved;
    int64_t n_bytes;   /* required, 4 to 2^36: read once and written once; twice as much memory is needed */
    double budget_s;   /* seconds to spend on all samples, about; 0: each sample is one operation */
} qcls_copy;

/* Measures a copy of memory. QCLS_DECODE_FAILED where the device cannot do it. */
QCLS_API int32_t qcls_probe_copy(const qcls_copy * copy, qcls_seconds * seconds, qcls_error * error);

/* The product of a matrix of weights with columns of F32: 2 * n_inner * n_rows * n_columns operations. */
typedef struct qcls_product {
    uint32_t size;       /* required */
    int32_t device;      /* index of the device; 0 */
    int32_t n_threads;   /* required, 1 to 512; matters on a CPU */
    int32_t weight_type; /* a ggml_type that weights can have; 0: F32 */
    int32_t n_inner;     /* required, 1 to 65536, whole blocks of the type: the length of a row of weights */
    int32_t n_rows;      /* required, 1 to 65536: rows of weights */
    int32_t n_columns;   /* required, 1 to 65536 */
    int32_t reserved;
    double budget_s;     /* seconds to spend on all samples, about; 0: each sample is one operation */
} qcls_product;

/* Measures a product. QCLS_DECODE_FAILED where the device cannot do it. */
QCLS_API int32_t qcls_probe_product(const qcls_product * product, qcls_seconds * seconds, qcls_error * error);

/* --- models ------------------------------------------------------------------------------------------------------- */

/* How much of a file is loaded, 0 to 1; return 0 to stop. */
typedef int32_t (*qcls_progress_fn)(float fraction, void * user);

/* The order of the weights of Q8_0 and Q6_K matrices in a GPU's memory: docs/kernels.md. */
typedef enum qcls_weight_order {
    QCLS_WEIGHTS_BY_DEVICE = 0,  /* lane order on cards of 7.5, unless GGML_CUDA_LANE_ORDER is 0; on others if it is 1 */
    QCLS_WEIGHTS_FILE_ORDER = 1, /* as the file has them, which llama.cpp's own kernels read */
    QCLS_WEIGHTS_LANE_ORDER = 2  /* lane order wherever code for 7.5 runs */
} qcls_weight_order;

/* Loads a GGUF file into *model, which is NULL on failure; close it with qcls_model_close.
 * n_gpu_layers: how many layers go to GPUs; negative: all of them.
 * share: of these layers on each of the first n_gpus GPUs, in the order of qcls_device_describe. Numbers of layers whose
 * sum is n_gpu_layers are kept exactly, other numbers are proportions; the output layer is the last one. A GPU whose share is
 * 0 is not used. n_gpus 0, or no share above 0: all are, in shares of their free memory. On a machine without GPUs share has no effect.
 * weight_order: a qcls_weight_order. Matrices that cannot have lane order stay as the file has them.
 * progress, user: called while the file is loaded; NULL: nothing is.
 * QCLS_LOAD_FAILED where the file cannot be loaded or `progress` stopped it, QCLS_UNSUPPORTED for a model whose
 * sequences cannot branch. */
QCLS_API int32_t qcls_model_open(const char * path, int32_t n_gpu_layers, const int32_t * share, int64_t n_gpus,
                                 int32_t weight_order, qcls_progress_fn progress, void * user, qcls_model ** model,
                                 qcls_error * error);

/* Loads all of a GGUF file but its weights into *model, which is NULL on failure: enough for qcls_model_describe, the
 * tokenizer and qcls_context_measure. n_gpu_layers, share and n_gpus are those of the model that is meant; no memory of
 * a GPU is taken for them. Fails as qcls_model_open does. */
QCLS_API int32_t qcls_model_open_without_weights(const char * path, int32_t n_gpu_layers, const int32_t * share,
                                                 int64_t n_gpus, qcls_model ** model, qcls_error * error);

/* Frees a model whose contexts are closed. NULL is allowed. */
QCLS_API int32_t qcls_model_close(qcls_model * model, qcls_error * error);

/* What the file says of the model. A token is -1 where the vocabulary has none. */
typedef struct qcls_facts {
    uint32_t size;       /* required */
    int32_t n_vocab;     /* tokens of the vocabulary */
    int32_t n_embd;      /* length of a hidden state inside the model */
    int32_t n_layer;
    int32_t n_ctx_train; /* positions that it was trained with */
    int32_t token_bos;   /* beginning of text */
    int32_t token_eos;   /* end of text */
    int32_t token_eot;   /* end of a turn */
    int32_t add_bos;     /* 1: texts begin with token_bos; 0 */
    int32_t n_lane_ordered; /* matrices in lane order: qcls_weight_order */
    int64_t size_bytes;  /* of all tensors */
    int64_t n_params;    /* numbers in all tensors */
    char description[128]; /* llama.cpp's, such as "qwen3 8B Q4_K - Medium" */
    int64_t state_bytes; /* of what recurrent layers keep of a sequence; 0: the model has none. Such a state is the one
                            behind the sequence's last token: qcls_seq_share copies it with all of the sequence's cells or
                            not rightly, and qcls_seq_trim takes all of it or none. */
} qcls_facts;

QCLS_API int32_t qcls_model_describe(const qcls_model * model, qcls_facts * facts, qcls_error * error);

/* --- the tokenizer ------------------------------------------------------------------------------------------------ */

/* What text that spells a token of the vocabulary's own marks becomes. Control tokens are marks such as <|im_start|>;
 * user-defined tokens are those that were added to the vocabulary, such as </think>. Those of white space only are found
 * always: they are how such a vocabulary writes text. */
typedef enum qcls_parse {
    QCLS_PARSE_NOTHING = 0,     /* it stays text */
    QCLS_PARSE_SPECIAL = 1,     /* it becomes that token */
    QCLS_PARSE_USER_DEFINED = 2 /* it becomes that token if it is a user-defined one, and else stays text */
} qcls_parse;

/* Tokens of text[n_bytes], which needs no zero at its end, into token[capacity]; no beginning-of-text token is added.
 * parse: a qcls_parse. n_tokens: how many there are. QCLS_TOO_SMALL where that is more than capacity: call again with so
 * much room.
 * QCLS_BAD_ARGUMENT for more than 2147483647 bytes, which is more than llama.cpp can count, and where the rules of the
 * vocabulary join text to a control token, but for QCLS_PARSE_SPECIAL. */
QCLS_API int32_t qcls_tokenize(const qcls_model * model, const char * text, int64_t n_bytes, int32_t parse,
                               int32_t * token, int64_t capacity, int64_t * n_tokens, qcls_error * error);

typedef enum qcls_token_kind {
    QCLS_TOKEN_TEXT = 0,        /* or user-defined and of white space */
    QCLS_TOKEN_CONTROL = 1,     /* qcls_tokenize finds it in text with QCLS_PARSE_SPECIAL */
    QCLS_TOKEN_USER_DEFINED = 2 /* or with QCLS_PARSE_USER_DEFINED, too */
} qcls_token_kind;

/* The bytes of a token into text[capacity], with no zero at their end; special tokens as they are spelt.
 * n_bytes: how many there are; QCLS_TOO_SMALL where that is more than capacity. kind: a qcls_token_kind. */
QCLS_API int32_t qcls_token_piece(const qcls_model * model, int32_t token, char * text, int64_t capacity,
                                  int64_t * n_bytes, int32_t * kind, qcls_error * error);

/* --- types of tensors --------------------------------------------------------------------------------------------- */

/* The values and the bytes of a block of a ggml type, as GGUF files number them. QCLS_BAD_ARGUMENT: there is no such
 * type. */
QCLS_API int32_t qcls_type_block(int32_t type, int64_t * n_values, int64_t * n_bytes, qcls_error * error);

/* Whole blocks of a ggml type in data[n_bytes] as value[n_values]. QCLS_BAD_ARGUMENT: it is not a type of weights, or
 * the blocks hold another number of values. */
QCLS_API int32_t qcls_dequantise(int32_t type, const void * data, int64_t n_bytes, float * value, int64_t n_values,
                                 qcls_error * error);

/* --- contexts ----------------------------------------------------------------------------------------------------- */

typedef enum qcls_flash_attn {
    QCLS_FLASH_ATTN_AUTO = 0, /* on where the device has it */
    QCLS_FLASH_ATTN_OFF = 1,
    QCLS_FLASH_ATTN_ON = 2
} qcls_flash_attn;

/* A context: a cache of keys and values that its sequences share, and the buffers to decode with. */
typedef struct qcls_context_params {
    uint32_t size;           /* required */
    int32_t n_ctx;           /* required, at least 1: cells of the cache, rounded up by llama.cpp */
    int32_t n_batch;         /* required, n_seq_max to n_ctx: tokens of one decode */
    int32_t n_seq_max;       /* required, 1 to qcls_max_sequences(): sequences, numbered from 0 */
    int32_t n_outputs_max;   /* required, n_seq_max to n_batch: flagged tokens of one decode */
    int32_t n_threads;       /* required, 1 to 512: of a CPU */
    int32_t hidden_only;     /* 1: rows are final-norm hidden states and no LM head is computed; 0: rows are logits */
    int32_t flash_attn;      /* a qcls_flash_attn */
    const char * kv_type;    /* of the cache: "f32", "f16", "bf16", "q8_0" or "q4_0"; NULL: "f16" */
    const int32_t * label_token; /* [n_label_tokens] as qcls_context_set_label_tokens takes them */
    int64_t n_label_tokens;
    int32_t visible_cells;   /* 1, with flash_attn off on a CPU, auto on a GPU: attention reads only the cells that a
                                token may see, where this context can have it (qcls_context_attention); 0: it reads
                                every used cell */
    int32_t batch_invariant; /* 1: a token's row does not depend on what else is decoded with it; with label tokens
                                n_outputs_max is at most 112 then */
} qcls_context_params;

/* Opens a context into *context, which is NULL on failure; close it with qcls_context_close, before its model.
 * QCLS_UNSUPPORTED where hidden_only is asked of a model whose logits are not what qcls_head_tail describes, or
 * batch_invariant where attention reads more than visible cells on CUDA devices, QCLS_LOAD_FAILED where llama.cpp cannot
 * make the context. */
QCLS_API int32_t qcls_context_open(const qcls_model * model, const qcls_context_params * params,
                                   qcls_context ** context, qcls_error * error);

/* The most GPUs that a model can be on: llama.cpp's GGML_CUDA_MAX_DEVICES, of llama_max_devices() */
#define QCLS_MAX_GPUS 16

/* The memory of a context, on all devices. */
typedef struct qcls_context_memory {
    uint32_t size;         /* required */
    int32_t n_gpus;        /* with memory of their own */
    int64_t cache_bytes;   /* the KV cache, with the states of all sequences */
    int64_t compute_bytes; /* the compute buffers for the largest decode */
    int64_t gpu_cache_bytes[QCLS_MAX_GPUS]; /* of the cache and states what is on each GPU, in the order of `share` */
} qcls_context_memory;

/* What a context with these parameters would take, for a model without weights; nothing of it is allocated. Fails as
 * qcls_context_open does. */
QCLS_API int32_t qcls_context_measure(const qcls_model * model, const qcls_context_params * params,
                                      qcls_context_memory * memory, qcls_error * error);

/* Frees a context. NULL is allowed. */
QCLS_API int32_t qcls_context_close(qcls_context * context, qcls_error * error);

/* A context as it really is. */
typedef struct qcls_limits {
    uint32_t size;     /* required */
    int32_t n_ctx;
    int32_t n_batch;
    int32_t n_seq_max;
    int32_t n_outputs_max;
    int32_t row_size;  /* floats of a row that qcls_decode gives */
} qcls_limits;

QCLS_API int32_t qcls_context_limits(const qcls_context * context, qcls_limits * limits, qcls_error * error);

/* How hidden states become logits. With h a row of a hidden-only context, w the head's row of a token, b the token's
 * output.bias (0 without has_bias) and y = (h * w + b) * scale, the token's logit is y, or cap * tanh(y) where cap is
 * not 0. */
typedef struct qcls_head_tail {
    uint32_t size;    /* required */
    int32_t has_bias; /* 1: the model adds output.bias; 0 */
    float scale;      /* 1: none */
    float cap;        /* 0: none */
} qcls_head_tail;

/* Describes the tail of a hidden-only context; QCLS_BAD_ARGUMENT where rows are logits. */
QCLS_API int32_t qcls_context_head_tail(const qcls_context * context, qcls_head_tail * tail, qcls_error * error);

/* Which tokens' logits the rows of a hidden-only context hold from now on: behind the hidden state, the logits of
 * token[n] in this order, and then the log-sum-exp of all logits; the LM head is computed for them. n = 0: the hidden
 * state alone, without the LM head. So the size of a row changes (qcls_context_limits), and graphs are built anew;
 * sequences keep their cells. A token may occur more than once; n is the vocabulary's size at most. On
 * QCLS_BAD_ARGUMENT, and where memory was lacking (QCLS_LOAD_FAILED), the context is as it was. */
QCLS_API int32_t qcls_context_set_label_tokens(qcls_context * context, int64_t n, const int32_t * token,
                                               qcls_error * error);

/* Why attention reads every used cell of the cache: why[capacity] gets a text that ends in 0, cut where it is longer; ""
 * where attention reads only the cells that a token may see. */
QCLS_API int32_t qcls_context_attention(const qcls_context * context, char * why, int64_t capacity,
                                        qcls_error * error);

/* Keeps the graphs of the last n_shapes shapes of decode, each with its compute buffers; 0: llama.cpp's one, as at
 * start. */
QCLS_API int32_t qcls_context_keep_shapes(qcls_context * context, int32_t n_shapes, qcls_error * error);

/* What a context did and holds. */
typedef struct qcls_counters {
    uint32_t size;           /* required */
    int32_t reserved;
    int64_t n_graphs_reused; /* decodes that found their graph built, since the context was opened */
    int64_t n_shapes;        /* graphs kept now */
    int64_t shapes_bytes;    /* their compute buffers, on all devices */
    int64_t n_cuda_graphs;   /* CUDA graphs launched by this process; -1 in a build without CUDA */
    int64_t cache_bytes;     /* the KV cache, with the states of all sequences, on all devices */
    int64_t compute_bytes;   /* the compute buffers for the largest decode, on all devices */
} qcls_counters;

QCLS_API int32_t qcls_context_counters(const qcls_context * context, qcls_counters * counters, qcls_error * error);

/* The decodes that found their graph built, and the graphs kept, as they were after the last decode or change of the
 * context. Any thread may ask, also while another one decodes. */
QCLS_API int32_t qcls_context_graphs(const qcls_context * context, int64_t * n_reused, int64_t * n_kept,
                                     qcls_error * error);

/* --- sequences ---------------------------------------------------------------------------------------------------- */

/* Lets sequence dst have src's cells at positions [from, to), too; to < 0: to the end. Copies nothing. */
QCLS_API int32_t qcls_seq_share(qcls_context * context, int32_t src, int32_t dst, int32_t from, int32_t to,
                                qcls_error * error);

/* Sequence seq[i] loses its cells at positions >= from[i]; both [n]. Where one is out of range none is trimmed. */
QCLS_API int32_t qcls_seq_trim(qcls_context * context, int64_t n, const int32_t * seq, const int32_t * from,
                               qcls_error * error);

/* Forgets every sequence, and overwrites the cells. */
QCLS_API int32_t qcls_context_clear(qcls_context * context, qcls_error * error);

/* The cells of all sequences into state[*n_bytes], for qcls_state_load of a context like this one in the same build.
 * *n_bytes: the room on the way in, what is needed on the way out; QCLS_TOO_SMALL where that is more. */
QCLS_API int32_t qcls_state_save(qcls_context * context, uint8_t * state, int64_t * n_bytes, qcls_error * error);

/* Replaces all sequences by those saved in state[n_bytes]. Where they do not fit (QCLS_DECODE_FAILED) the cache is
 * empty afterwards. */
QCLS_API int32_t qcls_state_load(qcls_context * context, const uint8_t * state, int64_t n_bytes, qcls_error * error);

/* --- decodes ------------------------------------------------------------------------------------------------------ */

/* One llama_decode: tokens that each belong to one or more sequences, and those that a row is wanted of. */
typedef struct qcls_plan {
    uint32_t size;              /* required */
    int32_t reserved;
    int64_t n_tokens;           /* required, 1 to n_batch */
    const int32_t * token;      /* [n_tokens] ids */
    const int32_t * pos;        /* [n_tokens] positions, from 0 */
    const int32_t * seq_offset; /* [n_tokens + 1] ascending: token i belongs to the sequences
                                   seq_id[seq_offset[i]] ... seq_id[seq_offset[i + 1] - 1], one at least */
    const int32_t * seq_id;     /* [n_seq_ids] */
    int64_t n_seq_ids;          /* required: at least seq_offset[n_tokens] */
    const uint8_t * output;     /* [n_tokens] not 0 where a row is wanted */
    int64_t n_rows;             /* number of tokens for which one is, n_outputs_max at most */
    float * rows;               /* [n_rows][row_size] rows in the order of the tokens. NULL: see qcls_decode */
    int64_t batch_us;           /* written: microseconds of filling llama.cpp's batch */
    int64_t trim_us;            /* written: microseconds of keeping and trimming */
    int64_t n_trim;             /* sequences to trim behind the decode */
    const int32_t * trim_seq;   /* [n_trim] as for qcls_seq_trim */
    const int32_t * trim_from;  /* [n_trim] */
    int64_t n_keep;             /* sequences that keep cells of the decode, which they get before others are trimmed */
    const int32_t * keep;       /* [n_keep][4] src, dst, from, to: dst gives up its cells at positions >= from, and
                                   shares src's at positions [from, to) */
} qcls_plan;

/* Decodes a plan, gives its rows, lets sequences keep cells, and trims sequences; where the decode fails, nothing is
 * kept, and sequences are trimmed, too.
 * With rows == NULL and n_rows > 0 it returns as soon as llama_decode does and sequences are trimmed, which on a GPU is
 * when the work is queued; qcls_decode_rows then waits for it and gives the rows. Whatever else is asked of the context
 * before waits, too, and the rows are lost.
 * QCLS_BAD_ARGUMENT: the plan does not fit the context; nothing was decoded or trimmed. */
QCLS_API int32_t qcls_decode(qcls_context * context, qcls_plan * plan, qcls_error * error);

/* Waits for the decode that left rows and gives them: rows[n_rows][row_size], n_rows as it was in the plan. */
QCLS_API int32_t qcls_decode_rows(qcls_context * context, float * rows, int64_t n_rows, qcls_error * error);

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Attention that reads only the cells that a token may see, on plain arrays, so that it can be held against a plain one.
 * Sequence s has the cells list_cell[list_start[s]] ... list_cell[list_start[s + 1] - 1], at the positions list_pos, which
 * ascend. Token i is of sequence token_seq[i], at token_pos[i], and sees the cells up to there. */
typedef struct qcls_attention {
    uint32_t size;              /* required */
    int32_t n_threads;          /* 1 to 512 */
    int64_t n_tokens;
    int64_t n_seqs;
    int64_t n_cells;
    const int32_t * token_seq;  /* [n_tokens] */
    const int32_t * token_pos;  /* [n_tokens] */
    const int32_t * list_start; /* [n_seqs + 1] from 0 */
    const int32_t * list_pos;   /* [list_start[n_seqs]] */
    const int32_t * list_cell;  /* [list_start[n_seqs]] */
    int32_t window;             /* how many positions, its own among them, a token sees at most; 0: all */
    int32_t n_head;             /* a multiple of n_head_kv */
    int32_t n_head_kv;
    int32_t head_size_k;
    int32_t head_size_v;
    int32_t is_f16;             /* 1: k and v are F16; 0: F32 */
    float scale;                /* of the products of q and k */
    int32_t reserved;
    const float * q;            /* [n_tokens][n_head][head_size_k] */
    const void * k;             /* [n_cells][n_head_kv][head_size_k] */
    const void * v;             /* [n_cells][n_head_kv][head_size_v] */
    float * out;                /* [n_tokens][n_head][head_size_v] written */
} qcls_attention;

/* Computes it, as the nodes of a graph do. QCLS_UNSUPPORTED where the build's CPU code has no such attention. */
QCLS_API int32_t qcls_compute_attention(const qcls_attention * attention, qcls_error * error);

/* --- label tries -------------------------------------------------------------------------------------------------- */

/* A trie of labels: nodes have edges, and each label is a path of edges. It is taken as it is: the caller has checked
 * that the offsets ascend from 0 and that every node and every label has an edge. */
typedef struct qcls_trie {
    uint32_t size;               /* required */
    int32_t reserved;
    int64_t n_queries;           /* how many sets of edges there are to score */
    int64_t n_nodes;
    int64_t n_labels;
    const int32_t * node_start;  /* [n_nodes + 1] node i has the edges node_start[i] ... node_start[i + 1] - 1 */
    const int32_t * label_start; /* [n_labels + 1] label j has the path label_edge[label_start[j]] ...
                                    label_edge[label_start[j + 1] - 1] */
    const int32_t * label_edge;  /* [label_start[n_labels]] */
    float * edge;                /* [n_queries][node_start[n_nodes]] logits; they become their log-softmax among the
                                    edges of their node */
    float * log_probability;     /* [n_queries][n_labels] written: the sum of that over a label's path */
    float * probability;         /* [n_queries][n_labels] written: exp of that */
    int64_t all_finite;          /* written: 1 where every log_probability is finite, else 0 */
} qcls_trie;

/* Scores the labels of a trie. */
QCLS_API int32_t qcls_trie_scores(qcls_trie * trie, qcls_error * error);

#ifdef __cplusplus
}
#endif

#endif
