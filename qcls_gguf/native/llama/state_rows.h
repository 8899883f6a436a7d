// How many sequences of a context have states of recurrent layers at once (patches/0019-state-rows.patch).
#ifndef QCLS_STATE_ROWS_H
#define QCLS_STATE_ROWS_H

#include <cstdint>

namespace qcls {

// Of n sequences of a context that this thread makes now: see set_n_with_states() in qcls_llama.h.
uint32_t n_with_states(uint32_t n);

}  // namespace qcls

#endif
