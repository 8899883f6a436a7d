#include "lane_order_tensor.h"

#include "lane_order.h"
#include "mmq_direct.h"

#include "ggml-cuda.h"

static int is_in_lane_order;  // the `extra` of matrices in lane order is this variable's address

static const ggml_tensor * root_of(const ggml_tensor * t) {
    return t->view_src != nullptr ? t->view_src : t;
}

bool ggml_cuda_is_lane_ordered(const ggml_tensor * t) {
    return root_of(t)->extra == &is_in_lane_order;
}

bool ggml_cuda_knows_lane_order(const ggml_tensor * op) {
    if (ggml_op_is_empty(op->op)) {
        return true;
    }
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        const ggml_tensor * src = op->src[i];
        if (src != nullptr && ggml_cuda_is_lane_ordered(src) &&
                (op->op != GGML_OP_MUL_MAT || i != 0 || src->view_src != nullptr)) {
            return false;
        }
    }
    return true;
}

// Each thread moves two of the n bytes.
template <typename order, bool to_lanes>
static __global__ void permute(const unsigned short * from, unsigned short * to, const size_t n, const size_t row_bytes) {
    const size_t i = (size_t) blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    const size_t in_file = lane_order::stock_byte<order>(2*i, row_bytes)/2;
    if (to_lanes) {
        to[i] = from[in_file];
    } else {
        to[in_file] = from[i];
    }
}

template <bool to_lanes>
static void launch_permute(const ggml_tensor * t, const void * from, void * to, cudaStream_t stream) {
    constexpr int THREADS = 256;
    const size_t n = ggml_nbytes(t)/2;
    const auto kernel = t->type == GGML_TYPE_Q6_K ? permute<lane_order::q6_k, to_lanes> : permute<lane_order::q8_0, to_lanes>;
    kernel<<<(n + THREADS - 1)/THREADS, THREADS, 0, stream>>>((const unsigned short *) from, (unsigned short *) to, n, t->nb[1]);
    CUDA_CHECK(cudaGetLastError());
}

// The device in whose memory a tensor lies; -1 if it is not on one device.
static int device_of(const ggml_tensor * t) {
    for (int i = 0; t->buffer != nullptr && i < ggml_backend_cuda_get_device_count(); ++i) {
        if (ggml_backend_buffer_get_type(t->buffer) == ggml_backend_cuda_buffer_type(i)) {
            return i;
        }
    }
    return -1;
}

// Device memory that is freed with this object; `data` is null if there was not enough.
struct device_copy {
    char * data = nullptr;

    explicit device_copy(const size_t n) {
        if (cudaMalloc(&data, n) != cudaSuccess) {
            data = nullptr;
            (void) cudaGetLastError();
        }
    }
    ~device_copy() {
        if (data != nullptr) {
            (void) cudaFree(data);
        }
    }
    device_copy(const device_copy &) = delete;
    device_copy & operator=(const device_copy &) = delete;
};

// Permutes a matrix in place, with a copy of it. Returns false if there is no memory for the copy.
template <bool to_lanes> static bool permute_in_place(const ggml_tensor * t) {
    ggml_cuda_set_device(device_of(t));
    const device_copy copy(ggml_nbytes(t));
    if (copy.data == nullptr) {
        return false;
    }
    CUDA_CHECK(cudaMemcpyAsync(copy.data, t->data, ggml_nbytes(t), cudaMemcpyDeviceToDevice, cudaStreamPerThread));
    launch_permute<to_lanes>(t, copy.data, t->data, cudaStreamPerThread);
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    return true;
}

bool ggml_cuda_get_in_file_order(const ggml_tensor * t, void * data, const size_t offset, const size_t size) {
    if (!ggml_cuda_is_lane_ordered(t)) {
        return false;
    }
    const ggml_tensor * root = root_of(t);
    ggml_cuda_set_device(device_of(root));
    const device_copy copy(ggml_nbytes(root));
    GGML_ASSERT(copy.data != nullptr && "no memory for a copy of a matrix in lane order");
    launch_permute<false>(root, root->data, copy.data, cudaStreamPerThread);
    const size_t from = (const char *) t->data - (const char *) root->data + offset;
    CUDA_CHECK(cudaMemcpyAsync(data, copy.data + from, size, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    return true;
}

void ggml_cuda_end_lane_order(const ggml_tensor * t) {
    if (ggml_cuda_is_lane_ordered(t)) {
        auto * root = const_cast<ggml_tensor *>(root_of(t));
        GGML_ASSERT(permute_in_place<false>(root) && "no memory for a copy of a matrix in lane order");
        root->extra = nullptr;
    }
}

bool ggml_cuda_mul_mat_in_file_order(ggml_backend_cuda_context & ctx, ggml_tensor * node) {
    if (node->op != GGML_OP_MUL_MAT || !ggml_cuda_is_lane_ordered(node->src[0])) {
        return false;
    }
    const ggml_tensor * x = node->src[0];
    GGML_ASSERT(x->view_src == nullptr);
    const size_t n = ggml_nbytes(x);
    const size_t n_padded = ggml_backend_buffer_get_alloc_size(x->buffer, x);  // kernels read up to there
    ggml_cuda_pool_alloc<char> copy(ctx.pool(), n_padded);
    launch_permute<false>(x, x->data, copy.get(), ctx.stream());
    if (n_padded > n) {
        CUDA_CHECK(cudaMemsetAsync(copy.get() + n, 0, n_padded - n, ctx.stream()));
    }
    ggml_tensor file = *x;
    file.data = copy.get();
    file.extra = nullptr;
    ggml_cuda_mul_mat_of_stock(ctx, &file, node->src[1], node);
    return true;
}

// Whether contexts that are made now have the kernels for lane order, which exist only in code for 7.5.
static bool has_kernels(const int device) {
    return !cp_async_available(ggml_cuda_info().devices[device].cc) &&
        ggml_cuda_mmq_direct_is_on(ggml_cuda_mmq_direct_steps(), device);
}

bool qcls_put_into_lane_order(ggml_tensor * t, const char * wish) {
    const bool fits = (t->type == GGML_TYPE_Q8_0 || t->type == GGML_TYPE_Q6_K) && t->view_src == nullptr && t->extra == nullptr &&
        device_of(t) >= 0 && ggml_cuda_mmq_direct_takes(t) && t->ne[1] % lane_order::ROWS == 0;
    if (!fits || !lane_order::is_wanted(wish, ggml_cuda_info().devices[device_of(t)].cc) || !has_kernels(device_of(t)) ||
            !permute_in_place<true>(t)) {
        return false;
    }
    t->extra = &is_in_lane_order;
    return true;
}
