// The devices that llama.cpp computes on.
#include "shim.h"

#include "cpu_functions.h"
#include "ggml-backend.h"

#include <cstdio>
#include <cstring>
#include <string>

namespace {

// The instruction sets that llama.cpp's CPU code was compiled for, by the names that ggml gives them, and AMX_BF16 where
// products use it, which the system may refuse: then they differ in their last bits.
std::string features_of(ggml_backend_dev_t device) {
    std::string text;
    ggml_backend_reg_t cpu = ggml_backend_dev_backend_reg(device);
    const auto get_features =
        (ggml_backend_get_features_t) ggml_backend_reg_get_proc_address(cpu, "ggml_backend_get_features");
    const ggml_backend_feature * feature = get_features ? get_features(cpu) : nullptr;
    for (; feature && feature->name; ++feature) {
        text += text.empty() ? "" : "\t";
        text += feature->name;
        if (strcmp(feature->value, "1") != 0) {
            text += std::string("=") + feature->value;
        }
    }
    const auto has_tiles = (qcls_has_tiles_fn) ggml_backend_reg_get_proc_address(cpu, "qcls_has_tiles");
    return has_tiles && has_tiles() ? text + "\tAMX_BF16" : text;
}

}  // namespace

void * cuda_function(const char * name) {
    ggml_backend_reg_t cuda = ggml_backend_reg_by_name("CUDA");
    return cuda ? ggml_backend_reg_get_proc_address(cuda, name) : nullptr;
}

int64_t n_cuda_graph_launches() {
    void * launches = cuda_function("qcls_n_graph_launches");
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
        ggml_backend_dev_t dev = index == -1 ? ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) : nullptr;
        if (index >= 0 && (size_t) index < ggml_backend_dev_count()) {
            dev = ggml_backend_dev_get(index);
        }
        if (!dev) {
            throw bad_argument("there is no device " + std::to_string(index));
        }
        qcls_device & found = given(device, "device") = {};
        found.cpu_features = found.cpu_variant = "";
        switch (ggml_backend_dev_type(dev)) {
            case GGML_BACKEND_DEVICE_TYPE_CPU:  found.kind = QCLS_DEVICE_CPU; break;
            case GGML_BACKEND_DEVICE_TYPE_GPU:  found.kind = QCLS_DEVICE_GPU; break;
            case GGML_BACKEND_DEVICE_TYPE_IGPU: found.kind = QCLS_DEVICE_INTEGRATED_GPU; break;
            default:                            found.kind = QCLS_DEVICE_OTHER; break;
        }
        if (found.kind == QCLS_DEVICE_CPU) {
            static const std::string features = features_of(dev);
            found.cpu_features = features.c_str();
            found.cpu_variant = cpu_variant();
        }
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        ggml_backend_dev_memory(dev, &free_bytes, &total_bytes);
        found.free_bytes = free_bytes;
        found.total_bytes = total_bytes;
        snprintf(found.name, sizeof(found.name), "%s", ggml_backend_dev_description(dev));
    });
}
