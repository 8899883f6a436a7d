#include "attention_node.h"

#include "attention.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cstring>
#include <stdexcept>

namespace qcls {
namespace {

// after the parameters that ggml_custom_4d() stores
constexpr size_t scale_offset = sizeof(void *) * 4;
static_assert(scale_offset + sizeof(float) <= GGML_MAX_OP_PARAMS);

attend_fn find_attend() {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    return cpu ? (attend_fn) ggml_backend_reg_get_proc_address(cpu, "qcls_attend") : nullptr;
}

attend_fn attend() {
    static const attend_fn found = find_attend();
    return found;
}

void compute(ggml_tensor * node, int i_thread, int n_threads, void * visible) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * v = node->src[2];
    attention_call call;
    call.q = (const float *) q->data;
    call.q_head_stride = (ptrdiff_t) (q->nb[1] / sizeof(float));
    call.q_token_stride = (ptrdiff_t) (q->nb[2] / sizeof(float));
    call.k = k->data;
    call.k_head_stride = (ptrdiff_t) k->nb[1];
    call.k_cell_stride = (ptrdiff_t) k->nb[2];
    call.v = v->data;
    call.v_head_stride = (ptrdiff_t) v->nb[1];
    call.v_cell_stride = (ptrdiff_t) v->nb[2];
    call.k_is_f16 = k->type == GGML_TYPE_F16;
    call.v_is_f16 = v->type == GGML_TYPE_F16;
    call.n_head = (int32_t) q->ne[1];
    call.n_head_kv = (int32_t) k->ne[1];
    call.head_size_k = (int32_t) k->ne[0];
    call.head_size_v = (int32_t) v->ne[0];
    memcpy(&call.scale, (const char *) node->op_params + scale_offset, sizeof(call.scale));
    call.visible = (const visible_cells *) visible;
    call.out = (float *) node->data;
    attend()(&call, i_thread, n_threads);
}

bool is_known(const ggml_tensor * cache) {
    return (cache->type == GGML_TYPE_F16 || cache->type == GGML_TYPE_F32) && cache->nb[0] == ggml_type_size(cache->type);
}

}  // namespace

ggml_tensor * attention_node(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, float scale,
                             const visible_cells * visible) {
    if (!attend()) {
        throw std::runtime_error("the CPU backend has no attention that reads visible cells only");
    }
    if (q->nb[0] != sizeof(float)) {
        q = ggml_cont(context, q);
    }
    if (q->type != GGML_TYPE_F32 || !is_known(k) || !is_known(v) || q->ne[0] != k->ne[0] || k->ne[1] != v->ne[1] ||
        q->ne[1] % k->ne[1] != 0 || q->ne[3] != 1 || k->ne[3] != 1) {
        throw std::runtime_error("attention that reads visible cells only does not know these heads");
    }
    ggml_tensor * args[] = {q, k, v};
    ggml_tensor * node = ggml_custom_4d(context, GGML_TYPE_F32, v->ne[0] * q->ne[1], q->ne[2], 1, 1, args, 3, compute,
                                        GGML_N_TASKS_MAX, const_cast<visible_cells *>(visible));
    memcpy((char *) node->op_params + scale_offset, &scale, sizeof(scale));
    return node;
}

}  // namespace qcls
