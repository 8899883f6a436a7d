// Loads a model, tokenises and decodes, in a separate process, because llama.cpp ends the process on some damaged
// files.
//
// qcls-trial FILE FLASH_ATTN KV_TYPE N_LAYERS [GPU_LAYERS]… FLASH_ATTN and KV_TYPE are members of qcls_context_params,
// N_LAYERS is one of qcls_model_params, GPU_LAYERS is the number of layers on each GPU. Exit codes: 0 success; 2 wrong
// usage; 3 an error, with its message on standard output. What llama.cpp prints before it aborts goes to standard
// error.
#include "qcls.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

qcls_error error = {};

void check(int32_t status) {
    if (status != QCLS_OK) {
        printf("%s\n", error.message);
        fflush(stdout);
        _Exit(3);  // nothing need be freed
    }
}

// Tokenises a text and ignores errors, which are reported when prompts are compiled: the trial only shows that
// llama.cpp survives it.
void tokenize(const qcls_model * model, const char * text, int32_t parse) {
    std::vector<int32_t> token(256);
    int64_t n_tokens = 0;
    const int32_t status = qcls_tokenize(model, text, (int64_t) strlen(text), parse, token.data(),
                                         (int64_t) token.size(), &n_tokens, &error);
    token.resize(status == QCLS_OK ? n_tokens : 0);
    for (const int32_t each : token) {
        char piece[256];
        int64_t n_bytes = 0;
        int32_t kind = 0;
        qcls_token_piece(model, each, piece, sizeof(piece), &n_bytes, &kind, &error);
    }
}

// Decodes tokens at the beginning of sequence 0, then trims them.
void decode(qcls_context * context, const std::vector<int32_t> & token) {
    const auto n = (int32_t) token.size();
    std::vector<int32_t> pos(n), seq_offset(n + 1), seq_id(n);
    std::vector<uint8_t> output(n);
    for (int32_t i = 0; i < n; ++i) {
        pos[i] = i;
        seq_offset[i + 1] = i + 1;
    }
    output[n - 1] = 1;
    qcls_context_facts facts = {};
    check(qcls_context_describe(context, &facts, &error));
    std::vector<float> rows(facts.row_size);
    const int32_t trim_seq = 0;
    const int32_t trim_from = 0;
    qcls_plan plan = {};
    plan.n_tokens = n;
    plan.token = token.data();
    plan.pos = pos.data();
    plan.seq_offset = seq_offset.data();
    plan.seq_id = seq_id.data();
    plan.n_seq_ids = n;
    plan.output = output.data();
    plan.n_rows = 1;
    plan.rows = rows.data();
    plan.n_trim = 1;
    plan.trim_seq = &trim_seq;
    plan.trim_from = &trim_from;
    check(qcls_decode(context, &plan, &error));
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: qcls-trial FILE FLASH_ATTN KV_TYPE N_LAYERS [GPU_LAYERS]...\n");
        return 2;
    }
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    setenv("GGML_NO_BACKTRACE", "1", 1);  // it would start a debugger

    qcls_model * model = nullptr;
    std::vector<int32_t> layers(argc - 5);
    std::transform(argv + 5, argv + argc, layers.begin(), atoi);
    qcls_model_params loading = {};
    loading.path = argv[1];
    loading.n_gpu_layers = std::accumulate(layers.begin(), layers.end(), 0);
    loading.share = layers.data();
    loading.n_gpus = (int64_t) layers.size();
    loading.n_layers = atoi(argv[4]);
    check(qcls_model_open(&loading, &model, &error));
    qcls_model_facts facts = {};
    check(qcls_model_describe(model, &facts, &error));
    for (const char * text : {"red dress 7 \n\n<|im_end|>", "红色", "\xc3\xa9\xcc\x81 \xf0\x9f\x91\x97"}) {
        for (const int32_t parse : {QCLS_PARSE_NOTHING, QCLS_PARSE_SPECIAL, QCLS_PARSE_USER_DEFINED}) {
            tokenize(model, text, parse);
        }
    }

    qcls_context_params params = {};
    params.n_ctx = 256;
    params.n_batch = 64;
    params.n_seq_max = 2;
    params.n_outputs_max = 64;
    params.n_threads = 1;
    params.hidden_only = 1;
    params.flash_attn = atoi(argv[2]);
    params.kv_type = argv[3];
    params.visible_cells = 1;
    qcls_context * context = nullptr;
    check(qcls_context_open(model, &params, &context, &error));
    std::vector<int32_t> many(16);  // more tokens than the kernels for few tokens take
    for (int32_t i = 0; i < (int32_t) many.size(); ++i) {
        many[i] = (int32_t) ((int64_t) i * (facts.n_vocab - 1) / ((int32_t) many.size() - 1));
    }
    decode(context, {many.front()});
    qcls_context_set_label_tokens(context, 1, many.data(), &error);  // with the head, where there is memory for it
    decode(context, many);
    check(qcls_context_close(context, &error));
    check(qcls_model_close(model, &error));
    return 0;
}
