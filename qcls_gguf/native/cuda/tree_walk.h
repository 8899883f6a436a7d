// Recurrent layers over a token tree as nodes that the CUDA backend computes: the operations of ../cpu/tree_walk.cpp, which
// ../llama/tree_graph.cpp puts into a graph.
#pragma once

#include "ggml-cuda/common.cuh"

// The functions by which the backend recognises the nodes. They are never called; calling one ends the process.
extern "C" {
void qcls_tree_convolution(ggml_tensor * node, int i_thread, int n_threads, void * unused);
void qcls_tree_delta_net(ggml_tensor * node, int i_thread, int n_threads, void * unused);
void qcls_tree_scan(ggml_tensor * node, int i_thread, int n_threads, void * unused);
}

// Whether a node of GGML_OP_CUSTOM is one of these, in a layout that the kernels read.
bool qcls_walk_supported(const ggml_tensor * node);

void qcls_walk(ggml_backend_cuda_context & ctx, ggml_tensor * node);
