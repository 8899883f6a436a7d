#include "device_attention.h"

#include "attend_node.h"

#include "ggml-cpp.h"
#include "ggml.h"

#include <cstring>
#include <stdexcept>

namespace qcls {
namespace {

ggml_custom_op_t find_function() {
    ggml_backend_reg_t cuda = ggml_backend_reg_by_name("CUDA");
    return cuda ? (ggml_custom_op_t) ggml_backend_reg_get_proc_address(cuda, qcls_attend_node_function) : nullptr;
}

ggml_custom_op_t function() {
    static const ggml_custom_op_t found = find_function();
    return found;
}

}  // namespace

const char * why_no_device_attention(ggml_backend_dev_t device, int32_t n_head, int32_t n_head_kv, int32_t head_size) {
    if (!function() || ggml_backend_dev_backend_reg(device) != ggml_backend_reg_by_name("CUDA")) {
        return "the GPU is none that such attention is written for";
    }
    ggml_context_ptr context(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor * q = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, head_size, n_head, 1);
    ggml_tensor * k = ggml_new_tensor_3d(context.get(), GGML_TYPE_F16, head_size, n_head_kv, 1);
    ggml_tensor * v = ggml_new_tensor_3d(context.get(), GGML_TYPE_F16, head_size, n_head_kv, 1);
    ggml_tensor * node = device_attention_node(context.get(), q, k, v, lists_input(context.get(), {1, 1, 0}), 1);
    return ggml_backend_dev_supports_op(device, node) ? nullptr
                                                      : "the GPU has no such attention for heads of this size";
}

ggml_tensor * lists_input(ggml_context * context, const lists_room & room) {
    ggml_tensor * lists = ggml_new_tensor_1d(context, GGML_TYPE_I32, room.n_ints);
    static_assert(sizeof(room) <= GGML_MAX_OP_PARAMS);
    memcpy(lists->op_params, &room, sizeof(room));
    ggml_set_input(lists);
    ggml_set_name(lists, "attn_inp_visible_lists");
    return lists;
}

lists_room room_of(const ggml_tensor * lists) {
    lists_room room;
    memcpy(&room, lists->op_params, sizeof(room));
    return room;
}

ggml_tensor * device_attention_node(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                    ggml_tensor * lists, float scale) {
    if (!function() || q->type != GGML_TYPE_F32 || k->type != GGML_TYPE_F16 || v->type != GGML_TYPE_F16) {
        throw std::runtime_error("attention that reads visible cells only does not know this cache");
    }
    if (q->nb[0] != sizeof(float) || q->nb[1] % 16 != 0 || q->nb[2] % 16 != 0) {
        q = ggml_cont(context, q);
    }
    const lists_room room = room_of(lists);
    const qcls_attend_node_params params = {scale, room.n_items, room.n_slots};
    static_assert(qcls_attend_node_offset + sizeof(params) <= GGML_MAX_OP_PARAMS);
    ggml_tensor * args[] = {q, k, v, lists};
    ggml_tensor * node = ggml_custom_4d(context, GGML_TYPE_F32, v->ne[0] * q->ne[1], q->ne[2], 1, 1, args, 4,
                                        function(), 1, nullptr);
    memcpy((char *) node->op_params + qcls_attend_node_offset, &params, sizeof(params));
    return node;
}

}  // namespace qcls
