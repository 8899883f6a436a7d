// Models and vocabularies: leaving out layers, the size of recurrent states, putting matrices into lane order,
// tokenising plain text.
#include "qcls_llama.h"

#include "llama-model-loader.h"
#include "llama-model.h"
#include "llama-vocab.h"

#include "ggml-backend.h"

#include <algorithm>
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

thread_local int32_t n_first_layers = 0;

}  // namespace

void load_first_layers(int32_t n) {
    n_first_layers = n;
}

int32_t n_layers_left_out(const llama_model * model) {
    return (int32_t) model->hparams.n_left_out;
}

uint32_t n_layers_built(const llama_hparams & hparams, int arch, int32_t end) {
    const uint32_t n_layer = hparams.n_layer();
    switch (arch) {
        case LLM_ARCH_COMMAND_R:   // with 64 layers or more it has additional norms
        case LLM_ARCH_GEMMA3N:     // one matrix holds the embeddings of all layers; Gemma 4's too
        case LLM_ARCH_GEMMA4:
        case LLM_ARCH_GRANITE_SWITCH:  // an extra layer after the last one selects adapters for every layer
        case LLM_ARCH_HRM_TEXT:        // layers are computed several times; Nanbeige's too
        case LLM_ARCH_NANBEIGE:
        case LLM_ARCH_MINICPM3:  // scales of layers depend on the number of layers; MiniMax-01's too
        case LLM_ARCH_MINIMAX_01:
        case LLM_ARCH_SMALLTHINKER:  // the number of layers determines which layers rotate positions
            return n_layer;
        default:
            break;
    }
    // If the model has layers of a kind, the graph must have one, too: llama.cpp fills the inputs for that kind, which
    // are not allocated unless a layer uses them.
    const auto is_recurrent = [&](uint32_t i) { return hparams.is_recr(i); };
    const auto attends = [&](uint32_t i) {
        return hparams.n_head_kv(i) > 0 && (!hparams.is_recr(i) || arch == LLM_ARCH_FALCON_H1);
    };
    const auto first = [&](const auto & is_of_kind) {
        uint32_t i = 0;
        while (i < n_layer && !is_of_kind(i)) {
            ++i;
        }
        return i < n_layer ? i + 1 : 0;
    };
    return std::min(n_layer, std::max({(uint32_t) end, first(is_recurrent), first(attends)}));
}

bool has_pointer_head(const llama_model & model) {
    const auto kind = model.gguf_kv.find(model.arch_name() + ".decision.type");
    return kind != model.gguf_kv.end() && kind->second == "kev";
}

void leave_out_layers(llama_model & model) {
    llama_hparams & hparams = model.hparams;
    const uint32_t n = n_first_layers > 0 ? n_layers_built(hparams, model.arch, n_first_layers) : hparams.n_layer();
    if (n < hparams.n_layer()) {
        hparams.n_left_out = hparams.n_layer() - n;
        hparams.n_layer_all = n;
        hparams.n_layer_nextn = 0;
    }
    if (has_pointer_head(model)) {
        hparams.n_embd_out_impl = 0;
    }
}

ggml_tensor * instead_of_head(const llama_model & model, const std::string & name, std::initializer_list<int64_t> ne,
                              int flags) {
    const bool is_head = name == "output.weight" ||
                         (name == "token_embd.weight" && (flags & llama_model_loader::TENSOR_DUPLICATED));
    ggml_tensor * embd = model.tok_embd;
    if (model.hparams.n_left_out == 0 || !is_head || !embd || embd->type == GGML_TYPE_NVFP4 || ne.size() != 2) {
        return nullptr;
    }
    return embd->ne[0] == ne.begin()[0] && embd->ne[1] == ne.begin()[1] ? embd : nullptr;
}

uint64_t state_size(const llama_model * model) {
    const llama_hparams & hparams = model->hparams;
    // llama_memory_recurrent stores states in F32
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
