#include "cpu_functions.h"

#include "attention.h"
#include "products.h"
#include "products_buffer.h"
#include "tree_walk.h"

#include <cstring>

namespace {

double multiply_registers(const char * type, int64_t n) {
    if (const qcls::product_kernels * kernels = qcls_product_kernels(type)) {
        return kernels->multiply_registers(n);
    }
    const qcls::float_kernels * kernels = qcls_float_kernels(type);
    return kernels ? kernels->multiply_registers(n) : 0;
}

uint64_t read_memory(const void * memory, size_t n_bytes) {
    const uint64_t * words = (const uint64_t *) memory;
    uint64_t sum = 0;
    for (size_t i = 0; i < n_bytes / sizeof(uint64_t); ++i) {
        sum += words[i];
    }
    return sum;
}

}  // namespace

extern "C" void * qcls_cpu_function(const char * name) {
    if (strcmp(name, "qcls_attend") == 0) {
        return (void *) qcls_attend;
    }
    if (strcmp(name, "qcls_multiply_registers") == 0) {
        return (void *) (qcls_multiply_registers_fn) multiply_registers;
    }
    if (strcmp(name, "qcls_set_activations") == 0) {
        return (void *) (qcls_set_activations_fn) qcls::set_activations;
    }
    if (strcmp(name, "qcls_has_tiles") == 0) {
        return (void *) (qcls_has_tiles_fn) qcls_has_tiles;
    }
    if (strcmp(name, "qcls_read_memory") == 0) {
        return (void *) (qcls_read_memory_fn) read_memory;
    }
    return (void *) qcls::tree_operation(name);
}
