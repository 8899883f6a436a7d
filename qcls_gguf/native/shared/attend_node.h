// Attention that reads only the cells that a token may see, as a node of a graph that the CUDA backend computes: the
// interface between libllama, which makes the node, and the backend.
#pragma once

#include <cstddef>
#include <cstdint>

// The node is a GGML_OP_CUSTOM with the sources q, k, v and the packed lists, in the shapes that
// device_attention_node() describes. Its function is the one that the backend exports under this name.
inline constexpr const char * qcls_attend_node_function = "qcls_attend_node";

// after the parameters that ggml_custom_4d() stores in the node
inline constexpr size_t qcls_attend_node_offset = sizeof(void *) * 4;
struct qcls_attend_node_params {
    float scale;
    int32_t n_items;
    int32_t n_slots;
};
