// Text to tokens, and a token's bytes.
#include "shim.h"

#include <climits>

int32_t qcls_tokenize(const qcls_model * model, const char * text, int64_t n_bytes, int32_t parse_special,
                      int32_t * token, int64_t capacity, int64_t * n_tokens, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const llama_vocab * vocab = given(model, "model").vocab;
        int64_t & n_needed = given(n_tokens, "n_tokens");
        check_array(text, n_bytes, "text");
        check_array(token, capacity, "token");
        if (n_bytes > INT32_MAX) {
            throw bad_argument("the text has " + std::to_string(n_bytes) + " bytes, more than the " +
                               std::to_string(INT32_MAX) + " that llama.cpp can tokenise at once");
        }
        const auto n_room = (int32_t) std::min<int64_t>(capacity, INT32_MAX);
        const int32_t n = llama_tokenize(vocab, text, (int32_t) n_bytes, token, n_room, /*add_special=*/false,
                                         parse_special != 0);
        if (n == INT32_MIN) {
            throw bad_argument("the text has more tokens than the " + std::to_string(INT32_MAX) +
                               " that llama.cpp can count");
        }
        n_needed = n < 0 ? -n : n;
        if (n < 0) {
            throw failure{QCLS_TOO_SMALL, "the text has " + std::to_string(n_needed) +
                                          " tokens, and there is room for " + std::to_string(capacity)};
        }
    });
}

int32_t qcls_token_piece(const qcls_model * model, int32_t token, char * text, int64_t capacity, int64_t * n_bytes,
                         int32_t * special, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const llama_vocab * vocab = given(model, "model").vocab;
        int64_t & n_needed = given(n_bytes, "n_bytes");
        int32_t & is_special = given(special, "special");
        check_array(text, capacity, "text");
        if (token < 0 || token >= model->n_vocab()) {
            throw bad_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                               std::to_string(model->n_vocab()) + " tokens");
        }
        const auto n_room = (int32_t) std::min<int64_t>(capacity, INT32_MAX);
        const int32_t n = llama_token_to_piece(vocab, token, text, n_room, 0, /*special=*/true);
        n_needed = n < 0 ? -n : n;
        is_special = (llama_vocab_get_attr(vocab, token) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0;
        if (n < 0) {
            throw failure{QCLS_TOO_SMALL, "token " + std::to_string(token) + " has " + std::to_string(n_needed) +
                                          " bytes, and there is room for " + std::to_string(capacity)};
        }
    });
}
