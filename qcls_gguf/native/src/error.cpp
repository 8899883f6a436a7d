// Messages of failures.
#include "shim.h"

#include <cstdio>

failure bad_argument(std::string message) {
    return {QCLS_BAD_ARGUMENT, std::move(message)};
}

failure llama_failure(qcls_status status, std::string message) {
    return {status, std::move(message), /*by_llama=*/true};
}

void write_error(qcls_error * error, const char * message, bool with_log) noexcept {
    if (!error) {
        return;
    }
    while (!logged_errors.empty() && logged_errors.back() == '\n') {
        logged_errors.pop_back();
    }
    const bool logged = with_log && !logged_errors.empty();
    snprintf(error->message, sizeof(error->message), "%s%s%s", message, logged ? ": " : "",
             logged ? logged_errors.c_str() : "");
}
