// Operations of recurrent layers that walk a token tree.
#ifndef QCLS_CPU_TREE_WALK_H
#define QCLS_CPU_TREE_WALK_H

#include "ggml.h"

namespace qcls {

// "qcls_tree_convolution", "qcls_tree_delta_net" or "qcls_tree_scan"; NULL: another name.
ggml_custom_op_t tree_operation(const char * name);

}  // namespace qcls

#endif
