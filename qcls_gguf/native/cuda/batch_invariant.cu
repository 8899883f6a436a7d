// Contexts in which a token's result does not depend on what else a decode holds: the part of the CUDA backend.
#include "attend_graph.h"

static thread_local bool is_wanted = false;

extern "C" void qcls_set_batch_invariant(const bool on) {
    is_wanted = on;
}

bool ggml_cuda_batch_invariant() {
    return is_wanted;
}
