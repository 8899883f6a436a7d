// Attention that reads only the cells that a token may see, as a node of a graph that a GPU's backend computes.
#ifndef QCLS_DEVICE_ATTENTION_H
#define QCLS_DEVICE_ATTENTION_H

#include "visible_lists.h"

#include "ggml-backend.h"

struct ggml_context;
struct ggml_tensor;

namespace qcls {

// Why a device has no such attention for heads of these numbers and size; NULL if it has.
const char * why_no_device_attention(ggml_backend_dev_t device, int32_t n_head, int32_t n_head_kv, int32_t head_size);

// An input of the graph for the packed lists: as many int32 as `room` has.
ggml_tensor * lists_input(ggml_context * context, const lists_room & room);

lists_room room_of(const ggml_tensor * lists);

// q is [head size, n_head, n_tokens] F32; k and v are [head size, n_head_kv, n_cells] F16, in a cache on the device;
// the result is [head size * n_head, n_tokens] F32. `lists` is read each time the node is computed, so one graph serves
// whatever the cache contains. Throws if the device's backend has no such attention for these heads.
ggml_tensor * device_attention_node(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                    ggml_tensor * lists, float scale);

}  // namespace qcls

#endif
