#include "attend_graph.h"

#include "attend.h"
#include "attend_node.h"

#include <cstring>

void qcls_attend_node(ggml_tensor *, int, int, void *) {
    GGML_ABORT("attention over visible cells of a GPU's cache was left to the CPU");
}

static qcls_attend_node_params params_of(const ggml_tensor * node) {
    qcls_attend_node_params params;
    memcpy(&params, (const char *) node->op_params + qcls_attend_node_offset, sizeof(params));
    return params;
}

// Whether heads are contiguous and aligned, so that the kernel can read 16 bytes at once.
static bool is_aligned(const ggml_tensor * t, const ggml_type type) {
    return t->type == type && t->nb[0] == ggml_type_size(type) && t->nb[1] % 16 == 0 && t->nb[2] % 16 == 0 &&
        t->ne[3] == 1;
}

bool ggml_cuda_attend_supported(const int device, const ggml_tensor * node) {
    ggml_custom_op_t function;
    memcpy(&function, node->op_params, sizeof(function));
    if (function != qcls_attend_node || !turing_mma_available(ggml_cuda_info().devices[device].cc)) {
        return false;
    }
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * v = node->src[2];
    return is_aligned(q, GGML_TYPE_F32) && is_aligned(k, GGML_TYPE_F16) && is_aligned(v, GGML_TYPE_F16) &&
        ggml_cuda_attend_knows(q->ne[0], q->ne[1], k->ne[1]) && k->ne[0] == q->ne[0] && v->ne[0] == q->ne[0] &&
        v->ne[1] == k->ne[1];
}

void ggml_cuda_attend(ggml_backend_cuda_context & ctx, ggml_tensor * node) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * v = node->src[2];
    const qcls_attend_node_params params = params_of(node);
    GGML_ASSERT((uintptr_t) q->data % 16 == 0);
    const auto head_size = (int32_t) q->ne[0];
    const auto n_head_kv = (int32_t) k->ne[1];
    ggml_cuda_pool_alloc<char> slots(ctx.pool());
    if (params.n_slots > 0) {  // asked for 0 bytes, a pool that was never used fails (models in F32 do not use it)
        slots.alloc(params.n_slots * ggml_cuda_attend_slot_size(head_size, n_head_kv));
    }

    ggml_cuda_attend_call call;
    call.q = (const float *) q->data;
    call.q_head_stride = (int64_t) (q->nb[1] / sizeof(float));
    call.q_token_stride = (int64_t) (q->nb[2] / sizeof(float));
    call.k = k->data;
    call.k_head_stride = (int64_t) k->nb[1];
    call.k_cell_stride = (int64_t) k->nb[2];
    call.v = v->data;
    call.v_head_stride = (int64_t) v->nb[1];
    call.v_cell_stride = (int64_t) v->nb[2];
    call.lists = (int32_t *) node->src[3]->data;
    call.slots = (float4 *) slots.get();
    call.out = (float *) node->data;
    call.scale = params.scale;
    call.n_items = params.n_items;
    call.n_head = (int32_t) q->ne[1];
    call.n_head_kv = n_head_kv;
    call.head_size = head_size;
    ggml_cuda_attend(call, ctx.stream());
    CUDA_CHECK(cudaGetLastError());
}
