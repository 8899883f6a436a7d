// Attention on a CUDA device that reads only the cells that a token may see.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

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
    int32_t * lists;  // packed by qcls::visible_lists; its counters are 0 again after the launch
    float4 * slots;   // ggml_cuda_attend_slot_size() bytes for each slot that the lists need
    float * out;      // [token][head][head size], contiguous; zeros for a token that sees no cell
    float scale;      // multiplies q·k
    int32_t n_items;  // the items that the grid has room for: at least as many as the lists have
    int32_t n_head;
    int32_t n_head_kv;
    int32_t head_size;
};

// Whether there is a kernel for these heads.
bool ggml_cuda_attend_knows(int64_t head_size, int64_t n_head, int64_t n_head_kv);

size_t ggml_cuda_attend_slot_size(int32_t head_size, int32_t n_head_kv);

// Needs code for compute capability 7.5 or newer.
void ggml_cuda_attend(const ggml_cuda_attend_call & call, cudaStream_t stream);
