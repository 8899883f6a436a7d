// Which matrices of a model are put into lane order: the part of libllama.
#include "llama-model.h"

#include "ggml-backend.h"

#include <array>
#include <string>

// Of a layer, what its graph does nothing with but multiply.
static bool is_only_multiplied(const std::string & name) {
    constexpr std::array<const char *, 8> endings = {".attn_q.weight", ".attn_k.weight", ".attn_v.weight", ".attn_qkv.weight",
                                                     ".attn_output.weight", ".ffn_gate.weight", ".ffn_up.weight",
                                                     ".ffn_down.weight"};
    if (name.rfind("blk.", 0) != 0) {
        return false;
    }
    for (const std::string ending : endings) {
        if (name.size() > ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0) {
            return true;
        }
    }
    return false;
}

int32_t llama_model_put_into_lane_order(llama_model * model, const char * wish) {
    ggml_backend_reg_t cuda = ggml_backend_reg_by_name("CUDA");
    int32_t n = 0;
    if (cuda == nullptr) {
        return n;
    }
    auto * const put = (bool (*)(ggml_tensor *, const char *)) ggml_backend_reg_get_proc_address(cuda, "qcls_put_into_lane_order");
    if (put) {
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
            n += is_only_multiplied(name) && put(tensor, wish);
        }
    }
    return n;
}
