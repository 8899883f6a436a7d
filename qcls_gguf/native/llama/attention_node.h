// Attention that reads only the cells that a token may see, as a node of a graph that the CPU backend computes.
#ifndef QCLS_ATTENTION_NODE_H
#define QCLS_ATTENTION_NODE_H

#include "visible.h"

struct ggml_context;
struct ggml_tensor;

namespace qcls {

// q is [head size, n_head, n_tokens] F32; k and v are [head size, n_head_kv, n_cells] F16 or F32, in a cache in host
// memory; the result is [v's head size * n_head, n_tokens] F32. `visible` is read each time the node is computed, so
// one graph serves whatever the cache contains. Throws if this build's CPU backend has no such attention.
ggml_tensor * attention_node(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, float scale,
                             const visible_cells * visible);

}  // namespace qcls

#endif
