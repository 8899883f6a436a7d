// The tail of a model: the operations of its graph between the final hidden state and the logits.
#ifndef QCLS_HEAD_TAIL_H
#define QCLS_HEAD_TAIL_H

#include <cstdint>
#include <initializer_list>
#include <string>

struct ggml_cgraph;
struct ggml_tensor;
struct llama_hparams;
struct llama_model;
struct llm_graph_context;
struct llm_graph_params;

namespace qcls {

// With h the final-norm hidden state, w the head's row of a token and b its bias (0 where there is none), and
// y = (h * w + b) * scale, the token's logit is y, or cap * tanh(y) where cap is not 0.
struct head_tail {
    float scale = 1.0f;
    float cap = 0.0f;
    bool has_bias = false;
    int n_nodes = 0;  // of the graph, at its end
};

// Reads the tail from the nodes after `hidden`, which must be all that follows it. head: [n_embd, n_vocab]; bias:
// [n_vocab] or NULL. Throws std::runtime_error with the name of the node that such a tail does not have.
head_tail read_head_tail(ggml_cgraph * graph, const ggml_tensor * hidden, const ggml_tensor * head,
                         const ggml_tensor * bias);

// Ends a model's graph at its hidden state, at that of a lower layer, or, with label tokens, at their logits
// (outputs.cpp). Throws as read_head_tail, and where a layer's output is not found.
void end_at_hidden_state(const llm_graph_context & graph, const llm_graph_params & params, const ggml_tensor * head,
                         const ggml_tensor * bias);

// How many of a model's layers a graph that ends after `end` layers is built with: mostly so many (models.cpp). arch: an
// llm_arch.
uint32_t n_layers_built(const llama_hparams & hparams, int arch, int32_t end);

// While a model is loaded of which this thread wants the first layers only: lets its hyperparameters, once they are read,
// count no others, and gives the token embedding in place of the head's matrix, which its graph needs but never computes
// with. NULL for every other tensor.
void leave_out_layers(llama_model & model);
ggml_tensor * instead_of_head(const llama_model & model, const std::string & name, std::initializer_list<int64_t> ne,
                              int flags);

// Whether a decision model compares hidden states by tensors of its own, which its graph lacks: the package reads them. Its
// hidden states are then as long as its residual stream, whatever the file says of that head.
bool has_pointer_head(const llama_model & model);

// Takes the last n nodes off a graph.
void drop_last_nodes(ggml_cgraph * graph, int n);

}  // namespace qcls

#endif
