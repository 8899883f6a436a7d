// How the direct matrix kernels take part in the evaluation of a graph; mmq_direct.cuh says what they compute.
#pragma once

#include "mmq_layout.cuh"

#include <vector>

// Whether contexts with these steps have the kernels on a device.
bool ggml_cuda_mmq_direct_is_on(const ggml_cuda_mmq_direct_steps & steps, int device);

// Whether the kernels can read a matrix of weights, whatever the product.
bool ggml_cuda_mmq_direct_takes(const ggml_tensor * x);

// One evaluation of a graph; compute() is called for its nodes in order.
class ggml_cuda_mmq_direct_graph {
  public:
    ggml_cuda_mmq_direct_graph(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph);

    // Returns whether node i has been computed, by this call or an earlier one. If not, the caller must compute it.
    bool compute(int i);

  private:
    bool compute_directly(int i);

    struct norm_nodes {
        const ggml_tensor * sum;  // null: there is no sum; the norm's input is computed already
        const ggml_tensor * norm;
        const ggml_tensor * weight;
        int mul;
        int product;
    };

    int64_t n_tiles_at_most(const ggml_tensor * x, int64_t n_cols) const;
    bool can_compute(const ggml_tensor * node) const;
    ggml_type type_of(int i) const { return graph_->nodes[i]->src[0]->type; }
    bool has_layout_of(int i, ggml_type type) const;
    std::vector<int> companions(int i) const;
    bool is_glu(int i) const;
    bool find_norm(int i, norm_nodes & found) const;
    void multiply_all(int first, const std::vector<int> & nodes, const std::vector<ggml_type> & types, const norm_nodes * norm,
        bool glu);

    ggml_backend_cuda_context & ctx_;
    const ggml_cgraph * graph_;
    const ggml_cuda_mmq_direct_steps & steps_;
    const mmq_direct::generation generation_;
    bool usable_;
    std::vector<int> done_;  // nodes computed ahead of their turn
};
