// Matrices in lane order (lane_order.h) in the CUDA backend: which ones are, how they become so, and how other code
// reads them.
//
// A matrix is put into lane order in place after it was loaded, and marked by its `extra`, so that all contexts of a
// model see the same. The direct matrix kernels read it as it is; everything else gets the file's order. Products that
// these kernels do not compute (because of their size, or because the kernels are switched off) use a copy that is made
// for that product. Copies to the host or to another device are put into the file's order first. Other operations are
// reported as not supported, so they are computed on the CPU with such a copy. Writing to the matrix ends its lane
// order.
#pragma once

#include "ggml-cuda/common.cuh"

// Whether a tensor, or the tensor that it is a view of, is in lane order.
bool ggml_cuda_is_lane_ordered(const ggml_tensor * t);

// Whether an operation can be computed here: no operand is in lane order, except the matrix of a product.
bool ggml_cuda_knows_lane_order(const ggml_tensor * op);

// Copies a tensor in lane order to the host, in the file's order, as ggml_backend_tensor_get() does. Returns false, and
// copies nothing, if the tensor is not in lane order.
bool ggml_cuda_get_in_file_order(const ggml_tensor * t, void * data, size_t offset, size_t size);

// Must be called before something writes to a tensor.
void ggml_cuda_end_lane_order(const ggml_tensor * t);

// Computes a product whose matrix is in lane order with llama.cpp's kernels. Returns false for all other nodes.
bool ggml_cuda_mul_mat_in_file_order(ggml_backend_cuda_context & ctx, ggml_tensor * node);

// llama.cpp's own choice of a kernel, in ggml-cuda.cu.
void ggml_cuda_mul_mat_of_stock(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
    ggml_tensor * dst);

// Puts a matrix of weights into lane order. Returns false and changes nothing if the direct matrix kernels cannot read
// the matrix, if lane order is not wanted (lane_order::is_wanted), if contexts that are made now do not have the
// kernels for lane order, or if there is no memory for a temporary copy of the matrix.
extern "C" bool qcls_put_into_lane_order(ggml_tensor * t, const char * wish);
