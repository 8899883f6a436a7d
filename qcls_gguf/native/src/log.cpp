// llama.cpp's log, its assertions, and its start.
#include "shim.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "qcls_llama.h"

#include <pthread.h>

#include <cstdio>
#include <mutex>
#include <new>
#include <stdexcept>

extern "C" {
// from ggml/src/ggml-threading.h: a lock that ggml holds while it makes its tables and contexts
void ggml_critical_section_start(void);
void ggml_critical_section_end(void);
}

thread_local std::string logged_errors;

namespace {

struct {
    std::recursive_mutex mutex;  // a log function may set another one
    qcls_log_fn log = nullptr;
    void * user = nullptr;
} sink;

thread_local bool assertion_throws = false;

// The text with its control characters as escapes, except the line break at its end: messages contain texts of model
// files, which must not move a terminal's cursor or look like separate lines.
std::string escaped(const char * text) {
    std::string safe;
    for (const char * at = text; *at; ++at) {
        const auto byte = (unsigned char) *at;
        if ((byte >= ' ' && byte != 127) || byte == '\t' || (byte == '\n' && !at[1])) {
            safe += *at;
            continue;
        }
        char code[5];
        snprintf(code, sizeof(code), "\\x%02x", byte);
        safe += code;
    }
    return safe;
}

// Called by any thread of llama.cpp, also inside destructors: it must not throw.
void on_log(ggml_log_level level, const char * text, void *) {
    const bool is_error = level == GGML_LOG_LEVEL_ERROR;
    const std::lock_guard<std::recursive_mutex> lock(sink.mutex);
    if (!is_error && !sink.log) {
        return;
    }
    try {
        const std::string safe = escaped(text);
        if (is_error) {
            logged_errors += safe;
        }
        if (sink.log) {
            sink.log((int32_t) level, safe.c_str(), sink.user);
        }
    } catch (const std::bad_alloc &) {  // the call that fails next reports it, with less detail
    }
}

void on_abort(const char * message) {
    if (assertion_throws && !qcls::is_computing()) {
        throw std::runtime_error(escaped(message));
    }
    fprintf(stderr, "%s\n", escaped(message).c_str());
}

}  // namespace

assertions_throw::assertions_throw() : before(assertion_throws) {
    assertion_throws = true;
}

assertions_throw::~assertions_throw() {
    assertion_throws = before;
}

namespace {

thread_local bool is_starting = false;
bool has_gpu = false;
bool is_cut_off = false;  // a forked child cannot use the GPUs of its parent

// A forked child has only the thread that forked, and would wait forever for locks that other threads held during the
// fork. ggml's lock is held only briefly; the log's may be held by a thread that waits for the forking one.
void in_child() {
    ggml_critical_section_end();
    new (&sink.mutex) std::recursive_mutex;
    is_cut_off = has_gpu;
}

struct starting {
    starting() { is_starting = true; }
    ~starting() { is_starting = false; }
};

bool is_gpu(ggml_backend_dev_t device) {
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

}  // namespace

void start_llama() {
    if (is_starting) {  // a log function called this, which would wait for itself
        throw failure{QCLS_LOAD_FAILED, "a log function cannot load models or list devices while llama.cpp starts"};
    }
    static const bool started = [] {
        const starting scope;
        pthread_atfork(ggml_critical_section_start, ggml_critical_section_end, in_child);
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_abort);
        load_backends();
        llama_backend_init();
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            has_gpu = has_gpu || is_gpu(ggml_backend_dev_get(i));
        }
        return true;
    }();
    (void) started;
    // llama.cpp queries every device, even if it then computes on the CPU only, and ends the process on a driver's
    // error
    if (is_cut_off) {
        throw failure{QCLS_LOAD_FAILED, "the process that this one was forked from has a GPU open, and a GPU's driver "
                                        "survives no fork: start processes by spawn or forkserver"};
    }
}

int32_t qcls_set_log(qcls_log_fn log, void * user, qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        {
            const std::lock_guard<std::recursive_mutex> lock(sink.mutex);
            sink.log = log;
            sink.user = user;
        }
        if (!is_starting) {  // a log function may set another one from the first line on, such as one about a GPU
            start_llama();
        }
    });
}
