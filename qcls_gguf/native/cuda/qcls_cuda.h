// The functions that patches call in the CUDA backend.
#pragma once

#include "attend_graph.h"
#include "lane_order_tensor.h"
#include "mmq_direct.h"
#include "tree_walk.h"

// Nodes of GGML_OP_CUSTOM: whether a device computes one, by the function that it names, and computing it.
bool qcls_supports_custom(int device, const ggml_tensor * node);
void qcls_compute_custom(ggml_backend_cuda_context & ctx, ggml_tensor * node);

// Gives other libraries a function of the backend by its name; null for any other name.
void * qcls_cuda_function(const char * name);

// Counts one more CUDA graph that this process launched.
void qcls_count_graph_launch();
