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
 * int64, so that no length is truncated; ids, positions and settings are int32. "[n]" says how many elements an
 * array has; an array of none may be NULL. Text is UTF-8 and ends with a zero unless said otherwise; text that a
 * function returns belongs to the library and stays valid until the process ends.
 *
 * Objects. What is opened is closed: a context by qcls_context_close, before its model by qcls_model_close.
 */
#ifndef QCLS_H
#define QCLS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QCLS_ABI 13
#define QCLS_API __attribute__((visibility("default")))

typedef struct qcls_model qcls_model;
typedef struct qcls_context qcls_context;

typedef enum qcls_status {
    QCLS_OK = 0,
    QCLS_BAD_ARGUMENT = 1,  /* refused before llama.cpp was called; nothing changed */
    QCLS_LOAD_FAILED = 2,   /* the model or the context could not be made */
    QCLS_UNSUPPORTED = 3,   /* this model or this build cannot do it */
    QCLS_DECODE_FAILED = 4, /* llama.cpp failed; sequences may hold a part of a plan */
    QCLS_TOO_SMALL = 5      /* the caller's buffer is too small; the needed number of elements was written */
} qcls_status;

/* Why a function did not return QCLS_OK. A longer message is truncated. */
typedef struct qcls_error {
    char message[2048];
} qcls_error;

/* --- the library ------------------------------------------------------------------------------------------------- *
 * Any thread may call these.                                                                                         */

/* The QCLS_ABI that the library was built with. It is increased with every change of this file that affects callers. */
QCLS_API int32_t qcls_abi(void);

/* What the library was built from. */
typedef struct qcls_library {
    const char * llama_cpp_commit;
    const char * llama_cpp_python_version; /* the release whose sdist contains that commit */
    const char * source_digest;            /* the first 16 hex digits of the digest of sources, patches and kernels */
    const char * backend;                  /* "CPU", or "CUDA" with its version and the architectures */
    int32_t max_sequences;                 /* the most sequences that a context can have */
} qcls_library;

/* Describes the library. Does not start llama.cpp. */
QCLS_API int32_t qcls_library_describe(qcls_library * library, qcls_error * error);

/* Receives a line of llama.cpp's log, or a part of one. level: 1 debug, 2 info, 3 warning, 4 error, 5 continuation. */
typedef void (*qcls_log_fn)(int32_t level, const char * text, void * user);

/* Sets the function that is called with each line of the log and `user`, from any thread, one line at a time. NULL, the
 * initial value: no log. */
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
    const char * cpu_features; /* for a CPU: the features that its code was compiled for, by ggml's names, separated by
                                 tabs: "NAME" or "NAME=VALUE" */
    const char * cpu_variant; /* for a CPU: the variant of the code that a portable build uses, such as "haswell"; empty
                                 in a build for one kind of processor */
} qcls_device;

/* Describes device `index`: from 0 on, GPUs first, or -1 for the CPU. QCLS_BAD_ARGUMENT after the last device. */
QCLS_API int32_t qcls_device_describe(int32_t index, qcls_device * device, qcls_error * error);

/* --- models ------------------------------------------------------------------------------------------------------- *
 * Created by qcls_model_open, freed by qcls_model_close when no context of it is open. Any number of threads may      *
 * describe a model and use its tokenizer.                                                                            */

/* How much of a file is loaded, 0 to 1; return 0 to stop. */
typedef int32_t (*qcls_progress_fn)(float fraction, void * user);

/* The order of the weights of Q8_0 and Q6_K matrices in a GPU's memory: docs/kernels.md. */
typedef enum qcls_weight_order {
    QCLS_WEIGHTS_BY_DEVICE = 0,  /* lane order on cards of 7.5 unless QCLS_LANE_ORDER is 0, on others if it is 1 */
    QCLS_WEIGHTS_FILE_ORDER = 1, /* the file's order, which llama.cpp's own kernels read */
    QCLS_WEIGHTS_LANE_ORDER = 2  /* lane order on every device that runs code for 7.5 */
} qcls_weight_order;

/* How activations are rounded for the products of quantised weights on a CPU: docs/cpu.md. */
typedef enum qcls_activations {
    QCLS_ACTIVATIONS_DEFAULT = 0, /* to 8 bits, and to 16 where 8 leave most of the error */
    QCLS_ACTIVATIONS_FAST = 1,    /* to 8 bits */
    QCLS_ACTIVATIONS_FINE = 2     /* to 16 bits */
} qcls_activations;

typedef struct qcls_model_params {
    const char * path;          /* required: the path of a GGUF file */
    int32_t n_gpu_layers;       /* how many layers go to GPUs; negative: all of them */
    int32_t weight_order;       /* a qcls_weight_order; matrices that cannot have lane order keep the file's order */
    const int32_t * share;      /* [n_gpus] how the layers on GPUs are divided among the first n_gpus GPUs, in the
                                   order of qcls_device_describe. Numbers whose sum is n_gpu_layers are exact, other
                                   numbers are proportions; the output layer is the last one. A GPU whose share is 0
                                   is not used. Without a share above 0 all GPUs are used, in proportion to their
                                   free memory. On a machine without GPUs share has no effect */
    int64_t n_gpus;
    int32_t without_weights;    /* 1: the file is loaded without its weights, and no GPU memory is used. This is
                                   enough to describe the model, to tokenise, and to open contexts that are only
                                   described */
    int32_t cpu_activations;    /* a qcls_activations; llama.cpp's own products are not affected */
    int32_t n_layers;           /* if above 0, only the first n_layers layers are loaded, without the LM head's
                                   matrix, and n_gpu_layers and share count only these. Some architectures need a few
                                   layers more, or all: see qcls_model_facts.n_left_out. 0: all layers */
    qcls_progress_fn progress;  /* called while the weights are loaded; may be NULL */
    void * user;
} qcls_model_params;

/* Loads a GGUF file into *model, which is NULL on failure. QCLS_LOAD_FAILED if the file cannot be loaded or `progress`
 * stopped it, QCLS_UNSUPPORTED for a model whose sequences cannot branch. */
QCLS_API int32_t qcls_model_open(const qcls_model_params * params, qcls_model ** model, qcls_error * error);

/* Frees a model whose contexts are closed. NULL is allowed. */
QCLS_API int32_t qcls_model_close(qcls_model * model, qcls_error * error);

/* Facts about a model. A token is -1 if the vocabulary has none of this kind. */
typedef struct qcls_model_facts {
    int32_t n_vocab;        /* tokens of the vocabulary */
    int32_t n_embd;         /* length of a hidden state inside the model */
    int32_t n_layer;        /* layers of the file */
    int32_t n_left_out;     /* how many of the last layers were not loaded: graphs of its contexts end below them */
    int32_t n_ctx_train;    /* the number of positions that the model was trained with */
    int32_t token_bos;      /* beginning of text */
    int32_t token_eos;      /* end of text */
    int32_t token_eot;      /* end of a turn */
    int32_t add_bos;        /* 1: texts begin with token_bos; 0: they do not */
    int32_t n_lane_ordered; /* how many matrices are in lane order: see qcls_weight_order */
    int32_t walks_trees;    /* 1: recurrent layers compute a token tree in one pass: see qcls_plan.n_trim; 0 */
    int64_t size_bytes;     /* bytes of all tensors */
    int64_t n_params;       /* numbers in all tensors */
    int64_t state_bytes;    /* bytes of the state that recurrent layers keep for a sequence; 0: the model has no such
                               layers. A state exists only after a sequence's last token: qcls_seq_share must share all
                               cells of a sequence, and qcls_seq_trim must trim all of them or none */
    char description[128];  /* llama.cpp's, such as "qwen3 8B Q4_K - Medium" */
} qcls_model_facts;

QCLS_API int32_t qcls_model_describe(const qcls_model * model, qcls_model_facts * facts, qcls_error * error);

/* How text that spells a special token is tokenised. Control tokens are marks such as <|im_start|>; user-defined tokens
 * were added to the vocabulary, such as </think>. User-defined tokens that consist of white space are always found,
 * because the vocabulary uses them for ordinary text. */
typedef enum qcls_parse {
    QCLS_PARSE_NOTHING = 0,     /* it stays text */
    QCLS_PARSE_SPECIAL = 1,     /* it becomes that token */
    QCLS_PARSE_USER_DEFINED = 2 /* it becomes that token if the token is user-defined, and otherwise stays text */
} qcls_parse;

/* Writes the tokens of text[n_bytes], which needs no zero at its end, to token[capacity]. No beginning-of-text token is
 * added. parse: a qcls_parse. *n_tokens: how many there are; QCLS_TOO_SMALL if that is more than capacity: call again
 * with so much room. Needs little of the caller's stack: a text that may need more is tokenised on a thread of its own.
 * QCLS_BAD_ARGUMENT for more than 4194304 bytes, for a text that the rules of the vocabulary cannot tokenise, and,
 * except with QCLS_PARSE_SPECIAL, if they merge text into a control token. */
QCLS_API int32_t qcls_tokenize(const qcls_model * model, const char * text, int64_t n_bytes, int32_t parse,
                               int32_t * token, int64_t capacity, int64_t * n_tokens, qcls_error * error);

typedef enum qcls_token_kind {
    QCLS_TOKEN_TEXT = 0,        /* text, or a user-defined token that consists of white space */
    QCLS_TOKEN_CONTROL = 1,     /* qcls_tokenize finds it in text with QCLS_PARSE_SPECIAL */
    QCLS_TOKEN_USER_DEFINED = 2 /* qcls_tokenize also finds it with QCLS_PARSE_USER_DEFINED */
} qcls_token_kind;

/* Writes the bytes of a token to text[capacity], without a zero at their end; special tokens as they are spelt.
 * *n_bytes: how many there are; QCLS_TOO_SMALL if that is more than capacity. *kind: a qcls_token_kind. */
QCLS_API int32_t qcls_token_piece(const qcls_model * model, int32_t token, char * text, int64_t capacity,
                                  int64_t * n_bytes, int32_t * kind, qcls_error * error);

/* --- types of tensors --------------------------------------------------------------------------------------------- *
 * Any thread may call these.                                                                                         */

/* Writes the number of values and of bytes of a block of a ggml type, numbered as in GGUF files. QCLS_BAD_ARGUMENT if
 * there is no such type. */
QCLS_API int32_t qcls_type_block(int32_t type, int64_t * n_values, int64_t * n_bytes, qcls_error * error);

/* Dequantises whole blocks of a ggml type, data[n_bytes], to value[n_values]. QCLS_BAD_ARGUMENT if the type is not a
 * type of weights, or if the blocks hold another number of values. */
QCLS_API int32_t qcls_dequantise(int32_t type, const void * data, int64_t n_bytes, float * value, int64_t n_values,
                                 qcls_error * error);

/* --- contexts ----------------------------------------------------------------------------------------------------- *
 * Created by qcls_context_open, freed by qcls_context_close before its model is. One thread at a time may use a       *
 * context, except that any thread may describe it, also while another one decodes. A context of a model without       *
 * weights can only be described and closed.                                                                          */

typedef enum qcls_flash_attn {
    QCLS_FLASH_ATTN_AUTO = 0, /* on if the device has it */
    QCLS_FLASH_ATTN_OFF = 1,
    QCLS_FLASH_ATTN_ON = 2
} qcls_flash_attn;

/* A context: a cache of keys and values that its sequences share, and the buffers to decode with. */
typedef struct qcls_context_params {
    int32_t n_ctx;           /* required, at least 1: cells of the cache, rounded up by llama.cpp */
    int32_t n_batch;         /* required, n_seq_max to n_ctx: tokens of one decode */
    int32_t n_seq_max;       /* required, 1 to qcls_library.max_sequences: sequences, numbered from 0 */
    int32_t n_outputs_max;   /* required, n_seq_max to n_batch: flagged tokens of one decode */
    int32_t n_threads;       /* required, 1 to 512: threads on a CPU */
    int32_t hidden_only;     /* 1: rows are final-norm hidden states and no LM head is computed; 0: rows are logits */
    int32_t flash_attn;      /* a qcls_flash_attn */
    int32_t visible_cells;   /* 1: attention reads only the cells that a token may see, if this context can have that
                                (qcls_context_facts.reads_all_since), with flash_attn off on a CPU and auto on a GPU;
                                0: it reads every used cell */
    int32_t batch_invariant; /* 1: a token's row does not depend on what else is decoded with it; with label tokens,
                                n_outputs_max must then be at most 112 */
    int32_t n_state_seqs;    /* sequences that have states of recurrent layers at once, at most n_seq_max; 0: all.
                                A qcls_decode that writes the states of more fails: those that trim nothing
                                afterwards write states, and all do if the model does not walk trees */
    const char * kv_type;    /* the cache's type: "f32", "f16", "bf16", "q8_0" or "q4_0"; NULL: "f16" */
    const int32_t * label_token; /* [n_label_tokens] as qcls_context_set_label_tokens takes them */
    int64_t n_label_tokens;
} qcls_context_params;

/* Opens a context into *context, which is NULL on failure. For a model without weights, cache and buffers take no
 * memory, and qcls_context_describe says how large they would be. If layers of the model were left out, the context
 * must be hidden-only (otherwise QCLS_BAD_ARGUMENT), and its graph ends after the last loaded layer. QCLS_UNSUPPORTED
 * if hidden_only is set for a model whose logits do not follow the formula in qcls_context_facts, or if
 * batch_invariant is set and attention reads more than visible cells or is not on CUDA devices. QCLS_LOAD_FAILED if
 * llama.cpp cannot make the context. */
QCLS_API int32_t qcls_context_open(const qcls_model * model, const qcls_context_params * params,
                                   qcls_context ** context, qcls_error * error);

/* Frees a context. NULL is allowed. */
QCLS_API int32_t qcls_context_close(qcls_context * context, qcls_error * error);

/* The most GPUs that a model can be on: llama.cpp's GGML_CUDA_MAX_DEVICES, which llama_max_devices() returns */
#define QCLS_MAX_GPUS 16

/* The actual sizes of a context, its counters and its memory. Values that change are those after the context's last
 * completed call. */
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
    int32_t has_bias;        /* 1: the model adds output.bias; 0: it does not */
    float scale;             /* 1: no scale */
    float cap;               /* 0: no cap */

    int32_t n_gpus;          /* GPUs with memory of their own */
    int64_t cache_bytes;     /* the KV cache, with the states of all sequences, on all devices */
    int64_t gpu_cache_bytes[QCLS_MAX_GPUS]; /* the part on each GPU, in the order of qcls_model_params.share */
    int64_t compute_bytes;   /* the compute buffers for the largest decode, on the device that has most of them */
    int64_t n_graphs_reused; /* decodes whose graph was already built, since the context was opened */
    int64_t n_shapes;        /* graphs kept now */
    int64_t shapes_bytes;    /* their compute buffers, on all devices */
    int64_t n_cuda_graphs;   /* CUDA graphs launched by this process; -1 in a build without CUDA */
    const char * reads_all_since; /* why attention reads every used cell of the cache; NULL where it reads only the
                                     cells that a token may see */
} qcls_context_facts;

/* Describes a context. Any thread may call it. */
QCLS_API int32_t qcls_context_describe(const qcls_context * context, qcls_context_facts * facts, qcls_error * error);

/* Makes the rows of a hidden-only context hold logits from now on: after the hidden state, the logits of token[n] in
 * this order, then the log-sum-exp of all logits; the LM head is computed for them. n = 0: the hidden state alone,
 * without the LM head. The size of a row changes and graphs are built again; sequences keep their cells. A token may
 * occur more than once; n is at most the size of the vocabulary. On QCLS_BAD_ARGUMENT, and if memory is lacking
 * (QCLS_LOAD_FAILED), the context is unchanged; if the message says that the context is lost, it can only be closed. */
QCLS_API int32_t qcls_context_set_label_tokens(qcls_context * context, int64_t n, const int32_t * token,
                                               qcls_error * error);

/* Makes the rows of a hidden-only context hold residual streams of flagged tokens from now on. The residual stream is
 * the sum to which every layer adds; a row has its value after each of depth[n] layers, without a norm: n_embd floats
 * each, in this order, between the hidden state and the label tokens' logits. end: if above 0, the graph ends after so
 * many layers. The row's hidden state is then the residual stream there, the layers above are not computed, their
 * cells are not written, and there can be no label tokens. If layers of the model were left out, end must be 1 to the
 * number of loaded layers; otherwise 0 to n_layer - 1. Depths are 1 to n_layer - 1, and below end if that is not 0.
 * The size of a row changes and graphs are built again. Sequences keep their cells, without keys and values of layers
 * that were not computed. On QCLS_BAD_ARGUMENT, and on QCLS_UNSUPPORTED if llama.cpp's graph of the model does not
 * contain that stream, the context is unchanged. */
QCLS_API int32_t qcls_context_set_depths(qcls_context * context, int64_t n, const int32_t * depth, int32_t end,
                                         qcls_error * error);

/* Keeps the graphs of the last n_shapes shapes of decode, each with its compute buffers. 0, the initial value: only
 * llama.cpp's own graph. */
QCLS_API int32_t qcls_context_keep_shapes(qcls_context * context, int32_t n_shapes, qcls_error * error);

/* Adds the cells of sequence src at positions [from, to) to sequence dst; to < 0: to the end. Copies no cells. */
QCLS_API int32_t qcls_seq_share(qcls_context * context, int32_t src, int32_t dst, int32_t from, int32_t to,
                                qcls_error * error);

/* Removes from sequence seq[i] its cells at positions >= from[i]; both arrays are [n]. If one value is out of range,
 * nothing is trimmed. */
QCLS_API int32_t qcls_seq_trim(qcls_context * context, int64_t n, const int32_t * seq, const int32_t * from,
                               qcls_error * error);

/* Writes the cells of all sequences to state[*n_bytes], for qcls_state_load of a context like this one in the same
 * build. *n_bytes: the room before the call, the number of bytes needed after it; QCLS_TOO_SMALL if that is more. */
QCLS_API int32_t qcls_state_save(qcls_context * context, uint8_t * state, int64_t * n_bytes, qcls_error * error);

/* Replaces all sequences with those saved in state[n_bytes]. n_bytes = 0: removes all sequences and overwrites their
 * cells with zeros. If the state does not fit (QCLS_DECODE_FAILED), the cache is empty afterwards. */
QCLS_API int32_t qcls_state_load(qcls_context * context, const uint8_t * state, int64_t n_bytes, qcls_error * error);

/* One llama_decode: tokens, the sequences to which each belongs, and which tokens' rows are wanted. */
typedef struct qcls_plan {
    int64_t n_tokens;           /* required, 1 to n_batch */
    const int32_t * token;      /* [n_tokens] ids */
    const int32_t * pos;        /* [n_tokens] positions, from 0 */
    const int32_t * seq_offset; /* [n_tokens + 1] ascending: token i belongs to the sequences
                                   seq_id[seq_offset[i]] ... seq_id[seq_offset[i + 1] - 1], one at least */
    const int32_t * seq_id;     /* [n_seq_ids] */
    int64_t n_seq_ids;          /* required: at least seq_offset[n_tokens] */
    const uint8_t * output;     /* [n_tokens] not 0 if the token's row is wanted */
    int64_t n_rows;             /* the number of tokens whose rows are wanted, at most n_outputs_max */
    float * rows;               /* written: [n_rows][row_size] rows in the order of the tokens. NULL: see qcls_decode */
    int64_t batch_us;           /* written: microseconds of filling llama.cpp's batch */
    int64_t trim_us;            /* written: microseconds of trimming */
    int64_t n_trim;             /* sequences to trim after the decode. If there are any and the model walks trees, the
                                   decode takes one pass and changes no state */
    const int32_t * trim_seq;   /* [n_trim] as for qcls_seq_trim */
    const int32_t * trim_from;  /* [n_trim] */
} qcls_plan;

/* Decodes a plan, writes its rows, and trims sequences, also if the decode fails. With rows == NULL and n_rows > 0 the
 * function returns after llama_decode and the trimming; on a GPU the work is only queued by then. qcls_decode_rows waits
 * for it and writes the rows. Any other call on the context before that waits, too, and the rows are lost.
 * QCLS_BAD_ARGUMENT: the plan does not fit the context; nothing was decoded or trimmed. */
QCLS_API int32_t qcls_decode(qcls_context * context, qcls_plan * plan, qcls_error * error);

/* Waits for a decode that returned without its rows, and writes them: rows[n_rows][row_size], n_rows as in the plan. */
QCLS_API int32_t qcls_decode_rows(qcls_context * context, float * rows, int64_t n_rows, qcls_error * error);

/* --- label tries -------------------------------------------------------------------------------------------------- *
 * Any thread may score a trie of its own.                                                                            */

/* A trie of labels: nodes have edges, and each label is a path of edges. It is not checked: the caller must ensure that
 * offsets ascend from 0 and that every node and every label has an edge. */
typedef struct qcls_trie {
    int64_t n_queries;           /* the number of sets of edge logits to score */
    int64_t n_nodes;
    int64_t n_labels;
    const int32_t * node_start;  /* [n_nodes + 1] node i has the edges node_start[i] ... node_start[i + 1] - 1 */
    const int32_t * label_start; /* [n_labels + 1] label j has the path label_edge[label_start[j]] ...
                                    label_edge[label_start[j + 1] - 1] */
    const int32_t * label_edge;  /* [label_start[n_labels]] */
    float * edge;                /* [n_queries][node_start[n_nodes]] logits, replaced by their log-softmax over the
                                    edges of their node */
    float * log_probability;     /* [n_queries][n_labels] written: the sum of log-softmaxes over a label's path */
    float * probability;         /* [n_queries][n_labels] written: exp of log_probability */
    int64_t all_finite;          /* written: 1 if every log_probability is finite, else 0 */
} qcls_trie;

/* Scores the labels of a trie. */
QCLS_API int32_t qcls_trie_scores(qcls_trie * trie, qcls_error * error);

#ifdef __cplusplus
}
#endif

#endif
