// Definitions that the files of the shim share: errors, arguments, and the handles.
#pragma once

#include "qcls.h"

#include "llama-cpp.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

// --- errors (error.cpp) ---------------------------------------------------------------------------------------------

// An exception with the status and the message of a failed call. `guarded` catches it and returns both.
struct failure {
    qcls_status status;
    std::string message;
    bool by_llama = false;  // whether to append the errors that llama.cpp logged during the call, which are the cause
};

// A failure whose reason is an argument.
failure bad_argument(std::string message);

// A failure whose reason llama.cpp has logged.
failure llama_failure(qcls_status status, std::string message);

// Writes a message and, with with_log, the errors that llama.cpp logged during this call. Allocates nothing.
void write_error(qcls_error * error, const char * message, bool with_log) noexcept;

// Runs the body of a function of the library and turns whatever it throws into a status and a message. otherwise: the
// status for exceptions that are not a `failure`.
template <typename Body> int32_t guarded(qcls_error * error, qcls_status otherwise, Body && body) noexcept;

// --- llama.cpp's log and start (log.cpp) ----------------------------------------------------------------------------

// The errors that llama.cpp logged during this thread's call. It reports the cause of a failure only through its log.
extern thread_local std::string logged_errors;

// Starts llama.cpp, once a process. Fails in a process that was forked from one with a GPU.
void start_llama();

// Loads ggml's code for processors and GPUs if it is not linked. Called by start_llama().
void load_backends();

// While one of these lives, a failed assertion of llama.cpp on this thread throws instead of ending the process, so
// that a damaged file or a lack of memory becomes an ordinary error. This does not hold while a graph is computed,
// because the other threads that compute it would wait for this one forever.
struct assertions_throw {
    assertions_throw();
    ~assertions_throw();
    assertions_throw(const assertions_throw &) = delete;
    assertions_throw & operator=(const assertions_throw &) = delete;

private:
    bool before;
};

// --- devices (device.cpp) -------------------------------------------------------------------------------------------

// A function that a patch adds to the CUDA backend; NULL in a build without that backend.
void * cuda_function(const char * name);

// The name of the CPU code's variant that a portable build uses; empty in a build for one kind of processor
// (backends.cpp).
const char * cpu_variant();

// How many CUDA graphs this process launched; -1 in a build without CUDA.
int64_t n_cuda_graph_launches();

// The GPUs with memory of their own. If there is none, llama.cpp uses other GPUs or the CPU.
std::vector<ggml_backend_dev_t> discrete_gpus();

// --- handles --------------------------------------------------------------------------------------------------------

struct qcls_model {
    llama_model_ptr model;
    const llama_vocab * vocab;
    int32_t n_lane_ordered;
    bool has_weights;
    bool walks_trees;  // recurrent layers compute a token tree in one pass

    int32_t n_vocab() const { return llama_vocab_n_tokens(vocab); }
};

// The threads that a context computes with.
struct thread_pool {
    ggml_threadpool * threads = nullptr;
    void (*free)(ggml_threadpool *) = nullptr;

    thread_pool() = default;
    thread_pool(const thread_pool &) = delete;
    thread_pool & operator=(const thread_pool &) = delete;
    ~thread_pool() {
        if (threads) {
            free(threads);
        }
    }
};

struct qcls_context {
    thread_pool pool;  // freed after the context
    llama_context_ptr ctx;
    llama_memory_t memory;
    int32_t n_batch;
    int32_t n_seq_max;
    int32_t n_outputs_max;
    bool is_batch_invariant = false;
    bool has_weights = true;
    bool walks_trees = false;           // as its model
    int32_t n_vocab;
    int32_t n_hidden;                   // floats of a hidden state; 0 if rows are logits
    int32_t n_layer;                    // layers of the file
    int32_t n_left_out = 0;             // how many of the last layers are not loaded
    std::vector<int32_t> depth;         // the depths of the residual streams that follow a hidden state
    int32_t end_depth = 0;              // the layer after which the graph ends; 0: it ends after the final norm
    std::vector<llama_token> label_token;
    int64_t n_rows_left = 0;            // rows of the last decode that qcls_decode_rows is to fetch
    mutable std::mutex facts_mutex;     // other threads may ask for them during a decode
    qcls_context_facts facts = {};
    // arrays that llama_batch needs besides the caller's own, [n_batch] each
    std::vector<int32_t> n_seq_id;
    std::vector<llama_seq_id *> seq_id;
    std::vector<int8_t> output;

    bool is_hidden_only() const { return n_hidden > 0; }
    // floats of a row after its hidden state: residual streams, the label tokens' logits and the log-sum-exp
    size_t n_beside() const {
        return depth.size() * n_hidden + (label_token.empty() ? 0 : label_token.size() + 1);
    }
    size_t row_size() const { return is_hidden_only() ? n_hidden + n_beside() : n_vocab; }
    bool has_seq(int32_t seq) const { return seq >= 0 && seq < n_seq_max; }

    // Update the facts about graphs, and the facts about rows and memory.
    void note_graphs();
    void note_rows();

    // Waits for a decode whose rows were not fetched, as after an interrupt.
    void settle() {
        if (n_rows_left > 0) {
            llama_synchronize(ctx.get());
            n_rows_left = 0;
        }
    }
};

// --- threads (threads.cpp) ------------------------------------------------------------------------------------------

// Starts a context's own threads. Without them llama.cpp starts threads for every decode, and allocates memory even for
// a single thread. A build without ggml's thread pool still does that.
void start_threads(qcls_context & context, int32_t n_threads);

// --- sequences (sequences.cpp) --------------------------------------------------------------------------------------

// Whether the arguments are valid for trim_sequences.
bool can_trim(const qcls_context & context, int64_t n, const int32_t * seq, const int32_t * from);
void trim_sequences(qcls_context & context, int64_t n, const int32_t * seq, const int32_t * from);

// --- arguments ------------------------------------------------------------------------------------------------------

// The object that a pointer of the caller points to. Throws if the pointer is NULL.
template <typename T> T & given(T * pointer, const char * name) {
    if (!pointer) {
        throw bad_argument(std::string(name) + " is NULL");
    }
    return *pointer;
}

// A context that can compute, after a decode whose rows were not fetched is finished. Throws if it has no weights.
inline qcls_context & ready(qcls_context * context) {
    if (!given(context, "context").has_weights) {
        throw bad_argument("the context's model was opened without weights: it can only be described");
    }
    context->settle();
    return *context;
}

// Refuses a negative n, and a missing array of more than 0 elements.
inline void check_array(const void * array, int64_t n, const char * name) {
    if (n < 0 || (n > 0 && !array)) {
        throw bad_argument(std::string(name) + (n < 0 ? " has a negative length: " + std::to_string(n) : " is NULL"));
    }
}

template <typename Body> int32_t guarded(qcls_error * error, qcls_status otherwise, Body && body) noexcept {
    logged_errors.clear();
    try {
        std::forward<Body>(body)();
        return QCLS_OK;
    } catch (const failure & e) {
        write_error(error, e.message.c_str(), e.by_llama);
        return e.status;
    } catch (const std::bad_alloc &) {
        write_error(error, "there is not enough memory", true);
    } catch (const std::exception & e) {
        write_error(error, e.what(), true);
    } catch (...) {
        write_error(error, "unknown C++ exception", true);
    }
    return otherwise;
}
