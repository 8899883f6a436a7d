// Measures a device's peak rates. Copies and products go through the public ggml-backend API, so that the device
// computes them as in a model's graph; multiplications and reads are loops in the CPU backend.
#include "shim.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include "cpu_functions.h"

#include <array>
#include <random>
#include <stdexcept>
#include <thread>

namespace {

constexpr int n_samples = 5;
constexpr int n_loop_samples = 50;  // of loops in the CPU backend: many, so that some meet an idle processor
constexpr int n_random_rows = 64;  // distinct rows of weights; the others repeat them, because quantising is slow

ggml_context_ptr new_context() {
    ggml_init_params params = {16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, /*no_alloc=*/true};
    return ggml_context_ptr(ggml_init(params));
}

struct joined_threads {
    std::vector<std::thread> threads;

    ~joined_threads() {
        for (std::thread & thread : threads) {
            thread.join();
        }
    }
};

struct probe {
    ggml_backend_dev_t device;
    ggml_backend_ptr backend;
    int32_t n_threads;

    probe(int32_t index, int32_t n_threads) : n_threads(n_threads) {
        start_llama();
        if (index < 0 || (size_t) index >= ggml_backend_dev_count()) {
            throw bad_argument("probe: there is no device " + std::to_string(index));
        }
        if (n_threads < 1 || n_threads > 512) {
            throw bad_argument("probe: n_threads is " + std::to_string(n_threads) + ": it must be between 1 and 512");
        }
        device = ggml_backend_dev_get(index);
        backend.reset(ggml_backend_dev_init(device, nullptr));
        if (!backend) {
            throw std::runtime_error("probe: the device could not be opened");
        }
        const auto set_n_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
        if (set_n_threads) {
            set_n_threads(backend.get(), n_threads);
        }
    }

    // Returns the least and the median of samples. run(n) executes the operation n times and returns the seconds; n is
    // such that each sample takes its share of budget_s.
    template <int n_samples, typename Run> static qcls_seconds sampled(double budget_s, Run && run) {
        const double one = run(1);
        const int64_t n = (int64_t) std::clamp(budget_s / n_samples / one, 1.0, 4096.0);
        std::array<double, n_samples> sample;
        for (double & s : sample) {
            s = run(n) / (double) n;
        }
        std::sort(sample.begin(), sample.end());
        qcls_seconds found = {};
        found.best = sample.front();
        found.median = sample[n_samples / 2];
        return found;
    }

    double seconds_of(ggml_cgraph * graph, int64_t n) {
        const int64_t start = ggml_time_us();
        for (int64_t i = 0; i < n; ++i) {
            if (ggml_backend_graph_compute_async(backend.get(), graph) != GGML_STATUS_SUCCESS) {
                throw std::runtime_error("probe: the device failed to compute");
            }
        }
        ggml_backend_synchronize(backend.get());
        return 1e-6 * (double) std::max<int64_t>(1, ggml_time_us() - start);
    }

    // The computations of a sample are queued together.
    qcls_seconds measure(ggml_cgraph * graph, double budget_s) {
        seconds_of(graph, 3);  // loads kernels, and lets CUDA capture the graph
        return sampled<n_samples>(budget_s, [&](int64_t n) { return seconds_of(graph, n); });
    }

    // A function of the CPU backend.
    void * function(const char * name) const {
        void * found = nullptr;
        if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            found = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name);
        }
        if (!found) {
            throw std::runtime_error("probe: only a CPU can be asked for this");
        }
        return found;
    }

    // The seconds until all threads have finished work(i_thread).
    template <typename Work> double seconds_of_threads(Work && work) const {
        const int64_t start = ggml_time_us();
        {
            joined_threads others;
            for (int32_t i = 1; i < n_threads; ++i) {
                others.threads.emplace_back(work, i);
            }
            work(0);
        }
        return 1e-6 * (double) std::max<int64_t>(1, ggml_time_us() - start);
    }

    // The buffer type that llama.cpp uses for such weights: one with a layout of its own, if the device has one for
    // this product.
    ggml_backend_buffer_type_t weight_buffer_type(ggml_tensor * weight, const ggml_tensor * product) {
        const auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
        for (ggml_backend_buffer_type_t * type = extra ? extra(device) : nullptr; type && *type; ++type) {
            const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(*type, 0));
            weight->buffer = empty.get();
            const bool supported = ggml_backend_dev_supports_op(device, product);
            weight->buffer = nullptr;
            if (supported) {
                return *type;
            }
        }
        if (!ggml_backend_dev_supports_op(device, product)) {
            throw std::runtime_error(std::string("probe: the device cannot multiply by ") +
                                     ggml_type_name(weight->type));
        }
        return ggml_backend_dev_buffer_type(device);
    }
};

ggml_backend_buffer_ptr allocate(ggml_context * context, ggml_backend_buffer_type_t type) {
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
    if (!buffer) {
        throw std::runtime_error("probe: the device has too little free memory");
    }
    return buffer;
}

std::vector<float> random_values(size_t n) {
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> value(-1, 1);
    std::vector<float> values(n);
    std::generate(values.begin(), values.end(), [&] { return value(generator); });
    return values;
}

void fill_weights(ggml_tensor * weight) {
    const int64_t n_inner = weight->ne[0];
    const int64_t n_rows = weight->ne[1];
    const int64_t n_random = std::min<int64_t>(n_random_rows, n_rows);
    const size_t row_bytes = ggml_row_size(weight->type, n_inner);
    const std::vector<float> values = random_values(n_random * n_inner);
    const std::vector<float> importance(n_inner, 1.0f);
    std::vector<char> bytes(n_rows * row_bytes);
    ggml_quantize_chunk(weight->type, values.data(), bytes.data(), 0, n_random, n_inner, importance.data());
    for (size_t filled = n_random * row_bytes; filled < bytes.size(); ++filled) {
        bytes[filled] = bytes[filled - n_random * row_bytes];
    }
    ggml_backend_tensor_set(weight, bytes.data(), 0, bytes.size());
}

// The ggml type with this number. Q8_1 and Q8_K are refused: they are types of activations, to which no weights are
// quantised.
ggml_type weight_type_of(int32_t number) {
    const auto type = (ggml_type) number;
    const bool known = number >= 0 && number < GGML_TYPE_COUNT && ggml_blck_size(type) > 0 &&
        type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K &&
        (ggml_is_quantized(type) || type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16);
    if (!known) {
        throw bad_argument("probe: ggml type " + std::to_string(number) + " is not one of weights");
    }
    return type;
}

void check_bytes(int64_t n_bytes) {
    if (n_bytes < 4 || n_bytes > (int64_t) 1 << 36) {
        throw bad_argument("probe: n_bytes is " + std::to_string(n_bytes) + ": it must be between 4 and 2^36");
    }
}

qcls_seconds measure_multiplications(const qcls_operation & wanted) {
    const char * type = ggml_type_name(weight_type_of(wanted.weight_type));
    const probe p(wanted.device, wanted.n_threads);
    const auto multiply = (qcls_multiply_registers_fn) p.function("qcls_multiply_registers");
    constexpr int64_t n_short = 10000;
    const double operations = multiply(type, n_short) * wanted.n_threads;
    if (operations == 0) {
        throw std::runtime_error(std::string("probe: this CPU has no products of ") + type + " of this project's");
    }
    const int64_t n_each = (int64_t) (1e9 / operations * n_short) + 1;
    return probe::sampled<n_loop_samples>(wanted.budget_s, [&](int64_t n) {
        return p.seconds_of_threads([&](int32_t) { multiply(type, n * n_each); });
    });
}

qcls_seconds measure_reading(const qcls_operation & wanted) {
    check_bytes(wanted.n_bytes);
    const probe p(wanted.device, wanted.n_threads);
    const auto read = (qcls_read_memory_fn) p.function("qcls_read_memory");
    const std::vector<char> memory(wanted.n_bytes, 1);
    const int64_t share = (wanted.n_bytes / wanted.n_threads + 63) / 64 * 64;
    return probe::sampled<n_loop_samples>(wanted.budget_s, [&](int64_t n) {
        return p.seconds_of_threads([&](int32_t i) {
            const int64_t first = std::min(wanted.n_bytes, i * share);
            for (int64_t pass = 0; pass < n; ++pass) {
                read(memory.data() + first, std::min(share, wanted.n_bytes - first));
            }
        });
    });
}

qcls_seconds measure_copy(const qcls_operation & wanted) {
    check_bytes(wanted.n_bytes);
    probe p(wanted.device, wanted.n_threads);
    const ggml_context_ptr context = new_context();
    ggml_tensor * source = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, wanted.n_bytes / 4);
    ggml_tensor * target = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, wanted.n_bytes / 4);
    ggml_cgraph * graph = ggml_new_graph_custom(context.get(), 8, false);
    ggml_build_forward_expand(graph, ggml_cpy(context.get(), source, target));
    const ggml_backend_buffer_ptr buffer = allocate(context.get(), ggml_backend_dev_buffer_type(p.device));
    ggml_backend_buffer_clear(buffer.get(), 1);  // so that every page is mapped
    return p.measure(graph, wanted.budget_s);
}

qcls_seconds measure_product(const qcls_operation & wanted) {
    const ggml_type type = weight_type_of(wanted.weight_type);
    const auto [least, most] = std::minmax({wanted.n_inner, wanted.n_rows, wanted.n_columns});
    if (least < 1 || most > 1 << 16 || wanted.n_inner % ggml_blck_size(type) != 0) {
        throw bad_argument("probe: the product of (" + std::to_string(wanted.n_inner) + ", " +
                           std::to_string(wanted.n_rows) + ") weights with " + std::to_string(wanted.n_columns) +
                           " columns: the sizes must be between 1 and 65536, n_inner whole blocks of " +
                           std::to_string(ggml_blck_size(type)));
    }
    probe p(wanted.device, wanted.n_threads);
    const ggml_context_ptr weights = new_context();
    const ggml_context_ptr context = new_context();
    ggml_tensor * weight = ggml_new_tensor_2d(weights.get(), type, wanted.n_inner, wanted.n_rows);
    ggml_tensor * input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, wanted.n_inner, wanted.n_columns);
    ggml_tensor * output = ggml_mul_mat(context.get(), weight, input);
    ggml_cgraph * graph = ggml_new_graph_custom(context.get(), 8, false);
    ggml_build_forward_expand(graph, output);
    const ggml_backend_buffer_ptr stored = allocate(weights.get(), p.weight_buffer_type(weight, output));
    ggml_backend_buffer_set_usage(stored.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    const ggml_backend_buffer_ptr buffer = allocate(context.get(), ggml_backend_dev_buffer_type(p.device));
    fill_weights(weight);
    const std::vector<float> values = random_values((size_t) wanted.n_inner * wanted.n_columns);
    ggml_backend_tensor_set(input, values.data(), 0, values.size() * sizeof(float));
    return p.measure(graph, wanted.budget_s);
}

}  // namespace

int32_t qcls_device_measure(const qcls_operation * operation, qcls_seconds * seconds, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        const qcls_operation wanted = given(operation, "operation");
        given(seconds, "seconds");
        if (!(wanted.budget_s >= 0)) {
            throw bad_argument("probe: budget_s is " + std::to_string(wanted.budget_s) + ": it must not be negative");
        }
        switch (wanted.kind) {
            case QCLS_COPY: *seconds = measure_copy(wanted); break;
            case QCLS_PRODUCT: *seconds = measure_product(wanted); break;
            case QCLS_MULTIPLY: *seconds = measure_multiplications(wanted); break;
            case QCLS_READ: *seconds = measure_reading(wanted); break;
            default: throw bad_argument("probe: kind is " + std::to_string(wanted.kind) + ": it must be 0 to 3");
        }
    });
}
