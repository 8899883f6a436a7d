// Text to tokens, and a token's bytes.
#include "shim.h"

#include "qcls_llama.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <stdexcept>

namespace {

// What the regular expressions of many pre-tokenisers take of the stack: std::regex calls itself for every character of
// a run, with about 310 bytes each in an optimised build.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t stack_of_byte = 4096;
#else
constexpr size_t stack_of_byte = 1024;
#endif
constexpr size_t stack_beside = 256 << 10;
constexpr int64_t n_bytes_max = 4 << 20;

struct stack_range {
    uintptr_t low = 0;
    uintptr_t high = 0;
    bool is_main = false;

    stack_range() {
#ifdef __APPLE__
        high = (uintptr_t) pthread_get_stackaddr_np(pthread_self());
        low = high - pthread_get_stacksize_np(pthread_self());
#else
        pthread_attr_t attr;
        void * start = nullptr;
        size_t size = 0;
        if (pthread_getattr_np(pthread_self(), &attr) == 0) {
            pthread_attr_getstack(&attr, &start, &size);
            pthread_attr_destroy(&attr);
        }
        low = (uintptr_t) start;
        high = low + size;
        is_main = syscall(SYS_gettid) == getpid();
#endif
    }
};

// The bytes that are left of this thread's stack; 0 where it runs on another one.
size_t stack_left() {
    static thread_local const stack_range range;
    char here;
    const auto at = (uintptr_t) &here;
    uintptr_t low = range.low;
    if (rlimit limit; range.is_main && getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < range.high) {
        low = std::max(low, (uintptr_t) (range.high - limit.rlim_cur));  // it may be lowered at any time
    }
    return at > low && at < range.high ? at - low : 0;
}

template <typename Body> struct thread_call {
    Body & body;
    std::exception_ptr thrown;
    std::string log;

    static void * run(void * data) {
        auto & call = *static_cast<thread_call *>(data);
        try {
            const assertions_throw scope;
            call.body();
        } catch (...) {
            call.thrown = std::current_exception();
        }
        call.log = std::move(logged_errors);
        return nullptr;
    }
};

// Runs what tokenises n_bytes: here where this thread's stack is large enough for any text of this length, else on a
// thread with one that is.
template <typename Body> void with_stack_for(int64_t n_bytes, Body && body) {
    const size_t needed = stack_beside + (size_t) n_bytes * stack_of_byte;
    if (stack_left() >= needed) {
        body();
        return;
    }
    thread_call<Body> call = {body, nullptr, {}};
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    int failed = pthread_attr_setstacksize(&attr, needed);
    failed = failed ? failed : pthread_create(&thread, &attr, thread_call<Body>::run, &call);
    pthread_attr_destroy(&attr);
    if (failed) {
        throw bad_argument("a text of " + std::to_string(n_bytes) + " bytes is tokenised on a stack of " +
                           std::to_string(needed >> 10) + " KiB, which the system does not give (" + strerror(failed) +
                           "): shorten the text, or raise the limits on memory and threads");
    }
    pthread_join(thread, nullptr);
    logged_errors += call.log;
    if (call.thrown) {
        std::rethrow_exception(call.thrown);
    }
}

// Throws if a text became a control token: in a vocabulary whose rules merge text into one, any text could spell it.
void refuse_control_tokens(const llama_vocab * vocab, const int32_t * token, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        if (llama_vocab_get_attr(vocab, token[i]) & LLAMA_TOKEN_ATTR_CONTROL) {
            throw bad_argument("this vocabulary joins text to its control token " + std::to_string(token[i]) + ", " +
                               llama_vocab_get_text(vocab, token[i]) + ": plain text cannot hold that");
        }
    }
}

}  // namespace

int32_t qcls_tokenize(const qcls_model * model, const char * text, int64_t n_bytes, int32_t parse,
                      int32_t * token, int64_t capacity, int64_t * n_tokens, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const assertions_throw scope;
        const llama_vocab * vocab = given(model, "model").vocab;
        int64_t & n_needed = given(n_tokens, "n_tokens");
        check_array(text, n_bytes, "text");
        check_array(token, capacity, "token");
        if (parse < QCLS_PARSE_NOTHING || parse > QCLS_PARSE_USER_DEFINED) {
            throw bad_argument("parse is " + std::to_string(parse) + ": it must be 0, 1 or 2");
        }
        if (n_bytes > n_bytes_max) {
            throw bad_argument("the text has " + std::to_string(n_bytes) + " bytes, more than the " +
                               std::to_string(n_bytes_max) + " that can be tokenised at once");
        }
        const auto n_room = (int32_t) std::min<int64_t>(capacity, INT32_MAX);
        int32_t n = 0;
        with_stack_for(n_bytes, [&] {
            try {
                n = parse == QCLS_PARSE_NOTHING
                        ? qcls::tokenize_plain(vocab, text, (int32_t) n_bytes, token, n_room)
                        : llama_tokenize(vocab, text, (int32_t) n_bytes, token, n_room, /*add_special=*/false,
                                         parse == QCLS_PARSE_SPECIAL);
            } catch (const std::runtime_error &) {  // an assertion, such as that of `whitespace` on two spaces
                throw bad_argument("llama.cpp cannot tokenise this text by the rules of the model's file "
                                   "(tokenizer.ggml.model, tokenizer.ggml.pre), as two spaces in a row by those of "
                                   "`whitespace`: leave them out, or choose another file");
            }
        });
        if (n == INT32_MIN) {
            throw bad_argument("the text has more tokens than the " + std::to_string(INT32_MAX) +
                               " that llama.cpp can count");
        }
        n_needed = n < 0 ? -n : n;
        if (n < 0) {
            throw failure{QCLS_TOO_SMALL, "the text has " + std::to_string(n_needed) +
                                          " tokens, and there is room for " + std::to_string(capacity)};
        }
        if (parse != QCLS_PARSE_SPECIAL) {
            refuse_control_tokens(vocab, token, n);
        }
    });
}

int32_t qcls_token_piece(const qcls_model * model, int32_t token, char * text, int64_t capacity, int64_t * n_bytes,
                         int32_t * kind, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const assertions_throw scope;
        const llama_vocab * vocab = given(model, "model").vocab;
        int64_t & n_needed = given(n_bytes, "n_bytes");
        int32_t & token_kind = given(kind, "kind");
        check_array(text, capacity, "text");
        if (token < 0 || token >= model->n_vocab()) {
            throw bad_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                               std::to_string(model->n_vocab()) + " tokens");
        }
        const auto n_room = (int32_t) std::min<int64_t>(capacity, INT32_MAX);
        const int32_t n = llama_token_to_piece(vocab, token, text, n_room, 0, /*special=*/true);
        n_needed = n < 0 ? -n : n;
        const llama_token_attr attr = llama_vocab_get_attr(vocab, token);
        const bool is_blank = std::string(llama_vocab_get_text(vocab, token)).find_first_not_of(" \t\n\v\f\r") ==
                              std::string::npos;  // see patches/0010-plain-text.patch
        token_kind = attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)  ? QCLS_TOKEN_CONTROL
                     : attr & LLAMA_TOKEN_ATTR_USER_DEFINED && !is_blank           ? QCLS_TOKEN_USER_DEFINED
                                                                                   : QCLS_TOKEN_TEXT;
        if (n < 0) {
            throw failure{QCLS_TOO_SMALL, "token " + std::to_string(token) + " has " + std::to_string(n_needed) +
                                          " bytes, and there is room for " + std::to_string(capacity)};
        }
    });
}
