#include "batch_invariant.h"

#include "qcls_llama.h"

#include "ggml-backend.h"

namespace qcls {
namespace {

thread_local bool is_wanted = false;

}  // namespace

bool set_batch_invariant(bool on) {
    ggml_backend_reg_t cuda = ggml_backend_reg_by_name("CUDA");
    auto * const set = (void (*)(bool)) (cuda ? ggml_backend_reg_get_proc_address(cuda, "qcls_set_batch_invariant") : nullptr);
    if (set) {
        set(on);
    }
    is_wanted = on && set;
    return set;
}

bool is_batch_invariant() {
    return is_wanted;
}

}  // namespace qcls
