// What this project adds to libllama, for the shim: declared here instead of in llama.h, which stays as it is.
#ifndef QCLS_LLAMA_H
#define QCLS_LLAMA_H

#include "head_tail.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace qcls {

// --- what a context gives for a token (outputs.cpp) -----------------------------------------------------------------
// The functions that set something return false where llama.cpp logged why it cannot be done.

// Ends the graph at the final-norm hidden state of the tokens flagged as outputs: no LM head, no logits buffer.
// llama_get_embeddings() then returns [n_outputs][n_embd] in batch order, llama_get_logits() NULL. A context that returns
// false is fit only for llama_free(): its logits cannot be had from hidden states, head rows and head_tail_of().
LLAMA_API bool set_hidden_only(llama_context * ctx);

// How hidden states of a hidden-only context become logits.
LLAMA_API head_tail head_tail_of(const llama_context * ctx);

// In a hidden-only context, computes beside every hidden state the logits of some tokens and the log-sum-exp over the
// vocabulary, from the LM head's own product on its own device; only these few floats come back. No tokens end it.
LLAMA_API bool set_label_tokens(llama_context * ctx, const std::vector<llama_token> & tokens);

// In a hidden-only context, gives beside every hidden state the residual stream after each of some layers, counted from
// 1, below the last one. end: above 0, the graph ends after so many layers, more than any of those, and the hidden state
// is the residual stream there; the layers above are not computed, and write no cells.
LLAMA_API bool set_depths(llama_context * ctx, const std::vector<int32_t> & depths, int32_t end);

// In batch order, for each output: [n_depths][n_embd] residual streams; with label tokens their logits, then the
// log-sum-exp. Waits for the decode.
LLAMA_API const float * beside_of(llama_context * ctx);

// --- graphs (shapes.cpp, computing.cpp) -----------------------------------------------------------------------------

// Keeps the graphs of the last n shapes of batch that had outputs, each with its compute buffers, beside the stock graph,
// which is kept for one shape only. 0 ends it and frees them.
LLAMA_API bool set_n_shapes(llama_context * ctx, size_t n);

// How many shapes are kept. bytes: of their compute buffers, on all devices.
LLAMA_API size_t n_shapes_of(const llama_context * ctx, size_t & bytes);

// Whether this thread computes a graph now; other threads that compute it, too, would wait for it.
LLAMA_API bool is_computing();

// --- attention (visible_cache.cpp, batch_invariant.cpp) -------------------------------------------------------------

// NULL where the context's attention reads only the cells that a token may see, otherwise why it does not.
LLAMA_API const char * why_no_visible_cells(const llama_context * ctx);

// Contexts that this thread makes from now on compute a token's row in the same way whatever else is in its batch, where
// all layers are on CUDA devices and attention reads visible cells. Returns false where no backend here can do its part.
LLAMA_API bool set_batch_invariant(bool on);

// --- models and vocabularies (models.cpp) ---------------------------------------------------------------------------

// Of the models that this thread loads from now on, only the first n layers, or the few more that their graphs need,
// without the others and the LM head's matrix; 0: all. Some architectures are loaded whole. Graphs are to end among them.
LLAMA_API void load_first_layers(int32_t n);

// How many layers were left out.
LLAMA_API int32_t n_layers_left_out(const llama_model * model);

// Bytes of what the recurrent layers of a model keep of one sequence; 0 where it has none.
LLAMA_API uint64_t state_size(const llama_model * model);

// Puts those matrices of a loaded model that lie on CUDA devices, and that only products read, into the order in which
// the direct matrix kernels load them. Returns how many there are. No context may be at work on the model meanwhile.
// wish: "0" for none, NULL for what suits the device (shared/lane_order.h), else all of them.
LLAMA_API int32_t put_into_lane_order(llama_model * model, const char * wish);

// As llama_tokenize with add_special and parse_special false, and user-defined tokens stay text, too: only those of
// white space are found.
LLAMA_API int32_t tokenize_plain(const llama_vocab * vocab, const char * text, int32_t n_bytes, llama_token * token,
                                 int32_t capacity);

}  // namespace qcls

#endif
