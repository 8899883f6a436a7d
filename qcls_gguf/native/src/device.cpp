// The devices that llama.cpp computes on.
#include "shim.h"

#include "ggml-backend.h"

#include <cstdio>

void * cuda_function(const char * name) {
    ggml_backend_reg_t cuda = ggml_backend_reg_by_name("CUDA");
    return cuda ? ggml_backend_reg_get_proc_address(cuda, name) : nullptr;
}

int64_t n_cuda_graph_launches() {
    void * launches = cuda_function("ggml_backend_cuda_n_graph_launches");
    return launches ? reinterpret_cast<int64_t (*)()>(launches)() : -1;
}

std::vector<ggml_backend_dev_t> discrete_gpus() {
    std::vector<ggml_backend_dev_t> found;
    for (size_t i = 0; i < ggml_backend_dev_count() && found.size() < QCLS_MAX_GPUS; ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_GPU) {
            found.push_back(dev);
        }
    }
    return found;
}

int32_t qcls_device_describe(int32_t index, qcls_device * device, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        start_llama();
        if (index < 0 || (size_t) index >= ggml_backend_dev_count()) {
            throw bad_argument("there is no device " + std::to_string(index));
        }
        ggml_backend_dev_t dev = ggml_backend_dev_get(index);
        qcls_device found = {};
        switch (ggml_backend_dev_type(dev)) {
            case GGML_BACKEND_DEVICE_TYPE_CPU:  found.kind = QCLS_DEVICE_CPU; break;
            case GGML_BACKEND_DEVICE_TYPE_GPU:  found.kind = QCLS_DEVICE_GPU; break;
            case GGML_BACKEND_DEVICE_TYPE_IGPU: found.kind = QCLS_DEVICE_INTEGRATED_GPU; break;
            default:                            found.kind = QCLS_DEVICE_OTHER; break;
        }
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        ggml_backend_dev_memory(dev, &free_bytes, &total_bytes);
        found.free_bytes = free_bytes;
        found.total_bytes = total_bytes;
        snprintf(found.name, sizeof(found.name), "%s", ggml_backend_dev_description(dev));
        fill(device, "device", found);
    });
}

int32_t qcls_count_multiprocessors(qcls_multiprocessors * counts, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        start_llama();
        void * multiprocessors = cuda_function("ggml_backend_cuda_multiprocessors");
        int count[3];
        if (!multiprocessors || !reinterpret_cast<bool (*)(int, int *)>(multiprocessors)(0, count)) {
            throw failure{QCLS_UNSUPPORTED, "there is no CUDA device"};
        }
        qcls_multiprocessors found = {};
        found.n_planned = count[0];
        found.n_given = count[1];
        found.n_device = count[2];
        fill(counts, "counts", found);
    });
}
