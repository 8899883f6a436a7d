// A counter and settings of the CUDA backend for other libraries, and the functions that it exports by name.
#include "qcls_cuda.h"

#include <atomic>
#include <cstring>

static thread_local bool is_batch_invariant = false;
static std::atomic<int64_t> n_graph_launches{0};

static void set_batch_invariant(const bool on) {
    is_batch_invariant = on;
}

bool ggml_cuda_batch_invariant() {
    return is_batch_invariant;
}

static int64_t count_of_graph_launches() {
    return n_graph_launches.load(std::memory_order_relaxed);
}

void qcls_count_graph_launch() {
    n_graph_launches.fetch_add(1, std::memory_order_relaxed);
}

bool qcls_supports_custom(const int device, const ggml_tensor * node) {
    return ggml_cuda_attend_supported(device, node) || qcls_walk_supported(node);
}

void qcls_compute_custom(ggml_backend_cuda_context & ctx, ggml_tensor * node) {
    if (qcls_walk_supported(node)) {
        qcls_walk(ctx, node);
    } else {
        ggml_cuda_attend(ctx, node);
    }
}

void * qcls_cuda_function(const char * name) {
    static const struct {
        const char * name;
        void * function;
    } functions[] = {
        {"qcls_attend_node", (void *) qcls_attend_node},
        {"qcls_n_graph_launches", (void *) count_of_graph_launches},
        {"qcls_put_into_lane_order", (void *) qcls_put_into_lane_order},
        {"qcls_set_batch_invariant", (void *) set_batch_invariant},
        {"qcls_tree_convolution", (void *) qcls_tree_convolution},
        {"qcls_tree_delta_net", (void *) qcls_tree_delta_net},
        {"qcls_tree_scan", (void *) qcls_tree_scan},
    };
    for (const auto & exported : functions) {
        if (strcmp(name, exported.name) == 0) {
            return exported.function;
        }
    }
    return nullptr;
}
