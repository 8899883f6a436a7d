// What the library was built from; CMakeLists.txt defines the names for this file alone.
#include "qcls.h"

int32_t qcls_abi(void) {
    return QCLS_ABI;
}

const char * qcls_build_info(void) {
    return QCLS_LLAMA_COMMIT "\t" QCLS_LLAMA_VERSION "\t" QCLS_SOURCE_DIGEST "\t" QCLS_BACKEND;
}
