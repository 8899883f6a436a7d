// Steps of the direct matrix kernels, read from the environment when a context is made: "0" turns a step off, any other
// value turns it on. Without a variable a step is on, except the steps whose default depends on the device.
#pragma once

#include <cstdlib>
#include <string>

// Whether this thread makes contexts in which a token's result does not depend on what else a decode holds.
bool ggml_cuda_batch_invariant();

struct ggml_cuda_mmq_direct_steps {
    enum choice { OFF, ON, BY_DEVICE };
    static choice chosen(const char * name) {
        const char * value = getenv(name);
        return value == nullptr ? BY_DEVICE : std::string(value) == "0" ? OFF : ON;
    }
    const choice direct        = chosen("QCLS_MMQ_DIRECT");
    const bool quantize_once   = chosen("QCLS_QUANTIZE_ONCE") != OFF;
    const bool fuse_matrices   = chosen("QCLS_FUSE_MATRICES") != OFF;
    const bool fuse_glu        = chosen("QCLS_FUSE_GLU") != OFF;
    const bool fuse_norm       = chosen("QCLS_FUSE_NORM") != OFF;
    const bool fuse_rope       = chosen("QCLS_FUSE_ROPE") != OFF;
    const choice short_loops   = chosen("QCLS_SHORT_LOOPS");
    const bool batch_invariant = ggml_cuda_batch_invariant();
};
