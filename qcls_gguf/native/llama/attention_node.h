// Attention that reads only the cells that a token may see, as a node of a graph that the CPU backend computes.
#ifndef QCLS_ATTENTION_NODE_H
#define QCLS_ATTENTION_NODE_H

#include "visible.h"

struct ggml_context;
struct ggml_tensor;

namespace qcls {

// q is [head size, n_head, n_tokens] F32; k and v are [head size, n_head_kv, n_cells] F16 or F32, in the memory of a
// cache that lies on the host; the result is [v's head size * n_head, n_tokens] F32. `visible` is read whenever the node
// is computed, so one graph serves whatever is in the cache. Throws where this build's CPU backend cannot do it.
ggml_tensor * attention_node(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, float scale,
                             const visible_cells * visible);

}  // namespace qcls

#endif
