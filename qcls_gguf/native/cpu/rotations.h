// Rotations of queries and keys by their positions.
#ifndef QCLS_ROTATIONS_H
#define QCLS_ROTATIONS_H

#include "traits.h"

namespace qcls {

ggml::cpu::tensor_traits * rotation_traits(const ggml_tensor * op);  // NULL if ggml computes the rotation

}  // namespace qcls

#endif
