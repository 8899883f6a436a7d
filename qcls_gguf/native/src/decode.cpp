// One llama_decode of a plan, and its rows. This is on the path of every request, so nothing here allocates memory.
#include "shim.h"

#include "ggml.h"
#include "qcls_llama.h"

namespace {

failure bad_plan(const std::string & reason) {
    return bad_argument("decode: " + reason);
}

// Refuses a plan that llama.cpp cannot decode, or that would make it read past the caller's arrays.
void check_shape(const qcls_context & context, const qcls_plan & plan) {
    if (plan.n_tokens < 1 || plan.n_tokens > context.n_batch) {
        throw bad_plan(std::to_string(plan.n_tokens) + " tokens do not fit a batch of " +
                       std::to_string(context.n_batch));
    }
    check_array(plan.token, plan.n_tokens, "decode: token");
    check_array(plan.pos, plan.n_tokens, "decode: pos");
    check_array(plan.seq_offset, plan.n_tokens + 1, "decode: seq_offset");
    check_array(plan.seq_id, plan.n_seq_ids, "decode: seq_id");
    check_array(plan.output, plan.n_tokens, "decode: output");
    bool ascending = plan.seq_offset[0] >= 0;
    for (int64_t i = 0; i < plan.n_tokens; ++i) {
        ascending = ascending && plan.seq_offset[i + 1] > plan.seq_offset[i];
    }
    if (!ascending) {
        throw bad_plan("seq_offset must ascend, so that every token has a sequence");
    }
    if (plan.seq_offset[plan.n_tokens] > plan.n_seq_ids) {
        throw bad_plan("seq_offset ends at " + std::to_string(plan.seq_offset[plan.n_tokens]) + ", and there are " +
                       std::to_string(plan.n_seq_ids) + " sequence ids");
    }
    check_array(plan.trim_seq, plan.n_trim, "decode: trim_seq");
    check_array(plan.trim_from, plan.n_trim, "decode: trim_from");
    if (!can_trim(context, plan.n_trim, plan.trim_seq, plan.trim_from)) {
        throw bad_plan("a sequence to trim is out of range");
    }
}

// Makes a llama_batch of the plan; it points into the arrays of the plan and of the context.
llama_batch batch_of(qcls_context & context, const qcls_plan & plan) {
    int64_t n_flagged = 0;
    for (int64_t i = 0; i < plan.n_tokens; ++i) {
        const int32_t begin = plan.seq_offset[i];
        const int32_t end = plan.seq_offset[i + 1];
        bool good = plan.token[i] >= 0 && plan.token[i] < context.n_vocab && plan.pos[i] >= 0;
        for (int32_t j = begin; good && j < end; ++j) {
            good = context.has_seq(plan.seq_id[j]);
        }
        if (!good) {
            throw bad_plan("token " + std::to_string(i) + " of the plan has an id, position or sequence out of range");
        }
        context.n_seq_id[i] = end - begin;
        context.seq_id[i] = const_cast<llama_seq_id *>(plan.seq_id + begin);
        context.output[i] = plan.output[i] != 0;
        n_flagged += plan.output[i] != 0;
    }
    if (n_flagged != plan.n_rows || plan.n_rows > context.n_outputs_max) {
        throw bad_plan(std::to_string(n_flagged) + " flagged tokens, room for " +
                       std::to_string(std::min<int64_t>(plan.n_rows, context.n_outputs_max)) + " rows");
    }
    llama_batch batch = {};
    batch.n_tokens = (int32_t) plan.n_tokens;
    batch.token = const_cast<llama_token *>(plan.token);
    batch.pos = const_cast<llama_pos *>(plan.pos);
    batch.n_seq_id = context.n_seq_id.data();
    batch.seq_id = context.seq_id.data();
    batch.logits = context.output.data();
    return batch;
}

// Waits for the last decode and copies its rows.
void take_rows(qcls_context & context, float * rows, int64_t n_rows) {
    llama_context * ctx = context.ctx.get();
    if (n_rows == 0) {
        llama_synchronize(ctx);
        return;
    }
    const float * source = context.is_hidden_only() ? llama_get_embeddings(ctx) : llama_get_logits(ctx);
    const size_t n_beside = context.n_beside();
    const float * beside = n_beside ? qcls::beside_of(ctx) : nullptr;
    if (!source || (n_beside && !beside)) {
        throw llama_failure(QCLS_DECODE_FAILED, "llama.cpp returned no rows");
    }
    const size_t n_source = context.is_hidden_only() ? context.n_hidden : context.n_vocab;
    for (int64_t i = 0; i < n_rows; ++i) {
        float * row = rows + i * (n_source + n_beside);
        memcpy(row, source + i * n_source, sizeof(float) * n_source);
        if (n_beside) {
            memcpy(row + n_source, beside + i * n_beside, sizeof(float) * n_beside);
        }
    }
}

// Decodes, and copies the rows or leaves them for qcls_decode_rows. Where sequences are trimmed after the decode, no states
// of theirs are needed.
void compute(qcls_context & context, const llama_batch & batch, const qcls_plan & plan) {
    const assertions_throw scope;
    if (context.walks_trees) {
        qcls::walk_trees(context.ctx.get(), plan.n_trim > 0);
    }
    const int32_t result = llama_decode(context.ctx.get(), batch);
    context.note_graphs();
    if (result != 0) {
        throw llama_failure(QCLS_DECODE_FAILED,
                            result == 1 ? "llama_decode found no free cells for the plan" : "llama_decode failed");
    }
    if (plan.rows || plan.n_rows == 0) {
        take_rows(context, plan.rows, plan.n_rows);
    } else {
        context.n_rows_left = plan.n_rows;
    }
}

}  // namespace

int32_t qcls_decode(qcls_context * context, qcls_plan * plan, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        const int64_t start = ggml_time_us();
        ready(context);
        const qcls_plan known = given(plan, "plan");
        check_shape(*context, known);
        const llama_batch batch = batch_of(*context, known);
        const int64_t filled = ggml_time_us();
        try {
            compute(*context, batch, known);
        } catch (...) {
            trim_sequences(*context, known.n_trim, known.trim_seq, known.trim_from);
            throw;
        }
        const int64_t decoded = ggml_time_us();
        trim_sequences(*context, known.n_trim, known.trim_seq, known.trim_from);
        plan->batch_us = filled - start;
        plan->trim_us = ggml_time_us() - decoded;
    });
}

int32_t qcls_decode_rows(qcls_context * context, float * rows, int64_t n_rows, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        if (n_rows != given(context, "context").n_rows_left) {
            throw bad_argument("decode_rows: " + std::to_string(context->n_rows_left) +
                               " rows are left of the last decode, room for " + std::to_string(n_rows));
        }
        check_array(rows, n_rows, "decode_rows: rows");
        context->n_rows_left = 0;
        take_rows(*context, rows, n_rows);
    });
}
