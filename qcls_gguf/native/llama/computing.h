#ifndef QCLS_COMPUTING_H
#define QCLS_COMPUTING_H

namespace qcls {

// While one of these lives, this thread computes a graph, and is_computing() of qcls_llama.h returns true.
struct computing_scope {
    computing_scope();
    ~computing_scope();
};

}  // namespace qcls

#endif
