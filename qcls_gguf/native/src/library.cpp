// What the library was built from; CMakeLists.txt defines the names for this file alone.
#include "shim.h"

int32_t qcls_abi(void) {
    return QCLS_ABI;
}

int32_t qcls_library_describe(qcls_library * library, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        given(library, "library") = {QCLS_LLAMA_COMMIT, QCLS_LLAMA_VERSION, QCLS_SOURCE_DIGEST, QCLS_BACKEND,
                                     (int32_t) llama_max_parallel_sequences()};
    });
}
