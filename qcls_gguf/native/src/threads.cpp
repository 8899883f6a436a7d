// The threads of a context.
#include "shim.h"

#include "ggml-backend.h"
#include "ggml.h"

void start_threads(qcls_context & context, int32_t n_threads) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!cpu) {
        return;
    }
    ggml_backend_reg_t backend = ggml_backend_dev_backend_reg(cpu);
    const auto make = (ggml_threadpool * (*) (ggml_threadpool_params *) )
        ggml_backend_reg_get_proc_address(backend, "ggml_threadpool_new");
    context.pool.free = (void (*)(ggml_threadpool *)) ggml_backend_reg_get_proc_address(backend, "ggml_threadpool_free");
    if (!make || !context.pool.free) {
        return;
    }
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    params.poll = 1;  // threads spin for about 5 ms before they sleep; ggml's default 50 would keep cores busy for 0.3 s
    context.pool.threads = make(&params);
    if (!context.pool.threads) {
        throw failure{QCLS_LOAD_FAILED, std::to_string(n_threads) + " threads could not be started"};
    }
    llama_attach_threadpool(context.ctx.get(), context.pool.threads, nullptr);
}
