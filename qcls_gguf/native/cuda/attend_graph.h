// Attention over visible cells in the evaluation of a graph.
#pragma once

#include "attend.h"

#include "ggml-cuda/common.cuh"

// Stands in a node for what is computed here; called, it ends the process.
extern "C" void qcls_attend_node(ggml_tensor * node, int i_thread, int n_threads, void * unused);

// Whether contexts that this thread makes from now on compute a token alike whatever else is decoded with it.
extern "C" void qcls_set_batch_invariant(bool on);

// Whether a node of GGML_OP_CUSTOM is one that a device computes.
bool ggml_cuda_attend_supported(int device, const ggml_tensor * node);

// quantized, where wanted, is where the result goes instead of to the node's memory.
void ggml_cuda_attend(ggml_backend_cuda_context & ctx, const ggml_tensor * node,
                      const ggml_cuda_attend_quantized & quantized = {});
