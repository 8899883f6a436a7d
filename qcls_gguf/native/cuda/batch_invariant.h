// Contexts in which a token's result does not depend on what else a decode holds: the part of libllama.
#ifndef QCLS_BATCH_INVARIANT_H
#define QCLS_BATCH_INVARIANT_H

namespace qcls {

// Whether the contexts that this thread makes from now on are such. False where no backend here can do its part.
bool set_batch_invariant(bool on);

bool is_batch_invariant();

}  // namespace qcls

#endif
