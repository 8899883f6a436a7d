// The cells of all sequences as bytes.
#include "shim.h"

int32_t qcls_state_save(qcls_context * context, uint8_t * state, int64_t * n_bytes, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        const assertions_throw scope;
        given(context, "context").settle();
        const int64_t capacity = given(n_bytes, "n_bytes");
        check_array(state, capacity, "state");
        *n_bytes = (int64_t) llama_state_get_size(context->ctx.get());
        if (*n_bytes > capacity) {
            throw failure{QCLS_TOO_SMALL, "the cells take " + std::to_string(*n_bytes) +
                                          " bytes, and there is room for " + std::to_string(capacity)};
        }
        if ((int64_t) llama_state_get_data(context->ctx.get(), state, *n_bytes) != *n_bytes) {
            throw llama_failure(QCLS_DECODE_FAILED, "the cells could not be saved");
        }
    });
}

int32_t qcls_state_load(qcls_context * context, const uint8_t * state, int64_t n_bytes, qcls_error * error) {
    const int32_t status = guarded(error, QCLS_DECODE_FAILED, [&] {
        const assertions_throw scope;
        given(context, "context").settle();
        check_array(state, n_bytes, "state");
        // 0 is also what it returns where it fails
        if (n_bytes == 0 || (int64_t) llama_state_set_data(context->ctx.get(), state, n_bytes) != n_bytes) {
            throw llama_failure(QCLS_DECODE_FAILED, "the saved cells do not fit this context");
        }
    });
    if (status != QCLS_DECODE_FAILED) {
        return status;
    }
    // llama.cpp may have read some of it; the message of the failure stays, unless this fails, too
    qcls_error second = {sizeof(qcls_error), {}};
    if (qcls_context_clear(context, &second) != QCLS_OK) {
        write_error(error, "the saved cells could not be loaded nor the cache emptied: close the context", true);
    }
    return status;
}
