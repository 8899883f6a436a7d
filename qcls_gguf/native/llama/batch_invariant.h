// libllama's part of batch-invariant contexts, in which a token's result does not depend on what else a decode holds.
#ifndef QCLS_BATCH_INVARIANT_H
#define QCLS_BATCH_INVARIANT_H

namespace qcls {

// Whether contexts that this thread makes now are batch-invariant: see set_batch_invariant() in qcls_llama.h.
bool is_batch_invariant();

}  // namespace qcls

#endif
