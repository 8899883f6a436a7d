// The cells of sequences: shared, trimmed, saved, replaced.
#include "shim.h"

bool can_trim(const qcls_context & context, int64_t n, const int32_t * seq, const int32_t * from) {
    for (int64_t i = 0; i < n; ++i) {
        if (!context.has_seq(seq[i]) || from[i] < 0) {
            return false;
        }
    }
    return true;
}

void trim_sequences(qcls_context & context, int64_t n, const int32_t * seq, const int32_t * from) {
    for (int64_t i = 0; i < n; ++i) {
        if (!llama_memory_seq_rm(context.memory, seq[i], from[i], -1)) {
            throw failure{QCLS_DECODE_FAILED, "sequence " + std::to_string(seq[i]) + " cannot be trimmed to " +
                                              std::to_string(from[i]) + " positions: the model keeps a state of it, "
                                              "which is the one after its last token: trim it to 0"};
        }
    }
}

int32_t qcls_seq_share(qcls_context * context, int32_t src, int32_t dst, int32_t from, int32_t to, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        ready(context);
        if (!context->has_seq(src) || !context->has_seq(dst) || from < 0) {
            throw bad_argument("seq_share: a sequence id or position is out of range: " + std::to_string(src) + " to " +
                               std::to_string(dst) + " from position " + std::to_string(from) + ", of " +
                               std::to_string(context->n_seq_max) + " sequences");
        }
        llama_memory_seq_cp(context->memory, src, dst, from, to);
    });
}

int32_t qcls_seq_trim(qcls_context * context, int64_t n, const int32_t * seq, const int32_t * from,
                      qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        ready(context);
        check_array(seq, n, "seq");
        check_array(from, n, "from");
        if (!can_trim(*context, n, seq, from)) {
            throw bad_argument("seq_trim: a sequence id or position is out of range of " +
                               std::to_string(context->n_seq_max) + " sequences");
        }
        trim_sequences(*context, n, seq, from);
    });
}

int32_t qcls_state_save(qcls_context * context, uint8_t * state, int64_t * n_bytes, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        const assertions_throw scope;
        ready(context);
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
        ready(context);
        check_array(state, n_bytes, "state");
        if (n_bytes == 0) {
            llama_memory_clear(context->memory, /*data=*/true);
        } else if ((int64_t) llama_state_set_data(context->ctx.get(), state, n_bytes) != n_bytes) {
            throw llama_failure(QCLS_DECODE_FAILED, "the saved cells do not fit this context");
        }
    });
    if (status != QCLS_DECODE_FAILED) {
        return status;
    }
    // llama.cpp may have loaded a part, so the cache is emptied; the first error's message stays unless that fails, too
    if (n_bytes == 0 || qcls_state_load(context, nullptr, 0, nullptr) != QCLS_OK) {
        write_error(error, "the saved cells could not be loaded nor the cache emptied: close the context", true);
    }
    return status;
}
