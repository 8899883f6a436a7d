#include "state_rows.h"

#include "qcls_llama.h"

#include <algorithm>

namespace qcls {
namespace {

thread_local int32_t n_wanted = 0;

}  // namespace

void set_n_with_states(int32_t n) {
    n_wanted = n;
}

uint32_t n_with_states(uint32_t n) {
    return n_wanted > 0 ? std::min(n, (uint32_t) n_wanted) : n;
}

}  // namespace qcls
