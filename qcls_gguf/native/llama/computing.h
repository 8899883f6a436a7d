#ifndef QCLS_COMPUTING_H
#define QCLS_COMPUTING_H

namespace qcls {

// While one lives, this thread computes a graph: is_computing() of qcls_llama.h.
struct computing_scope {
    computing_scope();
    ~computing_scope();
};

}  // namespace qcls

#endif
