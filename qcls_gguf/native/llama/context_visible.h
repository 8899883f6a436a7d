// Whether a context of llama.cpp can have attention that reads only the cells that a token may see.
#ifndef QCLS_CONTEXT_VISIBLE_H
#define QCLS_CONTEXT_VISIBLE_H

struct llama_context_params;
struct llama_cparams;
struct llama_memory_i;
struct llama_model;

namespace qcls {

// What such attention would leave out, otherwise that it was not asked for; NULL where nothing is in its way.
const char * why_no_visible_cells(const llama_model & model, const llama_context_params & params,
                                  const llama_cparams & cparams);

// Lets the caches of a context list what tokens see; false where they are of another kind.
bool list_visible_cells(llama_memory_i * memory);

}  // namespace qcls

#endif
