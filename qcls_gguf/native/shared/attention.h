// Attention on a CPU that reads only the cells that a token may see.
#ifndef QCLS_ATTENTION_H
#define QCLS_ATTENTION_H

#include "visible.h"

#include <cstddef>

namespace qcls {

struct attention_call {
    // [token][head][head_size_k]; strides count floats, one head's values are contiguous
    const float * q;
    ptrdiff_t q_token_stride;
    ptrdiff_t q_head_stride;
    // [cell][kv head][head_size_k] and [cell][kv head][head_size_v]; strides count bytes
    const void * k;
    ptrdiff_t k_cell_stride;
    ptrdiff_t k_head_stride;
    const void * v;
    ptrdiff_t v_cell_stride;
    ptrdiff_t v_head_stride;
    bool k_is_f16;  // else it is F32
    bool v_is_f16;
    int32_t n_head;
    int32_t n_head_kv;  // of which n_head is a multiple; query head h reads kv head h / (n_head / n_head_kv)
    int32_t head_size_k;
    int32_t head_size_v;
    float scale;  // multiplies q·k
    const visible_cells * visible;
    float * out;  // [token][head][head_size_v], contiguous; zeros for a token that sees no cell
};

// Computes the share of thread i_thread of n_threads. `out` is complete when all threads have called it, in any order.
//
// A token's result depends only on its query and on the cells that it sees, in the order of their list: not on the
// other tokens, on where the cells lie, or on the number of threads. In one build it is the same to the bit.
using attend_fn = void (*)(const attention_call * call, int32_t i_thread, int32_t n_threads);

}  // namespace qcls

// Callers are in another library and find it by this name: see cpu_functions.h.
extern "C" void qcls_attend(const qcls::attention_call * call, int32_t i_thread, int32_t n_threads);

#endif
