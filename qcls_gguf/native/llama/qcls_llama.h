// What this project adds to libllama, for the shim: declared here instead of in llama.h, which stays as it is.
#ifndef QCLS_LLAMA_H
#define QCLS_LLAMA_H

#include "head_tail.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace qcls {

// --- what a context gives for a token (outputs.cpp) -----------------------------------------------------------------
// A function that sets something returns false on failure, and the reason is in llama.cpp's log.

// Ends the graph at the final-norm hidden state of the tokens flagged as outputs: no LM head, no logits buffer.
// llama_get_embeddings() then returns [n_outputs][n_embd] in batch order, llama_get_logits() NULL. On failure the
// context can only be freed: its logits cannot be computed from hidden states, head rows and head_tail_of().
LLAMA_API bool set_hidden_only(llama_context * ctx);

// How hidden states of a hidden-only context become logits.
LLAMA_API head_tail head_tail_of(const llama_context * ctx);

// In a hidden-only context, also computes, for every hidden state, the logits of some tokens and the log-sum-exp over
// the vocabulary, from the LM head's own product on its device; only these few floats are copied to the host. An empty
// list switches this off.
LLAMA_API bool set_label_tokens(llama_context * ctx, const std::vector<llama_token> & tokens);

// In a hidden-only context, also returns, for every hidden state, the residual stream after each of these numbers of
// layers, from 1 to one less than the model has. end: if above 0, the graph ends after so many layers, more than any of
// `depths`, and the hidden state is the residual stream there; the layers above are not computed and write no cells.
LLAMA_API bool set_depths(llama_context * ctx, const std::vector<int32_t> & depths, int32_t end);

// The additional floats of each output, in batch order: [n_depths][n_embd] residual streams, then, with label tokens,
// their logits and the log-sum-exp. Waits for the decode.
LLAMA_API const float * beside_of(llama_context * ctx);

// --- graphs (shapes.cpp, computing.cpp) -----------------------------------------------------------------------------

// Keeps the graphs of the last n shapes of batch that had outputs, each with its compute buffers, besides llama.cpp's
// own graph, which serves one shape at a time. 0 switches this off and frees the graphs.
LLAMA_API bool set_n_shapes(llama_context * ctx, size_t n);

// How many shapes are kept. bytes: the size of their compute buffers on all devices.
LLAMA_API size_t n_shapes_of(const llama_context * ctx, size_t & bytes);

// Whether this thread is computing a graph now. It must not throw then: the other threads that compute the graph would
// wait for it forever.
LLAMA_API bool is_computing();

// --- attention (visible_cache.cpp, batch_invariant.cpp) -------------------------------------------------------------

// NULL if the context's attention reads only the cells that a token may see, otherwise the reason why it does not.
LLAMA_API const char * why_no_visible_cells(const llama_context * ctx);

// Makes contexts that this thread opens from now on batch-invariant: a token's row does not depend on what else is in
// its batch. This holds if all layers are on CUDA devices and attention reads visible cells. Returns false if this
// build has no CUDA backend.
LLAMA_API bool set_batch_invariant(bool on);

// --- recurrent layers (tree_walk.cpp) -------------------------------------------------------------------------------

// Whether contexts of a hybrid can compute a token tree in one pass: on CPUs and CUDA devices, unless the environment
// variable QCLS_TREE_WALK is 0.
LLAMA_API bool walks_trees(const llama_model * model);

// Whether the next batches of such a context are computed so. Their sequences keep the states that they have, and their new
// cells are to be removed afterwards.
LLAMA_API void walk_trees(llama_context * ctx, bool on);

// Makes contexts that this thread opens from now on allocate states for n of their sequences, because no others write
// any; 0: for all. A decode that writes the states of more sequences fails.
LLAMA_API void set_n_with_states(int32_t n);

// --- models and vocabularies (models.cpp) ---------------------------------------------------------------------------

// Of models that this thread loads from now on, loads only the first n layers, or the few more that their graphs need,
// and not the LM head's matrix; 0: the whole model. Some architectures are loaded whole nevertheless. set_depths() must
// then end graphs at a loaded layer.
LLAMA_API void load_first_layers(int32_t n);

// How many layers of a model were not loaded.
LLAMA_API int32_t n_layers_left_out(const llama_model * model);

// The bytes of the state that a model's recurrent layers keep for one sequence; 0 if it has none.
LLAMA_API uint64_t state_size(const llama_model * model);

// Puts matrices of a loaded model into the order in which the direct matrix kernels load them: matrices that lie on
// CUDA devices and that only products read. Returns how many. No context of the model may compute meanwhile. wish: "0"
// for none, NULL to let the device decide (shared/lane_order.h), anything else for all of them.
LLAMA_API int32_t put_into_lane_order(llama_model * model, const char * wish);

// Like llama_tokenize with add_special and parse_special false, but user-defined tokens stay text, too, except those
// that consist of white space.
LLAMA_API int32_t tokenize_plain(const llama_vocab * vocab, const char * text, int32_t n_bytes, llama_token * token,
                                 int32_t capacity);

}  // namespace qcls

#endif
