// Text to tokens, and a token's bytes.
#include "shim.h"

#include "qcls_llama.h"

#include <climits>

namespace {

// Throws if a text became a control token: in a vocabulary whose rules merge text into one, any text could spell it.
void refuse_control_tokens(const llama_vocab * vocab, const int32_t * token, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        if (llama_vocab_get_attr(vocab, token[i]) & LLAMA_TOKEN_ATTR_CONTROL) {
            throw bad_argument("this vocabulary joins text to its control token " + std::to_string(token[i]) + ", " +
                               llama_vocab_get_text(vocab, token[i]) + ": plain text cannot hold that");
        }
    }
}

}  // namespace

int32_t qcls_tokenize(const qcls_model * model, const char * text, int64_t n_bytes, int32_t parse,
                      int32_t * token, int64_t capacity, int64_t * n_tokens, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const assertions_throw scope;
        const llama_vocab * vocab = given(model, "model").vocab;
        int64_t & n_needed = given(n_tokens, "n_tokens");
        check_array(text, n_bytes, "text");
        check_array(token, capacity, "token");
        if (parse < QCLS_PARSE_NOTHING || parse > QCLS_PARSE_USER_DEFINED) {
            throw bad_argument("parse is " + std::to_string(parse) + ": it must be 0, 1 or 2");
        }
        if (n_bytes > INT32_MAX) {
            throw bad_argument("the text has " + std::to_string(n_bytes) + " bytes, more than the " +
                               std::to_string(INT32_MAX) + " that llama.cpp can tokenise at once");
        }
        const auto n_room = (int32_t) std::min<int64_t>(capacity, INT32_MAX);
        const int32_t n = parse == QCLS_PARSE_NOTHING
                              ? qcls::tokenize_plain(vocab, text, (int32_t) n_bytes, token, n_room)
                              : llama_tokenize(vocab, text, (int32_t) n_bytes, token, n_room, /*add_special=*/false,
                                               parse == QCLS_PARSE_SPECIAL);
        if (n == INT32_MIN) {
            throw bad_argument("the text has more tokens than the " + std::to_string(INT32_MAX) +
                               " that llama.cpp can count");
        }
        n_needed = n < 0 ? -n : n;
        if (n < 0) {
            throw failure{QCLS_TOO_SMALL, "the text has " + std::to_string(n_needed) +
                                          " tokens, and there is room for " + std::to_string(capacity)};
        }
        if (parse != QCLS_PARSE_SPECIAL) {
            refuse_control_tokens(vocab, token, n);
        }
    });
}

int32_t qcls_token_piece(const qcls_model * model, int32_t token, char * text, int64_t capacity, int64_t * n_bytes,
                         int32_t * kind, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const assertions_throw scope;
        const llama_vocab * vocab = given(model, "model").vocab;
        int64_t & n_needed = given(n_bytes, "n_bytes");
        int32_t & token_kind = given(kind, "kind");
        check_array(text, capacity, "text");
        if (token < 0 || token >= model->n_vocab()) {
            throw bad_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                               std::to_string(model->n_vocab()) + " tokens");
        }
        const auto n_room = (int32_t) std::min<int64_t>(capacity, INT32_MAX);
        const int32_t n = llama_token_to_piece(vocab, token, text, n_room, 0, /*special=*/true);
        n_needed = n < 0 ? -n : n;
        const llama_token_attr attr = llama_vocab_get_attr(vocab, token);
        const bool is_blank = std::string(llama_vocab_get_text(vocab, token)).find_first_not_of(" \t\n\v\f\r") ==
                              std::string::npos;  // see patches/0010-plain-text.patch
        token_kind = attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)  ? QCLS_TOKEN_CONTROL
                     : attr & LLAMA_TOKEN_ATTR_USER_DEFINED && !is_blank           ? QCLS_TOKEN_USER_DEFINED
                                                                                   : QCLS_TOKEN_TEXT;
        if (n < 0) {
            throw failure{QCLS_TOO_SMALL, "token " + std::to_string(token) + " has " + std::to_string(n_needed) +
                                          " bytes, and there is room for " + std::to_string(capacity)};
        }
    });
}
