// ggml's code for processors and GPUs is linked to this library or, in a portable build, loaded from modules beside it:
// the best one for this processor.
#include "shim.h"

#include "ggml-backend.h"

#include <dlfcn.h>

#include <string>

namespace {

// The path of the library that holds a function; empty where the system does not say.
std::string library_of(const void * function) {
    Dl_info info = {};
    return dladdr(function, &info) && info.dli_fname ? info.dli_fname : "";
}

// The name between "libggml-cpu-" and ".so" of the module that computes; empty where the CPU code is linked.
std::string loaded_variant() {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    void * function = cpu ? ggml_backend_reg_get_proc_address(cpu, "ggml_backend_get_features") : nullptr;
    const std::string path = function ? library_of(function) : "";
    const std::string prefix = "libggml-cpu-";
    const size_t at = path.rfind(prefix);
    if (at == std::string::npos) {
        return "";
    }
    const size_t begin = at + prefix.size();
    return path.substr(begin, path.find('.', begin) - begin);
}

}  // namespace

void load_backends() {
#ifdef GGML_BACKEND_DL
    const std::string path = library_of((const void *) &load_backends);
    const std::string folder = path.substr(0, path.rfind('/'));
    ggml_backend_load_all_from_path(folder.c_str());
    if (!ggml_backend_reg_by_name("CPU")) {
        throw failure{QCLS_LOAD_FAILED, folder + " has no CPU code (libggml-cpu-*) that runs on this processor: install "
                                                 "the package again"};
    }
#endif
}

const char * cpu_variant() {
    static const std::string name = loaded_variant();
    return name.c_str();
}
