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

// Reads the tail from the nodes after `hidden`. head: [n_embd, n_vocab]; bias: [n_vocab] or NULL. Throws
// std::runtime_error with the name of the first node that does not belong to such a tail.
head_tail read_head_tail(ggml_cgraph * graph, const ggml_tensor * hidden, const ggml_tensor * head,
                         const ggml_tensor * bias);

// Ends a model's graph at its hidden state, at the output of a lower layer, or, with label tokens, at their logits
// (outputs.cpp). Throws as read_head_tail does, and if a layer's output is not found.
void end_at_hidden_state(const llm_graph_context & graph, const llm_graph_params & params, const ggml_tensor * head,
                         const ggml_tensor * bias);

// With how many layers a graph that ends after `end` layers is built: for most architectures `end` (models.cpp). arch:
// an llm_arch.
uint32_t n_layers_built(const llama_hparams & hparams, int arch, int32_t end);

// For a model of which this thread loads only the first layers. leave_out_layers() reduces the number of layers in the
// hyperparameters after they were read. instead_of_head() returns the token embedding in place of the head's matrix,
// which the graph refers to but never computes with, and NULL for every other tensor.
void leave_out_layers(llama_model & model);
ggml_tensor * instead_of_head(const llama_model & model, const std::string & name, std::initializer_list<int64_t> ne,
                              int flags);

// Whether the model is a decision model with a pointer head: tensors that compare hidden states, which the package reads
// and the graph does not contain. Its hidden states are as long as its residual stream, whatever the file says of the
// head.
bool has_pointer_head(const llama_model & model);

// Removes the last n nodes of a graph.
void drop_last_nodes(ggml_cgraph * graph, int n);

}  // namespace qcls

#endif
