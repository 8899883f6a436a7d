// Loading models.
#include "shim.h"

#include "cpu_functions.h"

#include "qcls_llama.h"

#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

namespace {

// The hybrids whose answers the tests compare with stock llama.cpp's. Only these are allowed, because each
// architecture's graph handles the states of branching sequences in its own way.
constexpr const char * tested_hybrids[] = {
    "bailingmoe3", "falcon-h1",  "granitehybrid",  "jamba",  "kimi-linear", "lfm2",
    "lfm2moe",     "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe",   "qwen3next",
};

// Why a hybrid of this architecture cannot be used; empty where it can.
std::string why_no_hybrid(const std::string & arch) {
    const auto is_among = [&](auto & names) {
        return std::any_of(std::begin(names), std::end(names), [&](const char * name) { return arch == name; });
    };
    if (is_among(tested_hybrids)) {
        return "";
    }
    // llama.cpp has special kinds of memory for these (src/llama-model.cpp, create_memory).
    constexpr const char * with_more[] = {"deepseek4", "glm5-next", "qwen4exp"};
    if (is_among(with_more)) {
        return "a hybrid model of the architecture " + arch +
               ", which keeps more of a sequence than keys, values and a state";
    }
    // The offset at which src/models/plamo2.cpp stores states has the number of sequences as a factor.
    if (arch == "plamo2") {
        return "a hybrid model of the architecture plamo2, of which llama.cpp stores the states of several sequences in "
               "the wrong places";
    }
    return "a hybrid model, and recurrent layers of the architecture " + arch +
           " were not tested with branching sequences";
}

std::string text_of(const llama_model * model, const std::string & key) {
    char text[128];
    return llama_model_meta_val_str(model, key.c_str(), text, sizeof(text)) > 0 ? text : "";
}

// Why the sequences of a token tree cannot be decoded together with this model; empty where they can.
std::string why_unsupported(const llama_model * model) {
    const std::string arch = text_of(model, "general.architecture");
    if (llama_model_is_recurrent(model)) {
        return "a recurrent model: its state cannot branch by sequence in one decode";
    }
    if (llama_model_is_diffusion(model)) {
        return "a diffusion model: it has no next-token distribution";
    }
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        return "not a decoder-only model";
    }
    if (text_of(model, arch + ".attention.causal") == "false") {
        return "a bidirectional model: it has no next-token distribution";
    }
    return llama_model_is_hybrid(model) ? why_no_hybrid(arch) : "";
}

// "1" for lane order, "0" for the file's order, nothing if the device decides. Returns a copy, because another thread
// may change the environment while the file is loaded.
std::optional<std::string> lane_order_wish(const int32_t weight_order) {
    switch (weight_order) {
        case QCLS_WEIGHTS_BY_DEVICE: {
            const char * wish = getenv("QCLS_LANE_ORDER");
            return wish ? std::optional<std::string>(wish) : std::nullopt;
        }
        case QCLS_WEIGHTS_FILE_ORDER:
            return "0";
        case QCLS_WEIGHTS_LANE_ORDER:
            return "1";
        default:
            throw failure{QCLS_BAD_ARGUMENT, "weight_order " + std::to_string(weight_order) + ": 0, 1 or 2"};
    }
}

// Sets the precision of activations for the weights that this thread loads.
void set_activations(const int32_t precision) {
    if (precision < QCLS_ACTIVATIONS_DEFAULT || precision > QCLS_ACTIVATIONS_FINE) {
        throw bad_argument("cpu_activations " + std::to_string(precision) + ": 0, 1 or 2");
    }
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    void * found = cpu ? ggml_backend_reg_get_proc_address(cpu, "qcls_set_activations") : nullptr;
    if (found) {
        ((qcls_set_activations_fn) found)(precision);
    }
}

struct progress_call {
    qcls_progress_fn function;
    void * user;
};

bool on_progress(float fraction, void * data) {
    const auto & call = *static_cast<const progress_call *>(data);
    return call.function(fraction, call.user) != 0;
}

llama_model_ptr load(const qcls_model_params & wanted) {
    set_activations(wanted.cpu_activations);
    if (wanted.n_layers < 0) {
        throw bad_argument("n_layers " + std::to_string(wanted.n_layers) + ": 0 or more, not negative");
    }
    qcls::load_first_layers(wanted.n_layers);
    progress_call call = {wanted.progress, wanted.user};
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = wanted.n_gpu_layers;
    params.lazy_mode = LLAMA_LAZY_MODE_OFF;
    if (wanted.without_weights) {
        params.no_alloc = true;
        params.load_mode = LLAMA_LOAD_MODE_NONE;
    } else if (wanted.progress) {
        params.progress_callback = on_progress;
        params.progress_callback_user_data = &call;
    }
    // If no layer is on a GPU, no GPU is used at all. Otherwise llama.cpp would copy weights to it for each larger
    // decode, and keep them in pinned memory, where the CPU's own layouts of weights are not used.
    check_array(wanted.share, wanted.n_gpus, "share");
    const std::vector<ggml_backend_dev_t> found = discrete_gpus();
    std::vector<ggml_backend_dev_t> gpus;
    std::vector<float> split;
    for (int64_t i = 0; i < wanted.n_gpus && wanted.n_gpu_layers != 0 && !found.empty(); ++i) {
        if (i >= (int64_t) found.size() || wanted.share[i] < 0) {
            throw bad_argument("share[" + std::to_string(i) + "] is " + std::to_string(wanted.share[i]) + ": there are " +
                               std::to_string(found.size()) + " GPUs, and none has less than 0");
        }
        if (wanted.share[i] > 0) {
            gpus.push_back(found[i]);
            split.push_back((float) wanted.share[i]);
        }
    }
    if (gpus.size() > 1) {
        split.resize(llama_max_devices());  // llama.cpp copies as many
        params.tensor_split = split.data();
    }
    if (wanted.n_gpu_layers == 0 || !gpus.empty()) {
        gpus.push_back(nullptr);
        params.devices = gpus.data();
    }
    llama_model_ptr loaded(llama_model_load_from_file(wanted.path, params));
    if (!loaded) {
        throw llama_failure(QCLS_LOAD_FAILED, "llama.cpp could not load the model");
    }
    if (std::string why = why_unsupported(loaded.get()); !why.empty()) {
        throw failure{QCLS_UNSUPPORTED, std::move(why)};
    }
    return loaded;
}

}  // namespace

int32_t qcls_model_open(const qcls_model_params * params, qcls_model ** model, qcls_error * error) {
    return guarded(error, QCLS_LOAD_FAILED, [&] {
        given(model, "model") = nullptr;
        given(given(params, "params").path, "path");
        const std::optional<std::string> lane_order = lane_order_wish(params->weight_order);
        start_llama();
        const assertions_throw scope;
        llama_model_ptr loaded = load(*params);
        const bool has_weights = !params->without_weights;
        const char * wish = lane_order ? lane_order->c_str() : nullptr;
        const int32_t n_lane_ordered = has_weights ? qcls::put_into_lane_order(loaded.get(), wish) : 0;
        const llama_vocab * vocab = llama_model_get_vocab(loaded.get());
        const bool walks_trees = qcls::walks_trees(loaded.get());
        *model = new qcls_model{std::move(loaded), vocab, n_lane_ordered, has_weights, walks_trees};
    });
}

int32_t qcls_model_close(qcls_model * model, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] { delete model; });
}

int32_t qcls_model_describe(const qcls_model * model, qcls_model_facts * facts, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const assertions_throw scope;
        const llama_model * m = given(model, "model").model.get();
        const llama_vocab * v = model->vocab;
        qcls_model_facts & found = given(facts, "facts") = {};
        found.n_vocab = llama_vocab_n_tokens(v);
        found.n_embd = llama_model_n_embd(m);
        found.n_left_out = qcls::n_layers_left_out(m);
        found.n_layer = llama_model_n_layer(m) + found.n_left_out;
        found.n_ctx_train = llama_model_n_ctx_train(m);
        found.token_bos = llama_vocab_bos(v);
        found.token_eos = llama_vocab_eos(v);
        found.token_eot = llama_vocab_eot(v);
        found.add_bos = llama_vocab_get_add_bos(v);
        found.n_lane_ordered = model->n_lane_ordered;
        found.size_bytes = (int64_t) llama_model_size(m);
        found.n_params = (int64_t) llama_model_n_params(m);
        found.state_bytes = (int64_t) qcls::state_size(m);
        found.walks_trees = model->walks_trees;
        llama_model_desc(m, found.description, sizeof(found.description));
    });
}
