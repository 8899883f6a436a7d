// Lists of the cells that each token of a batch sees, made from a KV cache, and the attention that reads them
// (patches/0008-visible-cells.patch).
#include "attention_node.h"
#include "batch_invariant.h"
#include "device_attention.h"

#include "llama-graph.h"
#include "llama-kv-cache.h"

bool llama_kv_cache::set_visible_cells() {
    bool ok = !v_trans && n_stream == 1 && !other;
    bool on_host = true;
    for (const auto & layer : layers) {
        ok = ok && layer.v;
        on_host = on_host && ok && ggml_backend_buffer_is_host(layer.k->buffer) &&
                  ggml_backend_buffer_is_host(layer.v->buffer);
    }
    for (const auto & layer : layers) {  // either all layers are on the host, or none is
        ok = ok && ggml_backend_buffer_is_host(layer.k->buffer) == on_host &&
             ggml_backend_buffer_is_host(layer.v->buffer) == on_host;
    }
    visible.reset(ok ? new qcls::visible_cells() : nullptr);
    visible_lists.reset(ok && !on_host ? new qcls::visible_lists(hparams.n_gqa(), hparams.n_head_kv(),
                                                                 qcls::is_batch_invariant())
                                       : nullptr);
    return ok;
}

void llama_kv_cache::list_visible_cells(const llama_ubatch & ubatch) {
    const auto & cells = v_cells[0];
    visible->make(
        (int32_t) ubatch.n_tokens, [&](int32_t i) { return ubatch.seq_id[i][0]; },
        [&](int32_t i) { return ubatch.pos[i]; },
        [&](llama_seq_id seq_id) {
            const auto & own = cells.seq_pos_get(seq_id);
            return qcls::cell_list{own.data(), (int32_t) own.size()};
        },
        [&](llama_pos p0, llama_pos p1) { return llama_hparams::is_masked_swa(n_swa, swa_type, p0, p1); });
    if (visible_lists) {
        visible_lists->pack(*visible);
    }
}

qcls::lists_room llama_kv_cache_context::get_lists_room(uint32_t n_tokens) const {
    const auto & lists = *kv->get_visible_lists();
    return ubatches.empty() ? lists.usual_room((int32_t) n_tokens, (int32_t) kv->get_size()) : lists.room();
}

ggml_tensor * llm_graph_context::build_attn_cache(const llama_kv_cache_context * mctx, ggml_tensor * q, ggml_tensor * k,
                                                  ggml_tensor * v, ggml_tensor * kq_b, ggml_tensor * kq_mask,
                                                  ggml_tensor * sinks, ggml_tensor * v_mla, float kq_scale,
                                                  int il) const {
    if (!cparams.visible_cells || cparams.training || kq_b || sinks || v_mla) {
        return build_attn_mha(q, k, v, kq_b, kq_mask, sinks, v_mla, 0, kq_scale, il);
    }
    ggml_tensor * cur = kq_mask ? qcls::device_attention_node(ctx0, q, k, v, kq_mask, kq_scale)  // the lists
                                : qcls::attention_node(ctx0, q, k, v, kq_scale, mctx->get_visible_cells());
    ggml_build_forward_expand(gf, cur);
    return cur;
}
