// Quantised weights are laid out when they are put into a buffer of this type; float weights stay in the buffer that
// they are in. The products of both are computed when ggml asks its extra buffer types.
#include "products_buffer.h"

#include "products.h"
#include "rotations.h"
#include "share.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "traits.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace qcls {
namespace {

constexpr size_t alignment = 64;
constexpr int64_t piece_products = 1 << 19;  // that a thread takes at a time, some 10 microseconds

// The kernels for a matrix, or for the matrices of a layer's experts; NULL if there are none.
const product_kernels * kernels_of(const ggml_tensor * weights) {
    const product_kernels * kernels = qcls_product_kernels(ggml_type_name(weights->type));
    const bool fits = kernels && ggml_is_contiguous(weights) && weights->ne[3] == 1 &&
        weights->ne[0] % kernels->value_multiple == 0 && weights->ne[1] % kernels->row_multiple == 0;
    return fits ? kernels : nullptr;
}

// The bytes of one matrix. The matrices of experts follow each other.
size_t matrix_size(const product_kernels & kernels, const ggml_tensor * weights) {
    return GGML_PAD(kernels.size(weights->ne[1], weights->ne[0]), alignment);
}

// The bytes of so many columns, as long as those of x, with what aligned() skips.
size_t activations_size(const ggml_tensor * x, int64_t n_columns) {
    return x->ne[0] / 32 * n_columns * activation_bytes + alignment;
}

char * aligned(void * memory) { return (char *) GGML_PAD((uintptr_t) memory, alignment); }

const float * row_of(const ggml_tensor * x, int64_t i) {
    const int64_t i1 = i % x->ne[1];
    const int64_t i2 = i / x->ne[1] % x->ne[2];
    const int64_t i3 = i / x->ne[1] / x->ne[2];
    return (const float *) ((const char *) x->data + i1 * x->nb[1] + i2 * x->nb[2] + i3 * x->nb[3]);
}

// The precision for weights that this thread loads. A tensor's `extra` points to its own in `precisions`.
thread_local precision loading = precision::usual;
precision precisions[] = {precision::usual, precision::fast, precision::fine, precision::tiles};

// Quantises this thread's share of the columns, consecutive ones: blocks of neighbours share cache lines, and ggml's
// operations divide rows the same way, so that a thread reads what it wrote.
void quantise_share(const product_kernels & kernels, const ggml_tensor * x, precision wanted, int i_thread,
    int n_threads, void * out) {
    const int64_t n_columns = ggml_nrows(x);
    const share columns(n_columns, i_thread, n_threads);
    for (int64_t c = columns.begin; c < columns.end; ++c) {
        kernels.quantise(row_of(x, c), x->ne[0], wanted, out, c, n_columns);
    }
}

bool is_here(const ggml_tensor * weights) {
    return weights->buffer && weights->buffer->buft == products_buffer_type();
}

bool is_switched_off() {
    const char * value = getenv("QCLS_CPU_PRODUCTS");
    return value && strcmp(value, "0") == 0;
}

// For operations that do not depend on how a model was loaded. The variable is read once per process.
bool are_off() {
    static const bool are = is_switched_off();
    return are;
}

// The kernels for weights that are floats; NULL if the operation is not a product with a model's matrix, or not one
// that they compute.
const float_kernels * float_kernels_of(const ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * x = op->src[1];
    const bool fits = !are_off() && op->op == GGML_OP_MUL_MAT && ggml_get_op_params_i32(op, 1) == GGML_HINT_NONE &&
        weights->buffer && ggml_backend_buffer_get_usage(weights->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
        ggml_is_contiguous(weights) && weights->ne[2] * weights->ne[3] == 1 && x->type == GGML_TYPE_F32 &&
        x->nb[0] == sizeof(float) && ggml_is_contiguous(op);
    return fits ? qcls_float_kernels(ggml_type_name(weights->type)) : nullptr;
}

// Waits for all threads, then calls compute(first, end) for the rows of a matrix, a multiple of `step` at a time. A
// thread that is free takes the next rows; results do not depend on how rows are divided.
template <typename F>
void in_pieces(const ggml_compute_params * params, int64_t n_rows, int64_t step, int64_t row_products, F && compute) {
    const int64_t n_steps = std::max<int64_t>(1, piece_products / (step * row_products));
    const int64_t n_piece_rows = step * (params->nth == 1 ? n_rows / step + 1 : n_steps);
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, 0);
    }
    ggml_barrier(params->threadpool);
    for (;;) {
        const int64_t first = ggml_threadpool_chunk_add(params->threadpool, 1) * n_piece_rows;
        if (first >= n_rows) {
            return;
        }
        compute(first, std::min(n_rows, first + n_piece_rows));
    }
}

class float_traits : public ggml::cpu::tensor_traits {
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = float_kernels_of(op)->packed_size(op->src[0]->ne[0], ggml_nrows(op->src[1]));
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        const ggml_tensor * x = op->src[1];
        const float_kernels * kernels = float_kernels_of(op);
        const int64_t n_values = weights->ne[0];
        const int64_t n_rows = weights->ne[1];
        const int64_t n_columns = ggml_nrows(x);
        float * packed = (float *) params->wdata;
        GGML_ASSERT(params->wsize >= kernels->packed_size(n_values, n_columns));

        const ggml_tensor * before = params->before;
        if (!before || before->src[1] != x || float_kernels_of(before) != kernels) {
            const share columns(n_columns, params->ith, params->nth);
            for (int64_t c = columns.begin; c < columns.end; ++c) {
                kernels->pack(row_of(x, c), n_values, packed + c * kernels->vector_floats, n_columns);
            }
        }
        in_pieces(params, n_rows, kernels->row_multiple, n_values * n_columns, [&](int64_t first, int64_t end) {
            kernels->multiply(weights->data, n_values, first, end, packed, n_columns, (float *) op->data, n_rows);
        });
        return true;
    }
};

class products_traits : public ggml::cpu::tensor_traits {
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = activations_size(op->src[1], ggml_nrows(op->src[1]));
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        const ggml_tensor * x = op->src[1];
        const product_kernels * kernels = kernels_of(weights);
        GGML_ASSERT(kernels && !weights->view_src && x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float));
        GGML_ASSERT(ggml_is_contiguous(op));
        const int64_t n_values = weights->ne[0];
        const int64_t n_rows = weights->ne[1];
        const int64_t n_columns = ggml_nrows(x);
        char * activations = aligned(params->wdata);
        GGML_ASSERT(params->wsize >= activations_size(x, n_columns));
        const precision of = *(const precision *) weights->extra;

        // a product of the same activations, such as that of Q before K, has left them quantised
        const ggml_tensor * before = params->before;
        if (!before || before->op != GGML_OP_MUL_MAT || before->src[1] != x || !is_here(before->src[0])) {
            quantise_share(*kernels, x, of, params->ith, params->nth, activations);
        }
        in_pieces(params, n_rows, 2 * kernels->row_multiple, n_values * n_columns, [&](int64_t first, int64_t end) {
            kernels->multiply((const uint8_t *) weights->data, n_rows, n_values, first, end, of, activations, n_columns,
                (float *) op->data, n_rows);
        });
        return true;
    }
};

// The result of a product with experts has a column for each pair of a token and an expert that it chose. Work memory
// holds, ordered by expert, the numbers of these columns, their quantised activations, and their products.
class experts_traits : public ggml::cpu::tensor_traits {
    static int64_t n_columns(const ggml_tensor * op) { return ggml_nrows(op); }
    static int64_t n_numbers(const ggml_tensor * op) { return op->src[0]->ne[2] + 1 + n_columns(op); }

    static int32_t expert_of(const ggml_tensor * op, int64_t column) {
        const ggml_tensor * chosen = op->src[2];
        const int64_t at = column / op->ne[1] * chosen->nb[1] + column % op->ne[1] * chosen->nb[0];
        const int32_t expert = *(const int32_t *) ((const char *) chosen->data + at);
        GGML_ASSERT(expert >= 0 && expert < op->src[0]->ne[2]);
        return expert;
    }

    // Lists the columns by expert: those of expert e begin at columns[starts[e]].
    static void sort(const ggml_tensor * op, int64_t * starts, int64_t * columns) {
        const int64_t n_experts = op->src[0]->ne[2];
        std::fill(starts, starts + n_experts + 1, 0);
        for (int64_t c = 0; c < n_columns(op); ++c) {
            starts[expert_of(op, c)] += 1;
        }
        for (int64_t e = 0; e < n_experts; ++e) {
            starts[e + 1] += starts[e];
        }
        for (int64_t c = n_columns(op) - 1; c >= 0; --c) {
            columns[--starts[expert_of(op, c)]] = c;
        }
    }

    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = n_numbers(op) * sizeof(int64_t) + activations_size(op->src[1], n_columns(op)) + ggml_nbytes(op);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        const ggml_tensor * x = op->src[1];
        const product_kernels * kernels = kernels_of(weights);
        GGML_ASSERT(kernels && !weights->view_src && x->nb[0] == sizeof(float) && ggml_is_contiguous(op));
        const int64_t n_values = weights->ne[0];
        const int64_t n_rows = weights->ne[1];
        const int64_t n_experts = weights->ne[2];
        int64_t * starts = (int64_t *) params->wdata;
        int64_t * columns = starts + n_experts + 1;
        char * activations = aligned(columns + n_columns(op));
        const int64_t column_bytes = n_values / 32 * activation_bytes;
        float * products = (float *) (activations + n_columns(op) * column_bytes);
        GGML_ASSERT((char *) products + ggml_nbytes(op) <= (char *) params->wdata + params->wsize);

        const precision of = *(const precision *) weights->extra;
        const ggml_tensor * before = params->before;
        if (!before || before->op != GGML_OP_MUL_MAT_ID || before->src[1] != x || before->src[2] != op->src[2] ||
            !is_here(before->src[0])) {
            if (params->ith == 0) {
                sort(op, starts, columns);
            }
            ggml_barrier(params->threadpool);
            const share places(n_columns(op), params->ith, params->nth);
            for (int64_t i = places.begin; i < places.end; ++i) {
                const int64_t * start = starts + expert_of(op, columns[i]);
                const int64_t n = start[1] - start[0];
                const int64_t row = columns[i] / op->ne[1] * x->ne[1] + columns[i] % op->ne[1] % x->ne[1];
                kernels->quantise(row_of(x, row), n_values, of, activations + start[0] * column_bytes, i - start[0], n);
            }
        }
        const int64_t n_usual = std::max<int64_t>(1, n_columns(op) / n_experts);
        in_pieces(params, n_rows * n_experts, kernels->row_multiple, n_values * n_usual, [&](int64_t at, int64_t end) {
            for (int64_t next; at < end; at = next) {
                const int64_t e = at / n_rows;
                const int64_t first = at % n_rows;
                next = std::min(end, (e + 1) * n_rows);
                const int64_t n = starts[e + 1] - starts[e];
                if (n == 0) {
                    continue;
                }
                const uint8_t * matrix = (const uint8_t *) weights->data + e * matrix_size(*kernels, weights);
                kernels->multiply(matrix, n_rows, n_values, first, first + next - at, of,
                    activations + starts[e] * column_bytes, n, products + starts[e] * n_rows, n_rows);
                for (int64_t i = starts[e]; i < starts[e + 1]; ++i) {
                    const float * found = products + i * n_rows + first;
                    std::copy(found, found + next - at, (float *) op->data + columns[i] * n_rows + first);
                }
            }
        });
        return true;
    }
};

class products_buffers : public ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        const ggml_tensor * x = op->src[1];
        const bool is_product = op->op == GGML_OP_MUL_MAT_ID || (op->op == GGML_OP_MUL_MAT && weights->ne[2] == 1);
        if (!is_product || !is_here(weights) || !kernels_of(weights)) {
            return false;
        }
        if (!weights->data && is_switched_off()) {  // a model that is being loaded asks before it allocates
            return false;
        }
        return x->type == GGML_TYPE_F32 && (!x->buffer || ggml_backend_buft_is_host(x->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op == GGML_OP_ROPE) {
            return are_off() ? nullptr : rotation_traits(op);
        }
        static products_traits of_layouts;
        static experts_traits of_experts;
        static float_traits of_floats;
        if (op->op == GGML_OP_MUL_MAT_ID) {
            return is_here(op->src[0]) ? &of_experts : nullptr;
        }
        if (op->op != GGML_OP_MUL_MAT) {
            return nullptr;
        }
        if (is_here(op->src[0])) {
            return &of_layouts;
        }
        return float_kernels_of(op) ? &of_floats : nullptr;
    }
};

void put(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    const product_kernels * kernels = kernels_of(tensor);
    GGML_ASSERT(kernels && offset == 0 && size == ggml_nbytes(tensor));
    for (int64_t i = 0; i < tensor->ne[2]; ++i) {
        kernels->lay_out((const uint8_t *) data + i * tensor->nb[2], tensor->ne[1], tensor->ne[0],
            (uint8_t *) tensor->data + i * matrix_size(*kernels, tensor));
    }
}

ggml_status take_precision(ggml_backend_buffer_t, ggml_tensor * tensor) {
    // README.md says what tiles cost with few columns; their error is smaller than that of `usual` on real activations
    const bool in_tiles = loading != precision::fine && qcls_has_tiles();
    tensor->extra = &precisions[(int) (in_tiles ? precision::tiles : loading)];
    return GGML_STATUS_SUCCESS;
}

const char * buffer_type_name(ggml_backend_buffer_type_t) { return "CPU_QCLS"; }

size_t buffer_alignment(ggml_backend_buffer_type_t) { return alignment; }

size_t size_of(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const product_kernels * kernels = kernels_of(tensor);
    return kernels ? tensor->ne[2] * matrix_size(*kernels, tensor) : ggml_nbytes(tensor);
}

ggml_backend_buffer_t allocated(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        buffer->buft = type;
        buffer->iface.init_tensor = take_precision;
        buffer->iface.set_tensor = put;
        buffer->iface.get_tensor = nullptr;
        buffer->iface.cpy_tensor = nullptr;
    }
    return buffer;
}

}  // namespace

void set_activations(int32_t wanted) { loading = precisions[wanted]; }

ggml_backend_buffer_type_t products_buffer_type() {
    static ggml_backend_buffer_type type = {
        /* .iface   = */ {buffer_type_name, allocated, buffer_alignment, /* .get_max_size = */ nullptr, size_of,
                          /* .is_host = */ nullptr},
        /* .device  = */ ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        /* .context = */ new products_buffers(),
    };
    return qcls_product_kernels("q8_0") ? &type : nullptr;
}

}  // namespace qcls
