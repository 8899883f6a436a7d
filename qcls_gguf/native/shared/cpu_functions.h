// The functions of this project's code in the CPU backend that other libraries call.
#ifndef QCLS_CPU_FUNCTIONS_H
#define QCLS_CPU_FUNCTIONS_H

#include <cstddef>
#include <cstdint>

// Gives ggml_backend_reg_get_proc_address() of the CPU backend a function by its name; NULL for any other name.
// "qcls_attend" is declared in attention.h, the others are below.
extern "C" void * qcls_cpu_function(const char * name);

// "qcls_multiply_registers": executes the instructions with which products of a ggml type multiply, n times, on
// registers alone. Returns the number of operations, where a multiplication and an addition count as two; 0 if there
// are no such products.
using qcls_multiply_registers_fn = double (*)(const char * type, int64_t n);

// "qcls_read_memory": reads n_bytes once. Returns a value that depends on all of them.
using qcls_read_memory_fn = uint64_t (*)(const void * memory, size_t n_bytes);

// "qcls_set_activations": sets the precision of the activations with which quantised weights that this thread loads
// from now on are multiplied: a number of qcls::precision.
using qcls_set_activations_fn = void (*)(int32_t precision);

// "qcls_has_tiles": whether products are computed in tiles of AMX, as far as they are not `fine`.
using qcls_has_tiles_fn = bool (*)();

#endif
