// What this project's code in the CPU backend offers to other libraries.
#ifndef QCLS_CPU_FUNCTIONS_H
#define QCLS_CPU_FUNCTIONS_H

#include <cstddef>
#include <cstdint>

// A function that ggml_backend_reg_get_proc_address() of the CPU finds by its name; NULL: another one. "qcls_attend" is
// in attention.h, the others are below.
extern "C" void * qcls_cpu_function(const char * name);

// "qcls_multiply_registers": multiplies n times by what the products of a ggml type multiply by, on registers alone.
// Returns the operations that this is, a multiplication and an addition being two; 0: no such products.
using qcls_multiply_registers_fn = double (*)(const char * type, int64_t n);

// "qcls_read_memory": reads n_bytes once. Returns something that depends on all of them.
using qcls_read_memory_fn = uint64_t (*)(const void * memory, size_t n_bytes);

// "qcls_set_activations": quantised weights that this thread loads from now on are multiplied with activations of this
// precision, numbered as qcls::precision is.
using qcls_set_activations_fn = void (*)(int32_t precision);

#endif
