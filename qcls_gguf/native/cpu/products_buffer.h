// The buffer type for quantised weights that are laid out for this project's products.
#ifndef QCLS_PRODUCTS_BUFFER_H
#define QCLS_PRODUCTS_BUFFER_H

#include "ggml-backend.h"

namespace qcls {

// NULL if there are no such products for this processor. Models that are loaded while QCLS_CPU_PRODUCTS is 0 do not use
// the buffer type.
ggml_backend_buffer_type_t products_buffer_type();

// "qcls_set_activations" of cpu_functions.h.
void set_activations(int32_t precision);

}  // namespace qcls

#endif
