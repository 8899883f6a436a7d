// llama.cpp's log, its assertions, and its start.
#include "shim.h"

#include "ggml.h"

#include <cstdio>
#include <mutex>
#include <stdexcept>

thread_local std::string logged_errors;

namespace {

struct {
    std::recursive_mutex mutex;  // a log function may set another one
    qcls_log_fn log = nullptr;
    void * user = nullptr;
} sink;

thread_local bool assertion_throws = false;

void on_log(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        logged_errors += text;
    }
    const std::lock_guard<std::recursive_mutex> lock(sink.mutex);
    if (sink.log) {
        sink.log((int32_t) level, text, sink.user);
    }
}

void on_abort(const char * message) {
    if (assertion_throws) {
        throw std::runtime_error(message);
    }
    fprintf(stderr, "%s\n", message);
}

}  // namespace

assertions_throw::assertions_throw() {
    assertion_throws = true;
}

assertions_throw::~assertions_throw() {
    assertion_throws = false;
}

void start_llama() {
    static const bool started = [] {
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_abort);
        llama_backend_init();
        return true;
    }();
    (void) started;
}

int32_t qcls_set_log(qcls_log_fn log, void * user, qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        {
            const std::lock_guard<std::recursive_mutex> lock(sink.mutex);
            sink.log = log;
            sink.user = user;
        }
        start_llama();
    });
}
