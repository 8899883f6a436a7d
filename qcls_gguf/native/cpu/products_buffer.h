// The buffer type of weights that this project's products compute with.
#ifndef QCLS_PRODUCTS_BUFFER_H
#define QCLS_PRODUCTS_BUFFER_H

#include "ggml-backend.h"

namespace qcls {

// NULL where there are no such products for this processor. Models that are loaded while QCLS_CPU_PRODUCTS is 0 do not
// use it.
ggml_backend_buffer_type_t products_buffer_type();

// See cpu_functions.h.
void set_activations(int32_t precision);

}  // namespace qcls

#endif
