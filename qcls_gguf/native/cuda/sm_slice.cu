// GGML_CUDA_SM_SLICE=N: part of a device as a stand-in for a smaller one. Kernels plan their work for N multiprocessors
// and run on a CUDA green context that holds N of them, or the next number that the hardware can be split at. Memory,
// caches and clocks stay the whole device's. Where that cannot be had, the process ends: other numbers would mislead.
// patches/0007-sm-slice.patch calls the functions that are not static, and declares them in common.cuh.
#include "ggml-cuda/common.cuh"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <mutex>

// 0: no slice
static int slice_wanted() {
    static const int wanted = [] {
        const char * text = getenv("GGML_CUDA_SM_SLICE");
        if (text == nullptr || *text == '\0') {
            return 0;
        }
        char * end = nullptr;
        errno = 0;
        const long n = strtol(text, &end, 10);
        if (*end != '\0' || errno != 0 || n < 1 || n > INT_MAX) {
            GGML_ABORT("GGML_CUDA_SM_SLICE=%s is not a number of multiprocessors", text);
        }
        return (int) n;
    }();
    return wanted;
}

bool ggml_cuda_is_sliced() {
    return slice_wanted() > 0;
}

#if CUDA_VERSION >= 12050

// The driver's functions are looked up, so that nothing links against libcuda for this. The version is the one of the
// headers, whose declarations are called.
template <typename F> static F * driver_function(const char * name) {
    void * function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t err = cudaGetDriverEntryPointByVersion(name, &function, CUDA_VERSION, cudaEnableDefault, &found);
    if (err != cudaSuccess || found != cudaDriverEntryPointSuccess || function == nullptr) {
        GGML_ABORT("GGML_CUDA_SM_SLICE: the driver has no %s of CUDA %d.%d: a newer driver, or a build with an older "
                   "toolkit from 12.5 on, is needed", name, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    }
    return reinterpret_cast<F *>(function);
}

#define SLICE_CALL(function, ...)                                                                             \
    do {                                                                                                      \
        const CUresult result = driver_function<decltype(function)>(#function)(__VA_ARGS__);                  \
        if (result != CUDA_SUCCESS) {                                                                         \
            GGML_ABORT("GGML_CUDA_SM_SLICE=%d: %s failed with error %d", slice_wanted(), #function, (int) result); \
        }                                                                                                     \
    } while (0)

struct device_slice {
    CUdevResource resource = {};
    CUgreenCtx    context  = nullptr;  // never destroyed: streams of it may live until the process ends
};

static device_slice slices[GGML_CUDA_MAX_DEVICES];

int ggml_cuda_slice_nsm(int physical_device, int nsm, int * nsm_given) {
    const int wanted = slice_wanted();
    *nsm_given = nsm;
    if (wanted == 0) {
        return nsm;
    }
    if (wanted > nsm) {
        GGML_ABORT("GGML_CUDA_SM_SLICE=%d: device %d has %d multiprocessors", wanted, physical_device, nsm);
    }
    CUdevice device = 0;
    SLICE_CALL(cuDeviceGet, &device, physical_device);
    CUdevResource whole = {};
    SLICE_CALL(cuDeviceGetDevResource, device, &whole, CU_DEV_RESOURCE_TYPE_SM);
    CUdevResource & slice = slices[physical_device].resource;
    unsigned int n_slices = 1;
    SLICE_CALL(cuDevSmResourceSplitByCount, &slice, &n_slices, &whole, nullptr, 0, wanted);
    if (n_slices != 1 || (int) slice.sm.smCount < wanted) {
        GGML_ABORT("GGML_CUDA_SM_SLICE=%d: device %d, which has %d multiprocessors, cannot be split at it",
                   wanted, physical_device, nsm);
    }
    *nsm_given = (int) slice.sm.smCount;
    GGML_LOG_INFO("  Device %d: planned for %d multiprocessors, running on %d of %d, without CUDA graphs\n",
                  physical_device, wanted, *nsm_given, nsm);
    return wanted;
}

cudaStream_t ggml_cuda_new_stream(int device) {
    cudaStream_t stream = nullptr;
    if (!ggml_cuda_is_sliced()) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        return stream;
    }
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    const int physical_device = ggml_cuda_info().devices[device].physical_device;
    device_slice & slice = slices[physical_device];
    if (slice.context == nullptr) {
        CUDA_CHECK(cudaFree(nullptr));  // the green context rests on the primary one, which must be there
        CUdevice cu_device = 0;
        SLICE_CALL(cuDeviceGet, &cu_device, physical_device);
        CUdevResourceDesc description = nullptr;
        SLICE_CALL(cuDevResourceGenerateDesc, &description, &slice.resource, 1);
        SLICE_CALL(cuGreenCtxCreate, &slice.context, description, cu_device, CU_GREEN_CTX_DEFAULT_STREAM);
    }
    SLICE_CALL(cuGreenCtxStreamCreate, &stream, slice.context, CU_STREAM_NON_BLOCKING, 0);
    return stream;
}

#else

int ggml_cuda_slice_nsm(int, int nsm, int * nsm_given) {
    if (ggml_cuda_is_sliced()) {
        GGML_ABORT("GGML_CUDA_SM_SLICE needs a build with the CUDA toolkit 12.5 or newer");
    }
    *nsm_given = nsm;
    return nsm;
}

cudaStream_t ggml_cuda_new_stream(int) {
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

#endif  // CUDA_VERSION >= 12050
