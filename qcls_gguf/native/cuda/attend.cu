#include "attend.cuh"

template <int D> static void launch(const ggml_cuda_attend_call & call, cudaStream_t stream) {
    using namespace qcls_attend;
    const int n_grouped = call.n_head / call.n_head_kv;
    const dim3 grid(call.n_items, call.n_head_kv);
    const int inverse = 65536 / n_grouped + 1;
    if constexpr (D % 32 == 0) {
        if (call.quantized.to.y) {
            attend<D, true><<<grid, n_slices * slice_threads, 0, stream>>>(call, n_grouped, inverse);
            return;
        }
    }
    attend<D, false><<<grid, n_slices * slice_threads, 0, stream>>>(call, n_grouped, inverse);
}

template <int D> static size_t slot_bytes(const int32_t n_head_kv) {
    using namespace qcls_attend;
    return (size_t) n_head_kv * tile_warps * slot_size<D>() * sizeof(float4);
}

bool ggml_cuda_attend_knows(const int64_t head_size, const int64_t n_head, const int64_t n_head_kv) {
    const bool has_kernel =
        head_size == 32 || head_size == 64 || head_size == 80 || head_size == 96 || head_size == 128;
    return has_kernel && n_head_kv > 0 && n_head % n_head_kv == 0 && n_head / n_head_kv <= qcls::max_tile_rows;
}

bool ggml_cuda_attend_quantizes(const int64_t head_size) {
    return head_size % 32 == 0;
}

size_t ggml_cuda_attend_slot_size(const int32_t head_size, const int32_t n_head_kv) {
    switch (head_size) {
        case 32:  return slot_bytes<32>(n_head_kv);
        case 64:  return slot_bytes<64>(n_head_kv);
        case 80:  return slot_bytes<80>(n_head_kv);
        case 96:  return slot_bytes<96>(n_head_kv);
        default:  return slot_bytes<128>(n_head_kv);
    }
}

void ggml_cuda_attend(const ggml_cuda_attend_call & call, cudaStream_t stream) {
    switch (call.head_size) {
        case 32:  return launch<32>(call, stream);
        case 64:  return launch<64>(call, stream);
        case 80:  return launch<80>(call, stream);
        case 96:  return launch<96>(call, stream);
        default:  return launch<128>(call, stream);
    }
}
