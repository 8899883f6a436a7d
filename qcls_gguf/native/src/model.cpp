// Loading models.
#include "shim.h"

#include <memory>

namespace {

// Why the cells of this model cannot be shared by sequences in one decode; NULL where they can.
const char * why_unsupported(const llama_model * model) {
    if (llama_model_is_hybrid(model)) {
        return "a hybrid model: its recurrent layers cannot share prefix cells between label branches";
    }
    if (llama_model_is_recurrent(model)) {
        return "a recurrent model: its state cannot branch by sequence in one decode";
    }
    if (llama_model_is_diffusion(model)) {
        return "a diffusion model: it has no next-token distribution";
    }
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        return "not a decoder-only model";
    }
    char text[128];
    std::string key = llama_model_meta_val_str(model, "general.architecture", text, sizeof(text)) > 0 ? text : "";
    key += ".attention.causal";
    if (llama_model_meta_val_str(model, key.c_str(), text, sizeof(text)) > 0 && strcmp(text, "false") == 0) {
        return "a bidirectional model: it has no next-token distribution";
    }
    return nullptr;
}

struct progress_call {
    qcls_progress_fn function;
    void * user;
};

bool on_progress(float fraction, void * data) {
    const auto & call = *static_cast<const progress_call *>(data);
    return call.function(fraction, call.user) != 0;
}

}  // namespace

int32_t qcls_model_open(const char * path, int32_t n_gpu_layers, qcls_progress_fn progress, void * user,
                        qcls_model ** model, qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        given(model, "model") = nullptr;
        given(path, "path");
        start_llama();
        progress_call call = {progress, user};
        llama_model_params params = llama_model_default_params();
        params.n_gpu_layers = n_gpu_layers;
        params.lazy_mode = LLAMA_LAZY_MODE_OFF;
        if (progress) {
            params.progress_callback = on_progress;
            params.progress_callback_user_data = &call;
        }
        const assertions_throw scope;
        llama_model_ptr loaded(llama_model_load_from_file(path, params));
        if (!loaded) {
            throw llama_failure(QCLS_LOAD_FAILED, "llama.cpp could not load the model");
        }
        if (const char * why = why_unsupported(loaded.get())) {
            throw failure{QCLS_UNSUPPORTED, why};
        }
        const llama_vocab * vocab = llama_model_get_vocab(loaded.get());
        *model = new qcls_model{std::move(loaded), vocab};
    });
}

int32_t qcls_model_close(qcls_model * model, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] { delete model; });
}

int32_t qcls_model_describe(const qcls_model * model, qcls_facts * facts, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const assertions_throw scope;
        const llama_model * m = given(model, "model").model.get();
        const llama_vocab * v = model->vocab;
        qcls_facts found = {};
        found.n_vocab = llama_vocab_n_tokens(v);
        found.n_embd = llama_model_n_embd(m);
        found.n_layer = llama_model_n_layer(m);
        found.n_ctx_train = llama_model_n_ctx_train(m);
        found.token_bos = llama_vocab_bos(v);
        found.token_eos = llama_vocab_eos(v);
        found.token_eot = llama_vocab_eot(v);
        found.add_bos = llama_vocab_get_add_bos(v);
        found.size_bytes = (int64_t) llama_model_size(m);
        found.n_params = (int64_t) llama_model_n_params(m);
        llama_model_desc(m, found.description, sizeof(found.description));
        fill(facts, "facts", found);
    });
}
