// Whether a context of llama.cpp can have attention that reads only the cells that a token may see.
#ifndef QCLS_CONTEXT_VISIBLE_H
#define QCLS_CONTEXT_VISIBLE_H

struct llama_context_params;
struct llama_cparams;
struct llama_memory_i;
struct llama_model;

namespace qcls {

// Why a context cannot have such attention, or that the caller did not ask for it; NULL if it can.
const char * why_no_visible_cells(const llama_model & model, const llama_context_params & params,
                                  const llama_cparams & cparams);

// Makes the caches of a context list the cells that each token sees; false if they are of a kind that cannot.
bool list_visible_cells(llama_memory_i * memory);

}  // namespace qcls

#endif
