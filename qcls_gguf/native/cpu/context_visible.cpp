#include "context_visible.h"

#include "llama-arch.h"
#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "llama.h"

namespace qcls {
namespace {

bool is_on_cpu(const llama_model & model) {
    for (uint32_t i = 0; i < model.hparams.n_layer_all; ++i) {
        if (ggml_backend_dev_type(model.dev_layer((int) i)) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return false;
        }
    }
    return true;
}

bool has_sinks(const llama_model & model) {
    for (const llama_layer & layer : model.layers) {
        if (layer.attn_sinks) {
            return true;
        }
    }
    return false;
}

bool is_known(ggml_type type) {
    return type == GGML_TYPE_F16 || type == GGML_TYPE_F32;
}

}  // namespace

const char * why_no_visible_cells(const llama_model & model, const llama_context_params & params,
                                  const llama_cparams & cparams) {
    const llama_hparams & hparams = model.hparams;
    if (hparams.vocab_only) {
        return "the model has no layers";
    }
    if (!is_known(params.type_k) || !is_known(params.type_v)) {
        return "the cache is neither F16 nor F32";
    }
    if (!params.kv_unified) {
        return "the sequences have caches of their own";
    }
    if (!is_on_cpu(model)) {
        return "the model has layers on a GPU";
    }
    if (!cparams.causal_attn) {
        return "attention is not causal";
    }
    if (hparams.use_alibi || hparams.f_max_alibi_bias > 0) {
        return "the model has ALiBi";
    }
    if (hparams.attn_soft_cap || model.arch == LLM_ARCH_GROK) {
        return "the model caps attention scores";
    }
    if (has_sinks(model)) {
        return "the model has attention sinks";
    }
    if (hparams.is_mla()) {
        return "the model has multi-head latent attention";
    }
    if (hparams.n_pos_per_embd() > 1) {
        return "the model has positions of several dimensions";
    }
    if (cparams.ctx_other || params.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT) {
        return "the context drafts for another one";
    }
    if (params.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_VISIBLE_CELLS) {
        return "another kind of attention was asked for";
    }
    return nullptr;
}

bool list_visible_cells(llama_memory_i * memory) {
    if (auto * windowed = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return list_visible_cells(windowed->get_base()) && list_visible_cells(windowed->get_swa());
    }
    auto * cache = dynamic_cast<llama_kv_cache *>(memory);
    return cache && cache->set_visible_cells();
}

}  // namespace qcls
