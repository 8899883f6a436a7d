// Matrices in lane order (lane_order.h) in the CUDA backend: which are, how they become so, and what reads them otherwise.
//
// A matrix is put into lane order after its loading, in place, and marked by its `extra`, so all contexts on a model see
// it alike. The direct matrix kernels read it as it is. Whatever else wants it gets the file's order: products that they
// do not take (of other sizes, or where they are switched off) by a copy for that product, copies to the host or another
// device by a copy that is put back first, and every other operation is not supported here, so that it is computed on the
// CPU with such a copy. Who writes to it ends its lane order.
#pragma once

#include "ggml-cuda/common.cuh"

// Whether a tensor, or what it is a view of, is in lane order.
bool ggml_cuda_is_lane_ordered(const ggml_tensor * t);

// Whether no operand is in lane order but the matrix of a product.
bool ggml_cuda_knows_lane_order(const ggml_tensor * op);

// To the host, as ggml_backend_tensor_get() has it. False for what is not in lane order.
bool ggml_cuda_get_in_file_order(const ggml_tensor * t, void * data, size_t offset, size_t size);

// Before something writes to a tensor.
void ggml_cuda_end_lane_order(const ggml_tensor * t);

// A product whose matrix is in lane order, by llama.cpp's kernels. False for all other nodes.
bool ggml_cuda_mul_mat_in_file_order(ggml_backend_cuda_context & ctx, ggml_tensor * node);

// llama.cpp's choice of a kernel: ggml-cuda.cu.
void ggml_cuda_mul_mat_of_stock(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
    ggml_tensor * dst);

// Puts a matrix of weights into lane order. False, with nothing changed, for what the direct matrix kernels do not take,
// where it is not wanted (lane_order::is_wanted), where contexts that are made now do not have them for lane order, and where
// there is no memory for a copy of the matrix meanwhile.
extern "C" bool qcls_put_into_lane_order(ggml_tensor * t, const char * wish);
