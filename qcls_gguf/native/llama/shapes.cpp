// The graphs that a context keeps, one for each shape of batch (patches/0003-shapes.patch), and whether this thread is
// computing one (patches/0011-graph-memory.patch).
#include "computing.h"
#include "qcls_llama.h"

#include "llama-context.h"
#include "llama-model.h"

#include <algorithm>

namespace {

// On a CPU, where a new graph costs 2 % of a request, what the compute buffers of kept graphs may take before another
// one; and the graphs that are kept whatever they take.
constexpr size_t MOST_BYTES_ON_CPU = 128 << 20;
constexpr size_t LEAST_SHAPES = 2;

}  // namespace

void llama_context::set_n_shapes(size_t n) {
    shapes_clear();
    n_shapes = n;
}

size_t llama_context::get_n_shapes(size_t & size) const {
    size = 0;
    size_t n = 0;
    for (const auto & kept : shapes) {
        // while a shape is current, its scheduler and the context's are swapped
        const auto & used = (int) (&kept - shapes.data()) == shape_current ? sched : kept.sched;
        for (auto * backend : backend_ptrs) {
            size += ggml_backend_sched_get_buffer_size(used.get(), backend);
        }
        n += kept.used > 0;
    }
    return n;
}

// Makes the shape with these parameters current and returns true. If there is none, makes a new shape or the least
// recently used one current and returns false: the caller must build its graph.
bool llama_context::shape_enter(const llm_graph_params & params) {
    for (size_t i = 0; i < shapes.size(); ++i) {
        if (shapes[i].used > 0 && shapes[i].res->can_reuse(params)) {
            shapes[i].used = ++n_shape_uses;
            shape_current = (int) i;
            std::swap(sched, shapes[i].sched);
            return true;
        }
    }
    const auto find_oldest = [this] {
        const auto is_older = [](const shape & a, const shape & b) { return a.used < b.used; };
        return (size_t) (std::min_element(shapes.begin(), shapes.end(), is_older) - shapes.begin());
    };
    size_t size = 0;
    while (model.n_gpu_layers() == 0 && get_n_shapes(size) > LEAST_SHAPES && size > MOST_BYTES_ON_CPU) {
        shapes.erase(shapes.begin() + (ptrdiff_t) find_oldest());
    }
    size_t oldest = find_oldest();
    if (shapes.size() < n_shapes && (shapes.empty() || shapes[oldest].used > 0)) {
        oldest = shapes.size();
        shape added;
        added.res.reset(new llm_graph_result(gf_res_reserve->get_max_nodes()));
        added.sched.reset(ggml_backend_sched_new(backend_ptrs.data(), backend_buft.data(), backend_ptrs.size(),
                                                 gf_res_reserve->get_max_nodes(), cparams.pipeline_parallel,
                                                 cparams.op_offload));
        shapes.push_back(std::move(added));
    }
    shapes[oldest].used = 0;  // it counts as unused until its graph is built and allocated
    shape_current = (int) oldest;
    std::swap(sched, shapes[oldest].sched);
    return false;
}

void llama_context::shape_leave() {
    if (shape_current >= 0) {
        std::swap(sched, shapes[shape_current].sched);
        shape_current = -1;
    }
}

void llama_context::shapes_clear() {
    if (shapes.empty()) {
        return;
    }
    synchronize();
    shape_leave();
    shapes.clear();
}

namespace qcls {
namespace {

thread_local bool computing = false;

}  // namespace

computing_scope::computing_scope() {
    computing = true;
}

computing_scope::~computing_scope() {
    computing = false;
}

bool is_computing() {
    return computing;
}

}  // namespace qcls
