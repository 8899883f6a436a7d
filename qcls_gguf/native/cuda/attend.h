// Attention on a CUDA device that reads only the cells that a token may see.
#pragma once

#include "mmq_activations.h"

#include <cstdint>

#include <cuda_runtime.h>

// The result as activations of a product with a matrix of head_size * n_head columns; to.y is null where it is not wanted.
struct ggml_cuda_attend_quantized {
    mmq_direct::activations to;
    unsigned int * zeroed;  // n_zeroed of them become 0, too
    int32_t n_zeroed;
};

struct ggml_cuda_attend_call {
    const float * q;  // [token][head][head size], strides in floats
    int64_t q_token_stride;
    int64_t q_head_stride;
    const void * k;  // [cell][kv head][head size] of F16, strides in bytes
    int64_t k_cell_stride;
    int64_t k_head_stride;
    const void * v;
    int64_t v_cell_stride;
    int64_t v_head_stride;
    int32_t * lists;  // packed by qcls::visible_lists; its counters are 0 again behind the launch
    float4 * slots;   // ggml_cuda_attend_slot_size() bytes for each slot that the lists need
    float * out;      // [token][head][head size], contiguous; zeros for a token that sees no cell
    ggml_cuda_attend_quantized quantized;  // wanted, it takes the place of `out`
    float scale;      // of q·k
    int32_t n_items;  // that the grid is for: at least the lists'
    int32_t n_tokens;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t head_size;
};

// Whether there is a kernel for these heads.
bool ggml_cuda_attend_knows(int64_t head_size, int64_t n_head, int64_t n_head_kv);

// Whether the result may be quantised: a head then is whole blocks of 32 values.
bool ggml_cuda_attend_quantizes(int64_t head_size);

size_t ggml_cuda_attend_slot_size(int32_t head_size, int32_t n_head_kv);

// Needs code for compute capability 7.5 or newer.
void ggml_cuda_attend(const ggml_cuda_attend_call & call, cudaStream_t stream);
