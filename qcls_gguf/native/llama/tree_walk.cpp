// Which tokens of a batch grow from which, and the order in which recurrent layers walk them.
#include "tree_walk.h"

#include "qcls_llama.h"
#include "tree_rows.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace qcls {

llama_ubatch tree_walk::take(llama_batch_allocr & batch, uint32_t n_most) {
    llama_ubatch all = batch.split_simple(n_most);
    if (batch.get_n_used() < batch.get_n_tokens()) {
        throw std::runtime_error(format("%u tokens do not fit one pass of %u", batch.get_n_tokens(), n_most));
    }
    if (all.n_tokens > 0) {
        all.b_equal_seqs = true;
        all.n_seq_tokens = all.n_tokens;
        all.n_seqs = 1;
    }
    return all;
}

void tree_walk::lay_out(const llama_ubatch & batch, const llama_memory_recurrent & states) {
    parent.resize(batch.n_tokens);
    last_token.assign(states.cells.size(), -1);
    for (int32_t i = 0; i < (int32_t) batch.n_tokens; ++i) {
        // a token grows from the last one of its sequences that came before it, or from what the cache has of them
        const llama_seq_id seq = batch.seq_id[i][0];
        const int32_t cell = states.cells[seq].tail;
        if (last_token[seq] >= 0) {
            parent[i] = last_token[seq];
        } else if (cell < 0) {
            parent[i] = tree_no_state;
        } else {
            const int32_t row = states.cells[cell].src;
            parent[i] = ~(row >= 0 ? row : cell);
        }
        for (int32_t s = 0; s < batch.n_seq_id[i]; ++s) {
            last_token[batch.seq_id[i][s]] = i;
        }
    }
    lay_out(parent);
}

namespace {

thread_local int32_t n_wanted_with_states = 0;

llama_memory_recurrent * states_of(llama_context * ctx) {
    llama_memory_i * memory = llama_get_memory(ctx);
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return hybrid->get_mem_recr();
    }
    auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory);
    return hybrid ? hybrid->get_mem_recr() : nullptr;
}

}  // namespace

void set_n_with_states(int32_t n) {
    n_wanted_with_states = n;
}

uint32_t n_with_states(uint32_t n) {
    return n_wanted_with_states > 0 ? std::min(n, (uint32_t) n_wanted_with_states) : n;
}

bool walks_trees(const llama_model * model) {
    const char * wanted = getenv("QCLS_TREE_WALK");  // "0" selects llama.cpp's passes, to compare
    const auto can_walk = [](const llama_device & device) {
        return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device.dev), "qcls_tree_delta_net");
    };
    return llama_model_is_hybrid(model) && !(wanted && strcmp(wanted, "0") == 0) &&
           std::all_of(model->devices.begin(), model->devices.end(), can_walk);
}

void walk_trees(llama_context * ctx, bool on) {
    if (llama_memory_recurrent * states = states_of(ctx)) {
        states->walk.is_on = on;
    }
}

}  // namespace qcls
