// Attention that reads only the cells that a token may see, as a node of a graph that the CUDA backend computes: what
// the two libraries that have a part in it must agree on.
#pragma once

#include <cstddef>
#include <cstdint>

// The node is a GGML_OP_CUSTOM with sources q, k, v and the packed lists, whose function is the one that the backend
// gives out by this name. Its operands are of the shapes that device_attention_node() describes.
inline constexpr const char * qcls_attend_node_function = "qcls_attend_node";

// after what ggml_custom_4d() keeps among the node's parameters
inline constexpr size_t qcls_attend_node_offset = sizeof(void *) * 4;
struct qcls_attend_node_params {
    float scale;
    int32_t n_items;
    int32_t n_slots;
};
