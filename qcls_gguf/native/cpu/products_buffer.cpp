// Quantised weights are laid out when they are put into a buffer of this type. All are multiplied where ggml asks its extra
// buffer types, floats from the buffer that they are in.
#include "products_buffer.h"

#include "products.h"

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
constexpr int64_t piece_products = 1 << 19;  // that a thread takes at a time: some 10 microseconds

// The kernels for a matrix; NULL if there are none.
const product_kernels * kernels_of(const ggml_tensor * weights) {
    const product_kernels * kernels = qcls_product_kernels(ggml_type_name(weights->type));
    const bool fits = kernels && ggml_is_contiguous(weights) && weights->ne[2] * weights->ne[3] == 1 &&
        weights->ne[0] % kernels->value_multiple == 0 && weights->ne[1] % kernels->row_multiple == 0;
    return fits ? kernels : nullptr;
}

int64_t n_activations(const ggml_tensor * x) { return x->ne[0] / 32 * ggml_nrows(x); }

size_t activations_size(const ggml_tensor * x) { return 2 * n_activations(x) * sizeof(activation_block); }

const float * row_of(const ggml_tensor * x, int64_t i) {
    const int64_t i1 = i % x->ne[1];
    const int64_t i2 = i / x->ne[1] % x->ne[2];
    const int64_t i3 = i / x->ne[1] / x->ne[2];
    return (const float *) ((const char *) x->data + i1 * x->nb[1] + i2 * x->nb[2] + i3 * x->nb[3]);
}

// Of the weights that this thread loads. Weights refer to theirs.
thread_local precision loading = precision::usual;
precision precisions[] = {precision::usual, precision::fast, precision::fine};

// This thread's share of the columns.
void quantise_share(const product_kernels & kernels, const ggml_tensor * x, precision wanted, int i_thread,
    int n_threads, activation_block * out) {
    const int64_t n_columns = ggml_nrows(x);
    activation_block * rests = out + n_activations(x);
    for (int64_t c = i_thread; c < n_columns; c += n_threads) {
        kernels.quantise(row_of(x, c), x->ne[0], wanted, out + c, rests + c, n_columns);
    }
}

bool is_here(const ggml_tensor * weights) {
    return weights->buffer && weights->buffer->buft == products_buffer_type();
}

bool is_switched_off() {
    const char * value = getenv("QCLS_CPU_PRODUCTS");
    return value && strcmp(value, "0") == 0;
}

// The kernels for weights that are floats; NULL if the product is not of a model's matrix, or not for them.
const float_kernels * float_kernels_of(const ggml_tensor * op) {
    static const bool are_off = is_switched_off();
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * x = op->src[1];
    const bool fits = !are_off && op->op == GGML_OP_MUL_MAT && ggml_get_op_params_i32(op, 1) == GGML_HINT_NONE &&
        weights->buffer && ggml_backend_buffer_get_usage(weights->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
        ggml_is_contiguous(weights) && weights->ne[2] * weights->ne[3] == 1 && x->type == GGML_TYPE_F32 &&
        x->nb[0] == sizeof(float) && ggml_is_contiguous(op);
    return fits ? qcls_float_kernels(ggml_type_name(weights->type)) : nullptr;
}

// Calls compute(first, end) for the rows of a matrix, a multiple of `step` at a time. Whoever is free takes the next rows:
// sums do not depend on how rows are divided. `params`' counter is 0.
template <typename F>
void in_pieces(const ggml_compute_params * params, int64_t n_rows, int64_t step, int64_t row_products, F && compute) {
    const int64_t n_steps = std::max<int64_t>(1, piece_products / (step * row_products));
    const int64_t n_piece_rows = step * (params->nth == 1 ? n_rows / step + 1 : n_steps);
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
            for (int64_t c = params->ith; c < n_columns; c += params->nth) {
                kernels->pack(row_of(x, c), n_values, packed + c * kernels->vector_floats, n_columns);
            }
        }
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, 0);
        }
        ggml_barrier(params->threadpool);
        in_pieces(params, n_rows, kernels->row_multiple, n_values * n_columns, [&](int64_t first, int64_t end) {
            kernels->multiply(weights->data, n_values, first, end, packed, n_columns, (float *) op->data, n_rows);
        });
        return true;
    }
};

class products_traits : public ggml::cpu::tensor_traits {
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = activations_size(op->src[1]);
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
        activation_block * activations = (activation_block *) params->wdata;
        GGML_ASSERT(params->wsize >= activations_size(x));

        // Of the same activations, such as those of Q, K and V, the product before left them quantised.
        const ggml_tensor * before = params->before;
        if (!before || before->op != GGML_OP_MUL_MAT || before->src[1] != x || !is_here(before->src[0])) {
            quantise_share(*kernels, x, *(const precision *) weights->extra, params->ith, params->nth, activations);
        }
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, 0);
        }
        ggml_barrier(params->threadpool);

        in_pieces(params, n_rows, 2 * kernels->row_multiple, n_values * n_columns, [&](int64_t first, int64_t end) {
            kernels->multiply((const uint8_t *) weights->data, n_rows, n_values, first, end, activations, n_columns,
                (float *) op->data, n_rows);
        });
        return true;
    }
};

class products_buffers : public ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        const ggml_tensor * x = op->src[1];
        if (op->op != GGML_OP_MUL_MAT || !is_here(weights) || !kernels_of(weights)) {
            return false;
        }
        if (!weights->data && is_switched_off()) {  // a model is loaded, which asks before it allocates
            return false;
        }
        return x->type == GGML_TYPE_F32 && (!x->buffer || ggml_backend_buft_is_host(x->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static products_traits of_layouts;
        static float_traits of_floats;
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
    kernels->lay_out((const uint8_t *) data, tensor->ne[1], tensor->ne[0], (uint8_t *) tensor->data);
}

ggml_status take_precision(ggml_backend_buffer_t, ggml_tensor * tensor) {
    tensor->extra = &precisions[(int) loading];
    return GGML_STATUS_SUCCESS;
}

const char * buffer_type_name(ggml_backend_buffer_type_t) { return "CPU_QCLS"; }

size_t buffer_alignment(ggml_backend_buffer_type_t) { return alignment; }

size_t size_of(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const product_kernels * kernels = kernels_of(tensor);
    return kernels ? kernels->size(tensor->ne[1], tensor->ne[0]) : ggml_nbytes(tensor);
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
