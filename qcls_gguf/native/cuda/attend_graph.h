// Attention over visible cells in the evaluation of a graph.
#pragma once

#include "ggml-cuda/common.cuh"

// Stands in a node for what is computed here; called, it ends the process.
extern "C" void qcls_attend_node(ggml_tensor * node, int i_thread, int n_threads, void * unused);

// Whether a node of GGML_OP_CUSTOM is one that a device computes.
bool ggml_cuda_attend_supported(int device, const ggml_tensor * node);

void ggml_cuda_attend(ggml_backend_cuda_context & ctx, ggml_tensor * node);
