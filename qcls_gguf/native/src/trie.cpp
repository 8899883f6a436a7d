// The arithmetic of label tries; score/scorer.py has the formulas. numpy would need a dozen calls, which are slow after
// a decode, because the decode has evicted their code from the processor's caches.
#include "shim.h"

#include <cmath>

namespace {

// Turns the logits of siblings into their log-softmax, in place.
void log_softmax(float * logit, int32_t n) {
    const float top = *std::max_element(logit, logit + n);
    float sum = 0;
    for (int32_t i = 0; i < n; ++i) {
        logit[i] -= top;
        sum += std::exp(logit[i]);
    }
    const float log_sum = std::log(sum);
    for (int32_t i = 0; i < n; ++i) {
        logit[i] -= log_sum;
    }
}

}  // namespace

int32_t qcls_trie_scores(qcls_trie * given_trie, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const qcls_trie trie = given(given_trie, "trie");
        check_array(trie.node_start, trie.n_nodes, "trie: node_start");
        check_array(trie.label_start, trie.n_labels, "trie: label_start");
        check_array(trie.label_edge, trie.n_labels, "trie: label_edge");
        check_array(trie.edge, trie.n_queries, "trie: edge");
        check_array(trie.log_probability, trie.n_queries, "trie: log_probability");
        check_array(trie.probability, trie.n_queries, "trie: probability");
        bool finite = true;
        for (int64_t query = 0; query < trie.n_queries; ++query) {
            float * edge = trie.edge + query * trie.node_start[trie.n_nodes];
            float * log_probability = trie.log_probability + query * trie.n_labels;
            float * probability = trie.probability + query * trie.n_labels;
            for (int64_t node = 0; node < trie.n_nodes; ++node) {
                log_softmax(edge + trie.node_start[node], trie.node_start[node + 1] - trie.node_start[node]);
            }
            for (int64_t label = 0; label < trie.n_labels; ++label) {
                float sum = 0;
                for (int32_t i = trie.label_start[label]; i < trie.label_start[label + 1]; ++i) {
                    sum += edge[trie.label_edge[i]];
                }
                log_probability[label] = sum;
                probability[label] = std::exp(sum);
                finite = finite && std::isfinite(sum);
            }
        }
        given_trie->all_finite = finite;
    });
}
