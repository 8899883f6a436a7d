// The arithmetic of label tries (score.py has the formulas): numpy would take a dozen calls for it, whose code a decode
// leaves in no cache.
#include "qcls.h"

#include <algorithm>
#include <cmath>

namespace {

// logits of siblings to their log-softmax, in place
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

int32_t qcls_trie_scores(int32_t n_queries, int32_t n_nodes, const int32_t * node_start, int32_t n_labels,
                         const int32_t * label_start, const int32_t * label_edge, float * edge,
                         float * log_probability, float * probability) {
    bool finite = true;
    for (int32_t query = 0; query < n_queries; ++query) {
        for (int32_t node = 0; node < n_nodes; ++node) {
            log_softmax(edge + node_start[node], node_start[node + 1] - node_start[node]);
        }
        for (int32_t label = 0; label < n_labels; ++label) {
            float sum = 0;
            for (int32_t i = label_start[label]; i < label_start[label + 1]; ++i) {
                sum += edge[label_edge[i]];
            }
            log_probability[label] = sum;
            probability[label] = std::exp(sum);
            finite = finite && std::isfinite(sum);
        }
        edge += node_start[n_nodes];
        log_probability += n_labels;
        probability += n_labels;
    }
    return finite;
}
