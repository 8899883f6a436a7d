#include "context_visible.h"

#include "device_attention.h"

#include "llama-arch.h"
#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-model.h"
#include "llama.h"

namespace qcls {
namespace {

uint32_t n_layers_on_cpu(const llama_model & model) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < model.hparams.n_layer_all; ++i) {
        n += ggml_backend_dev_type(model.dev_layer((int) i)) == GGML_BACKEND_DEVICE_TYPE_CPU;
    }
    return n;
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

// Why a model whose layers are all on GPUs cannot have such attention; NULL if it can.
const char * why_not_on_gpu(const llama_model & model, const llama_context_params & params) {
    const llama_hparams & hparams = model.hparams;
    if (params.type_k != GGML_TYPE_F16 || params.type_v != GGML_TYPE_F16) {
        return "the cache is not F16, which it must be on a GPU";
    }
    if (!params.offload_kqv) {
        return "the cache is not on the GPU";
    }
    if (hparams.swa_type != LLAMA_SWA_TYPE_NONE) {
        return "the model has sliding windows, which such attention on a GPU does not know";
    }
    for (uint32_t i = 0; i < hparams.n_layer_all; ++i) {
        if (hparams.n_head(i) != hparams.n_head() || hparams.n_head_kv(i) != hparams.n_head_kv() ||
            hparams.n_embd_head_k(i) != hparams.n_embd_head_k() || hparams.n_embd_head_v(i) != hparams.n_embd_head_k()) {
            return "the model's heads differ, which such attention on a GPU does not know";
        }
        const char * why = why_no_device_attention(model.dev_layer((int) i), (int32_t) hparams.n_head(),
                                                   (int32_t) hparams.n_head_kv(), (int32_t) hparams.n_embd_head_k());
        if (why) {
            return why;
        }
    }
    return nullptr;
}

}  // namespace

const char * why_no_visible_cells(const llama_model & model, const llama_context_params & params,
                                  const llama_cparams & cparams) {
    const llama_hparams & hparams = model.hparams;
    if (hparams.vocab_only) {
        return "the model has no layers";
    }
    if (llm_arch_is_recurrent(model.arch)) { // known before a cache is made
        return "the model has no keys and values";
    }
    if (!is_known(params.type_k) || !is_known(params.type_v)) {
        return "the cache is neither F16 nor F32";
    }
    if (!params.kv_unified) {
        return "the sequences have caches of their own";
    }
    const uint32_t n_on_cpu = n_layers_on_cpu(model);
    if (n_on_cpu > 0 && n_on_cpu < hparams.n_layer_all) {
        return "the model has layers on a GPU and on the CPU";
    }
    if (n_on_cpu == 0 && llm_arch_is_hybrid(model.arch)) {
        return "the model has recurrent layers, and is on a GPU";
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
    if (n_on_cpu == 0 && hparams.n_pos_per_embd() > 1) { // all equal where the batch has text alone
        return "the model has positions of several dimensions, and is on a GPU";
    }
    if (cparams.ctx_other || params.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT) {
        return "the context drafts for another one";
    }
    if (params.flash_attn_type !=
        (n_on_cpu > 0 ? LLAMA_FLASH_ATTN_TYPE_VISIBLE_CELLS : LLAMA_FLASH_ATTN_TYPE_VISIBLE_CELLS_GPU)) {
        return "another kind of attention was asked for";
    }
    return n_on_cpu > 0 ? nullptr : why_not_on_gpu(model, params);
}

bool list_visible_cells(llama_memory_i * memory) {
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return list_visible_cells(hybrid->get_mem_attn());
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return list_visible_cells(hybrid->get_mem_attn());
    }
    if (auto * windowed = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return list_visible_cells(windowed->get_base()) && list_visible_cells(windowed->get_swa());
    }
    auto * cache = dynamic_cast<llama_kv_cache *>(memory);
    return cache && cache->set_visible_cells();
}

}  // namespace qcls

void llama_context::set_attention(llama_flash_attn_type type, const char * why) {
    why_no_visible_cells = why;
    cparams.visible_cells = !why;
    cparams.auto_fa = type == LLAMA_FLASH_ATTN_TYPE_AUTO || (type == LLAMA_FLASH_ATTN_TYPE_VISIBLE_CELLS_GPU && why);
    cparams.flash_attn = type == LLAMA_FLASH_ATTN_TYPE_ENABLED || cparams.auto_fa;
}
