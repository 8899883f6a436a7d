/* The C ABI between qcls-gguf and llama.cpp, all of it in one file: opaque handles, plain structs, arrays and scalars.
 *
 * Results. Every function but qcls_abi returns a qcls_status. Unless that is QCLS_OK, it writes the reason into *error,
 * its last argument, which may be NULL. No C++ exception leaves the library.
 *
 * Structs. Library and caller are built together: a caller compares qcls_abi() with the QCLS_ABI that it was compiled
 * with before it calls anything else. Zero is the default of every member that has one; members without are marked
 * "required".
 *
 * Arrays and memory. The caller owns every buffer, and C borrows it for the call. Numbers of elements and of bytes are
 * int64, so that no length of the caller is cut; ids, positions and settings are int32. "[n]" says how many elements an
 * array has; an array of none may be NULL. Text is UTF-8 and ends with a zero unless said otherwise; text that a
 * function gives belongs to the library, which never frees it.
 *
 * Objects. What is opened is closed: a context by qcls_context_close, before its model by qcls_model_close.
 */
#ifndef QCLS_H
#define QCLS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QCLS_ABI 12
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

/* Why a function did not return QCLS_OK; a longer message is cut. */
typedef struct qcls_error {
    char message[2048];
} qcls_error;

/* --- the library ------------------------------------------------------------------------------------------------- *
 * Any thread may call these.                                                                                         */

/* QCLS_ABI of the library. It grows with every change of this file that a caller could notice. */
QCLS_API int32_t qcls_abi(void);

/* What the library was built from. */
typedef struct qcls_library {
    const char * llama_cpp_commit;
    const char * llama_cpp_python_version; /* whose sdist has it */
    const char * source_digest;            /* the first 16 hex digits of the digest of sources, patches, kernels */
    const char * backend;                  /* "CPU", or "CUDA", its version and the architectures */
    int32_t max_sequences;                 /* the most that a context can have */
} qcls_library;

/* Describes the library. Starts nothing of llama.cpp. */
QCLS_API int32_t qcls_library_describe(qcls_library * library, qcls_error * error);

/* A line of llama.cpp's log, or a part of one. level: 1 debug, 2 info, 3 warning, 4 error, 5 continuation. */
typedef void (*qcls_log_fn)(int32_t level, const char * text, void * user);

/* Calls `log` with each line and `user`, from any thread but one line at a time. NULL: no log, as at start. */
QCLS_API int32_t qcls_set_log(qcls_log_fn log, void * user, qcls_error * error);

/* --- devices ------------------------------------------------------------------------------------------------------ *
 * They exist from the start. Any thread may call these.                                                              */

typedef enum qcls_device_kind {
    QCLS_DEVICE_CPU = 0,
    QCLS_DEVICE_GPU = 1,
    QCLS_DEVICE_INTEGRATED_GPU = 2,
    QCLS_DEVICE_OTHER = 3
} qcls_device_kind;

typedef struct qcls_device {
    int32_t kind;             /* a qcls_device_kind */
    uint64_t free_bytes;      /* memory that is free now */
    uint64_t total_bytes;     /* memory in all */
    char name[256];           /* such as "NVIDIA H200" */
    const char * cpu_features; /* of a CPU: what its code was compiled for, by ggml's names with tabs between them, "NAME"
                                 or "NAME=VALUE". AMX is among them only where the system lets the process use it */
    const char * cpu_variant; /* of a CPU: which of a portable build's variants of code computes, such as "haswell";
                                 empty in a build for one kind of processor */
} qcls_device;

/* Describes device `index`, from 0, GPUs first, or the CPU (-1); QCLS_BAD_ARGUMENT after the last one. */
QCLS_API int32_t qcls_device_describe(int32_t index, qcls_device * device, qcls_error * error);

typedef enum qcls_operation_kind {
    QCLS_COPY = 0,     /* n_bytes of memory are read once and written once; twice as much is needed */
    QCLS_PRODUCT = 1,  /* weights (n_inner, n_rows) times n_columns columns of F32: 2 * n_inner * n_rows * n_columns
                          operations */
    QCLS_MULTIPLY = 2, /* of a CPU: 10^9 operations on registers, by the instructions that products of weight_type use */
    QCLS_READ = 3      /* of a CPU: n_bytes of memory are read once */
} qcls_operation_kind;

/* An operation to measure. */
typedef struct qcls_operation {
    int32_t kind;        /* a qcls_operation_kind */
    int32_t device;      /* index of the device */
    int32_t n_threads;   /* required, 1 to 512; matters on a CPU, where they share the operation */
    int32_t weight_type; /* but to copy or read: a ggml_type that weights can have; 0: F32 */
    int32_t n_inner;     /* of a product: required, 1 to 65536, whole blocks of the type: the length of a row */
    int32_t n_rows;      /* of a product: required, 1 to 65536: rows of weights */
    int32_t n_columns;   /* of a product: required, 1 to 65536 */
    int64_t n_bytes;     /* to copy or read: required, 4 to 2^36 */
    double budget_s;     /* seconds to spend on all samples, about; 0: each sample is one operation */
} qcls_operation;

/* Seconds of one operation. */
typedef struct qcls_seconds {
    double best;   /* the least of five samples, to multiply or read of fifty */
    double median; /* of these */
} qcls_seconds;

/* Measures what a device can do at best. QCLS_DECODE_FAILED where it cannot do the operation, as GPUs QCLS_MULTIPLY and
 * QCLS_READ, and a CPU QCLS_MULTIPLY for a type whose products are not this project's. */
QCLS_API int32_t qcls_device_measure(const qcls_operation * operation, qcls_seconds * seconds, qcls_error * error);

/* --- models ------------------------------------------------------------------------------------------------------- *
 * Created by qcls_model_open, freed by qcls_model_close when no context of it is open. Any number of threads may      *
 * describe a model and use its tokenizer.                                                                            */

/* How much of a file is loaded, 0 to 1; return 0 to stop. */
typedef int32_t (*qcls_progress_fn)(float fraction, void * user);

/* The order of the weights of Q8_0 and Q6_K matrices in a GPU's memory: docs/kernels.md. */
typedef enum qcls_weight_order {
    QCLS_WEIGHTS_BY_DEVICE = 0,  /* lane order on cards of 7.5, unless QCLS_LANE_ORDER is 0; on others if it is 1 */
    QCLS_WEIGHTS_FILE_ORDER = 1, /* as the file has them, which llama.cpp's own kernels read */
    QCLS_WEIGHTS_LANE_ORDER = 2  /* lane order wherever code for 7.5 runs */
} qcls_weight_order;

/* How activations are rounded for the products of quantised weights on a CPU: docs/cpu.md. */
typedef enum qcls_activations {
    QCLS_ACTIVATIONS_DEFAULT = 0, /* to 8 bits, and to 16 where 8 leave most of the error */
    QCLS_ACTIVATIONS_FAST = 1,    /* to 8 bits */
    QCLS_ACTIVATIONS_FINE = 2     /* to 16 bits */
} qcls_activations;

typedef struct qcls_model_params {
    const char * path;          /* required: of a GGUF file */
    int32_t n_gpu_layers;       /* how many layers go to GPUs; negative: all of them */
    int32_t weight_order;       /* a qcls_weight_order; matrices that cannot have lane order stay as the file has them */
    const int32_t * share;      /* [n_gpus] how the layers on GPUs are divided among the first n_gpus GPUs, in the order of
                                   qcls_device_describe. Numbers whose sum is n_gpu_layers are exact, other numbers are
                                   proportions; the output layer is the last one. A GPU whose share is 0 is not used.
                                   Without a share above 0 all GPUs are used, in proportion to their free memory. On a
                                   machine without GPUs share has no effect */
    int64_t n_gpus;
    int32_t without_weights;    /* 1: all of the file but its weights is loaded, and no memory of a GPU is taken: enough to
                                   describe the model, for the tokenizer, and to open contexts that are only described */
    int32_t cpu_activations;    /* a qcls_activations; products that are not this project's are not affected */
    int32_t n_layers;           /* above 0: only so many of the first layers are loaded, and the LM head's matrix is not;
                                   n_gpu_layers and share count the last of these. Some architectures need a few layers
                                   more, or all: qcls_model_facts.n_left_out. 0: all */
    qcls_progress_fn progress;  /* called while the weights are loaded; may be NULL */
    void * user;
} qcls_model_params;

/* Loads a GGUF file into *model, which is NULL on failure. QCLS_LOAD_FAILED where the file cannot be loaded or `progress`
 * stopped it, QCLS_UNSUPPORTED for a model whose sequences cannot branch. */
QCLS_API int32_t qcls_model_open(const qcls_model_params * params, qcls_model ** model, qcls_error * error);

/* Frees a model whose contexts are closed. NULL is allowed. */
QCLS_API int32_t qcls_model_close(qcls_model * model, qcls_error * error);

/* What the file says of the model. A token is -1 where the vocabulary has none. */
typedef struct qcls_model_facts {
    int32_t n_vocab;        /* tokens of the vocabulary */
    int32_t n_embd;         /* length of a hidden state inside the model */
    int32_t n_layer;        /* of the file */
    int32_t n_left_out;     /* the last of these, which were not loaded: graphs of its contexts end below them */
    int32_t n_ctx_train;    /* positions that it was trained with */
    int32_t token_bos;      /* beginning of text */
    int32_t token_eos;      /* end of text */
    int32_t token_eot;      /* end of a turn */
    int32_t add_bos;        /* 1: texts begin with token_bos; 0 */
    int32_t n_lane_ordered; /* matrices in lane order: qcls_weight_order */
    int64_t size_bytes;     /* of all tensors */
    int64_t n_params;       /* numbers in all tensors */
    int64_t state_bytes;    /* of the state that recurrent layers keep of a sequence; 0: the model has none. There is
                               only the state after the last token: qcls_seq_share is right for all of a sequence's
                               cells alone, and qcls_seq_trim takes all of a sequence or nothing */
    char description[128];  /* llama.cpp's, such as "qwen3 8B Q4_K - Medium" */
} qcls_model_facts;

QCLS_API int32_t qcls_model_describe(const qcls_model * model, qcls_model_facts * facts, qcls_error * error);

/* What becomes of text that spells a special token. Control tokens are marks such as <|im_start|>; user-defined tokens
 * were added to the vocabulary, such as </think>. User-defined tokens of white space alone are always found, because the
 * vocabulary writes text with them. */
typedef enum qcls_parse {
    QCLS_PARSE_NOTHING = 0,     /* it stays text */
    QCLS_PARSE_SPECIAL = 1,     /* it becomes that token */
    QCLS_PARSE_USER_DEFINED = 2 /* it becomes that token if it is a user-defined one, and else stays text */
} qcls_parse;

/* Tokens of text[n_bytes], which needs no zero at its end, into token[capacity]; no beginning-of-text token is added.
 * parse: a qcls_parse. n_tokens: how many there are. QCLS_TOO_SMALL where that is more than capacity: call again with so
 * much room.
 * QCLS_BAD_ARGUMENT for more than 2147483647 bytes, which is more than llama.cpp can count, and, except with
 * QCLS_PARSE_SPECIAL, where the rules of the vocabulary join text to a control token. */
QCLS_API int32_t qcls_tokenize(const qcls_model * model, const char * text, int64_t n_bytes, int32_t parse,
                               int32_t * token, int64_t capacity, int64_t * n_tokens, qcls_error * error);

typedef enum qcls_token_kind {
    QCLS_TOKEN_TEXT = 0,        /* text, or a user-defined token of white space */
    QCLS_TOKEN_CONTROL = 1,     /* qcls_tokenize finds it in text with QCLS_PARSE_SPECIAL */
    QCLS_TOKEN_USER_DEFINED = 2 /* qcls_tokenize also finds it with QCLS_PARSE_USER_DEFINED */
} qcls_token_kind;

/* The bytes of a token into text[capacity], with no zero at their end; special tokens as they are spelt.
 * n_bytes: how many there are; QCLS_TOO_SMALL where that is more than capacity. kind: a qcls_token_kind. */
QCLS_API int32_t qcls_token_piece(const qcls_model * model, int32_t token, char * text, int64_t capacity,
                                  int64_t * n_bytes, int32_t * kind, qcls_error * error);

/* --- types of tensors --------------------------------------------------------------------------------------------- *
 * Any thread may call these.                                                                                         */

/* The values and the bytes of a block of a ggml type, as GGUF files number them. QCLS_BAD_ARGUMENT: there is no such
 * type. */
QCLS_API int32_t qcls_type_block(int32_t type, int64_t * n_values, int64_t * n_bytes, qcls_error * error);

/* Whole blocks of a ggml type in data[n_bytes] as value[n_values]. QCLS_BAD_ARGUMENT: it is not a type of weights, or
 * the blocks hold another number of values. */
QCLS_API int32_t qcls_dequantise(int32_t type, const void * data, int64_t n_bytes, float * value, int64_t n_values,
                                 qcls_error * error);

/* --- contexts ----------------------------------------------------------------------------------------------------- *
 * Created by qcls_context_open, freed by qcls_context_close before its model is. One thread at a time may use a       *
 * context, except that any thread may describe it, also while another one decodes. A context of a model without       *
 * weights can only be described and closed.                                                                          */

typedef enum qcls_flash_attn {
    QCLS_FLASH_ATTN_AUTO = 0, /* on where the device has it */
    QCLS_FLASH_ATTN_OFF = 1,
    QCLS_FLASH_ATTN_ON = 2
} qcls_flash_attn;

/* A context: a cache of keys and values that its sequences share, and the buffers to decode with. */
typedef struct qcls_context_params {
    int32_t n_ctx;           /* required, at least 1: cells of the cache, rounded up by llama.cpp */
    int32_t n_batch;         /* required, n_seq_max to n_ctx: tokens of one decode */
    int32_t n_seq_max;       /* required, 1 to qcls_library.max_sequences: sequences, numbered from 0 */
    int32_t n_outputs_max;   /* required, n_seq_max to n_batch: flagged tokens of one decode */
    int32_t n_threads;       /* required, 1 to 512: of a CPU */
    int32_t hidden_only;     /* 1: rows are final-norm hidden states and no LM head is computed; 0: rows are logits */
    int32_t flash_attn;      /* a qcls_flash_attn */
    int32_t visible_cells;   /* 1, with flash_attn off on a CPU, auto on a GPU: attention reads only the cells that a
                                token may see, where this context can have it (qcls_context_facts.reads_all_since); 0: it
                                reads every used cell */
    int32_t batch_invariant; /* 1: a token's row does not depend on what else is decoded with it; with label tokens
                                n_outputs_max is at most 112 then */
    const char * kv_type;    /* of the cache: "f32", "f16", "bf16", "q8_0" or "q4_0"; NULL: "f16" */
    const int32_t * label_token; /* [n_label_tokens] as qcls_context_set_label_tokens takes them */
    int64_t n_label_tokens;
} qcls_context_params;

/* Opens a context into *context, which is NULL on failure. With a model without weights, cache and buffers take no
 * memory, and qcls_context_describe tells how large they would be.
 * A context of a model of which layers were left out is hidden-only, and its graph ends after the last layer that there is.
 * QCLS_UNSUPPORTED where hidden_only is asked of a model whose logits are not what qcls_context_facts describes, or
 * batch_invariant where attention reads more than visible cells on CUDA devices, QCLS_LOAD_FAILED where llama.cpp cannot
 * make the context. */
QCLS_API int32_t qcls_context_open(const qcls_model * model, const qcls_context_params * params,
                                   qcls_context ** context, qcls_error * error);

/* Frees a context. NULL is allowed. */
QCLS_API int32_t qcls_context_close(qcls_context * context, qcls_error * error);

/* The most GPUs that a model can be on: llama.cpp's GGML_CUDA_MAX_DEVICES, of llama_max_devices() */
#define QCLS_MAX_GPUS 16

/* The actual sizes of a context, its counters and its memory; what changes is as of the end of its last call. */
typedef struct qcls_context_facts {
    int32_t n_ctx;
    int32_t n_batch;
    int32_t n_seq_max;
    int32_t n_outputs_max;
    int32_t row_size;        /* floats of a row that qcls_decode gives */
    int32_t hidden_only;     /* 1: rows begin with hidden states; 0: rows are logits */

    /* How hidden states become logits. With h a row's hidden state, w the head's row of a token, b the token's
     * output.bias (0 without has_bias) and y = (h * w + b) * scale, the token's logit is y, or cap * tanh(y) where cap is
     * not 0. */
    int32_t has_bias;        /* 1: the model adds output.bias; 0 */
    float scale;             /* 1: none */
    float cap;               /* 0: none */

    int32_t n_gpus;          /* with memory of their own */
    int64_t cache_bytes;     /* the KV cache, with the states of all sequences, on all devices */
    int64_t gpu_cache_bytes[QCLS_MAX_GPUS]; /* the part of them on each GPU, in the order of qcls_model_params.share */
    int64_t compute_bytes;   /* the compute buffers for the largest decode, on all devices */
    int64_t n_graphs_reused; /* decodes whose graph was already built, since the context was opened */
    int64_t n_shapes;        /* graphs kept now */
    int64_t shapes_bytes;    /* their compute buffers, on all devices */
    int64_t n_cuda_graphs;   /* CUDA graphs launched by this process; -1 in a build without CUDA */
    const char * reads_all_since; /* why attention reads every used cell of the cache; NULL where it reads only the cells
                                     that a token may see */
} qcls_context_facts;

/* Describes a context. Any thread may call it. */
QCLS_API int32_t qcls_context_describe(const qcls_context * context, qcls_context_facts * facts, qcls_error * error);

/* Lets the rows of a hidden-only context hold logits from now on: after the hidden state, the logits of
 * token[n] in this order, and then the log-sum-exp of all logits; the LM head is computed for them. n = 0: the hidden
 * state alone, without the LM head. So the size of a row changes, and graphs are built anew; sequences keep their cells.
 * A token may occur more than once; n is the vocabulary's size at most. On QCLS_BAD_ARGUMENT, and where memory was
 * lacking (QCLS_LOAD_FAILED), the context is as it was. */
QCLS_API int32_t qcls_context_set_label_tokens(qcls_context * context, int64_t n, const int32_t * token,
                                               qcls_error * error);

/* Lets a hidden-only context read the residual stream of flagged tokens from now on: the sum to which every layer adds,
 * as it is after each of depth[n] layers, without a norm. Rows hold these, n_embd floats each in this order, between
 * the hidden state and the label tokens' logits. end: above 0, the graph ends after so many layers, more than each depth;
 * the row's hidden state is then the residual stream there, the layers above are not computed, their cells are not
 * written, and there can be no label tokens. Depths are 1 to n_layer - 1. Where layers were left out, end is one of the
 * others. So the size of a row changes, and graphs are
 * built anew; sequences keep their cells, which lack those of layers that were not computed.
 * On QCLS_BAD_ARGUMENT, and QCLS_UNSUPPORTED where llama.cpp's graph of the model does not show that stream, the context
 * is as it was. */
QCLS_API int32_t qcls_context_set_depths(qcls_context * context, int64_t n, const int32_t * depth, int32_t end,
                                         qcls_error * error);

/* Keeps the graphs of the last n_shapes shapes of decode, each with its compute buffers; 0: llama.cpp's one, as at
 * start. */
QCLS_API int32_t qcls_context_keep_shapes(qcls_context * context, int32_t n_shapes, qcls_error * error);

/* Lets sequence dst have src's cells at positions [from, to), too; to < 0: to the end. Copies nothing. */
QCLS_API int32_t qcls_seq_share(qcls_context * context, int32_t src, int32_t dst, int32_t from, int32_t to,
                                qcls_error * error);

/* Sequence seq[i] loses its cells at positions >= from[i]; both [n]. Where one is out of range none is trimmed. */
QCLS_API int32_t qcls_seq_trim(qcls_context * context, int64_t n, const int32_t * seq, const int32_t * from,
                               qcls_error * error);

/* The cells of all sequences into state[*n_bytes], for qcls_state_load of a context like this one in the same build.
 * *n_bytes: the room on the way in, what is needed on the way out; QCLS_TOO_SMALL where that is more. */
QCLS_API int32_t qcls_state_save(qcls_context * context, uint8_t * state, int64_t * n_bytes, qcls_error * error);

/* Replaces all sequences by those saved in state[n_bytes]. n_bytes 0: removes all sequences and overwrites their cells.
 * If the state does not fit (QCLS_DECODE_FAILED) the cache is empty afterwards. */
QCLS_API int32_t qcls_state_load(qcls_context * context, const uint8_t * state, int64_t n_bytes, qcls_error * error);

/* One llama_decode: tokens, the sequences that each belongs to, and the tokens whose rows are wanted. */
typedef struct qcls_plan {
    int64_t n_tokens;           /* required, 1 to n_batch */
    const int32_t * token;      /* [n_tokens] ids */
    const int32_t * pos;        /* [n_tokens] positions, from 0 */
    const int32_t * seq_offset; /* [n_tokens + 1] ascending: token i belongs to the sequences
                                   seq_id[seq_offset[i]] ... seq_id[seq_offset[i + 1] - 1], one at least */
    const int32_t * seq_id;     /* [n_seq_ids] */
    int64_t n_seq_ids;          /* required: at least seq_offset[n_tokens] */
    const uint8_t * output;     /* [n_tokens] not 0 where a row is wanted */
    int64_t n_rows;             /* number of tokens whose rows are wanted, n_outputs_max at most */
    float * rows;               /* [n_rows][row_size] rows in the order of the tokens. NULL: see qcls_decode */
    int64_t batch_us;           /* written: microseconds of filling llama.cpp's batch */
    int64_t trim_us;            /* written: microseconds of keeping and trimming */
    int64_t n_trim;             /* sequences to trim after the decode */
    const int32_t * trim_seq;   /* [n_trim] as for qcls_seq_trim */
    const int32_t * trim_from;  /* [n_trim] */
    int64_t n_keep;             /* sequences that keep cells of the decode; they get them before sequences are trimmed */
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

/* Waits for a decode that returned without its rows, and gives them: rows[n_rows][row_size], n_rows as it was in the plan. */
QCLS_API int32_t qcls_decode_rows(qcls_context * context, float * rows, int64_t n_rows, qcls_error * error);

/* --- label tries -------------------------------------------------------------------------------------------------- *
 * Any thread may score a trie of its own.                                                                            */

/* A trie of labels: nodes have edges, and each label is a path of edges. It is taken as it is: the caller has checked
 * that the offsets ascend from 0 and that every node and every label has an edge. */
typedef struct qcls_trie {
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
