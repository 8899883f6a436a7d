#include "head_tail.h"

#include "ggml-impl.h"
#include "ggml.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace qcls {

namespace {

// Reads the nodes of a tail one by one.
class tail_reader {
public:
    tail_reader(const ggml_tensor * hidden, const ggml_tensor * head, const ggml_tensor * bias)
        : last(hidden), head(head), bias(bias) {}

    void take(ggml_tensor * node) {
        if (!is_known(node)) {
            throw std::runtime_error(std::string("between the final norm of this model and its logits stands ") +
                                     ggml_op_desc(node) + " (" + ggml_get_name(node) + "), which is neither the product "
                                     "with the LM head, nor a scale, a soft cap or output.bias");
        }
        last = node;
        ++tail.n_nodes;
    }

    head_tail result() const {
        if (!has_product) {
            throw std::runtime_error("no product with the LM head follows the final norm of this model");
        }
        return tail;
    }

private:
    bool is_known(ggml_tensor * node) {
        if (node->op == GGML_OP_MUL_MAT) {
            const bool is_head = !has_product && node->src[0] == head && node->src[1] == last;
            has_product = has_product || is_head;
            return is_head;
        }
        if (node->src[0] != last) {
            return false;
        }
        if (node->op == GGML_OP_SCALE) {
            return take_scale(node);
        }
        if (node->op == GGML_OP_ADD && has_product && bias && node->src[1] == bias && is_unscaled()) {
            return tail.has_bias = true;
        }
        if (node->op == GGML_OP_UNARY && ggml_get_unary_op(node) == GGML_UNARY_OP_TANH && has_product && !tail.cap) {
            tail.cap = 1.0f;
            return true;
        }
        return false;
    }

    bool take_scale(const ggml_tensor * node) {
        float numbers[2];  // ggml_scale_bias: x * numbers[0] + numbers[1]
        memcpy(numbers, node->op_params, sizeof(numbers));
        if (!std::isfinite(numbers[0]) || numbers[0] == 0) {
            throw std::runtime_error("the logits of this model are multiplied by " + std::to_string(numbers[0]) +
                                     ": its file names no usable scale or soft cap");
        }
        (tail.cap ? tail.cap : tail.scale) *= numbers[0];
        return numbers[1] == 0;
    }

    // a bias must be added before any scale is applied
    bool is_unscaled() const { return tail.scale == 1 && !tail.cap && !tail.has_bias; }

    const ggml_tensor * last;
    const ggml_tensor * head;
    const ggml_tensor * bias;
    head_tail tail;
    bool has_product = false;
};

}  // namespace

head_tail read_head_tail(ggml_cgraph * graph, const ggml_tensor * hidden, const ggml_tensor * head,
                         const ggml_tensor * bias) {
    const int n = ggml_graph_n_nodes(graph);
    int first = n;
    while (hidden && first > 0 && ggml_graph_node(graph, first - 1) != hidden) {
        --first;
    }
    if (!hidden || first == 0) {
        throw std::runtime_error("the graph of this model has no final hidden state");
    }
    tail_reader reader(hidden, head, bias);
    for (int i = first; i < n; ++i) {
        reader.take(ggml_graph_node(graph, i));
    }
    return reader.result();
}

void drop_last_nodes(ggml_cgraph * graph, int n) {
    GGML_ASSERT(n >= 0 && n <= graph->n_nodes);
    graph->n_nodes -= n;
}

}  // namespace qcls
