// Contexts in which a token's result does not depend on what else a decode holds: the part of libllama.
#ifndef QCLS_BATCH_INVARIANT_H
#define QCLS_BATCH_INVARIANT_H

namespace qcls {

// Whether the contexts that this thread makes now are such, by set_batch_invariant() of qcls_llama.h.
bool is_batch_invariant();

}  // namespace qcls

#endif
