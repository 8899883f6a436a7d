// The types of tensors, as ggml has them.
#include "shim.h"

#include <climits>

namespace {

const ggml_type_traits & traits_of(int32_t type) {
    const ggml_type_traits * const traits =
        type >= 0 && type < GGML_TYPE_COUNT ? ggml_get_type_traits((ggml_type) type) : nullptr;
    if (!traits || traits->blck_size <= 0 || traits->type_size == 0) {  // types that ggml has removed have neither
        throw bad_argument("type: ggml has no type " + std::to_string(type));
    }
    return *traits;
}

}  // namespace

int32_t qcls_type_block(int32_t type, int64_t * n_values, int64_t * n_bytes, qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const ggml_type_traits & traits = traits_of(type);
        given(n_values, "n_values") = traits.blck_size;
        given(n_bytes, "n_bytes") = (int64_t) traits.type_size;
    });
}

int32_t qcls_dequantise(int32_t type, const void * data, int64_t n_bytes, float * value, int64_t n_values,
                        qcls_error * error) {
    return guarded(error, QCLS_BAD_ARGUMENT, [&] {
        const ggml_type_traits & traits = traits_of(type);
        check_array(data, n_bytes, "data");
        check_array(value, n_values, "value");
        given(value, "value");
        const auto type_size = (int64_t) traits.type_size;
        if (n_bytes % type_size || n_bytes / type_size > INT64_MAX / traits.blck_size ||
            n_bytes / type_size * traits.blck_size != n_values) {
            throw bad_argument(std::to_string(n_bytes) + " bytes of " + traits.type_name + " are not " +
                               std::to_string(n_values) + " values");
        }
        if (type == GGML_TYPE_F32) {
            std::copy_n(static_cast<const float *>(data), n_values, value);
        } else if (traits.to_float) {
            traits.to_float(data, value, n_values);
        } else {
            throw bad_argument(std::string(traits.type_name) + " has no values to multiply with");
        }
    });
}
