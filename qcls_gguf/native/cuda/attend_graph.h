// Attention over visible cells as a node that the CUDA backend computes.
#pragma once

#include "ggml-cuda/common.cuh"

// The function by which the backend recognises the node. It is never called; calling it ends the process.
extern "C" void qcls_attend_node(ggml_tensor * node, int i_thread, int n_threads, void * unused);

// Whether a device can compute a node of GGML_OP_CUSTOM.
bool ggml_cuda_attend_supported(int device, const ggml_tensor * node);

void ggml_cuda_attend(ggml_backend_cuda_context & ctx, ggml_tensor * node);
