// The instruction sets that llama.cpp's CPU code was compiled for, by the names that ggml gives them.
#include "shim.h"

#include "ggml-backend.h"

#include <cstring>
#include <string>

namespace {

// Unless the operating system permits the use of tiles, no weights are laid out for AMX, and its code is never reached.
bool has_amx_weights(ggml_backend_reg_t cpu, ggml_backend_dev_t device) {
    const auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        cpu, "ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * type = extra ? extra(device) : nullptr; type && *type; ++type) {
        if (strcmp(ggml_backend_buft_name(*type), "AMX") == 0) {
            return true;
        }
    }
    return false;
}

std::string cpu_features() {
    std::string text;
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!device) {
        return text;
    }
    ggml_backend_reg_t cpu = ggml_backend_dev_backend_reg(device);
    const auto get_features =
        (ggml_backend_get_features_t) ggml_backend_reg_get_proc_address(cpu, "ggml_backend_get_features");
    const ggml_backend_feature * feature = get_features ? get_features(cpu) : nullptr;
    for (; feature && feature->name; ++feature) {
        if (strncmp(feature->name, "AMX", 3) == 0 && !has_amx_weights(cpu, device)) {
            continue;
        }
        text += text.empty() ? "" : "\t";
        text += feature->name;
        if (strcmp(feature->value, "1") != 0) {
            text += std::string("=") + feature->value;
        }
    }
    return text;
}

}  // namespace

const char * qcls_cpu_features(void) {
    try {
        start_llama();
        static const std::string text = cpu_features();
        return text.c_str();
    } catch (...) {
        return "";
    }
}
