// Models and vocabularies: the size of recurrent states, which matrices are put into lane order, plain text.
#include "qcls_llama.h"

#include "llama-model.h"
#include "llama-vocab.h"

#include "ggml-backend.h"

#include <string>

namespace qcls {
namespace {

// Whether a layer's graph does nothing with a tensor but multiply by it.
bool is_only_multiplied(const std::string & name) {
    constexpr const char * endings[] = {".attn_q.weight", ".attn_k.weight", ".attn_v.weight", ".attn_qkv.weight",
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

}  // namespace

uint64_t state_size(const llama_model * model) {
    const llama_hparams & hparams = model->hparams;
    // as llama_memory_recurrent keeps them, in F32
    const uint64_t layer_bytes =
        sizeof(float) * ((uint64_t) hparams.n_embd_r() + hparams.n_embd_s() + hparams.ple_conv_state());
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < hparams.n_layer(); ++i) {
        n_bytes += hparams.is_recr(i) ? layer_bytes : 0;
    }
    return n_bytes;
}

int32_t put_into_lane_order(llama_model * model, const char * wish) {
    ggml_backend_reg_t cuda = ggml_backend_reg_by_name("CUDA");
    const auto put = (bool (*)(ggml_tensor *, const char *))(
        cuda ? ggml_backend_reg_get_proc_address(cuda, "qcls_put_into_lane_order") : nullptr);
    int32_t n = 0;
    if (put) {
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
            n += is_only_multiplied(name) && put(tensor, wish);
        }
    }
    return n;
}

int32_t tokenize_plain(const llama_vocab * vocab, const char * text, int32_t n_bytes, llama_token * token,
                       int32_t capacity) {
    return vocab->tokenize(text, n_bytes, token, capacity, false, false, /*plain=*/true);
}

}  // namespace qcls
