// Results are equal to ggml's, to the bit. The first rotation of a graph leaves the cosines and sines of its tokens'
// positions at the end of the work memory, which no other operation uses; later rotations read them there.
#include "rotations.h"

#include "share.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace qcls {
namespace {

int n_rotated(const ggml_tensor * op) { return ggml_get_op_params_i32(op, 1); }

bool has_table_of(const ggml_tensor * before, const ggml_tensor * op) {
    return before && rotation_traits(before) && before->src[1] == op->src[1] && before->src[2] == op->src[2] &&
        before->ne[0] == op->ne[0] && memcmp(before->op_params, op->op_params, sizeof(op->op_params)) == 0;
}

// Computes the cosines of a token's pairs, followed by their sines.
void fill(const ggml_tensor * op, int64_t token, float * cosines) {
    const int n_pairs = n_rotated(op) / 2;
    const float freq_scale = ggml_get_op_params_f32(op, 6);
    const float factor = ggml_get_op_params_f32(op, 8);
    const float * divisors = op->src[2] ? (const float *) op->src[2]->data : nullptr;
    const float ratio = powf(ggml_get_op_params_f32(op, 5), -1.0f / n_pairs);
    float angle = (float) ((const int32_t *) op->src[1]->data)[token];
    for (int i = 0; i < n_pairs; ++i) {
        const float scaled_angle = freq_scale * (divisors ? angle / divisors[i] : angle);
        cosines[i] = cosf(scaled_angle) * factor;
        cosines[n_pairs + i] = sinf(scaled_angle) * factor;
        angle *= ratio;
    }
}

// The two values of a pair are `distance` apart, consecutive pairs `step`. `to` may be `from`.
template <int step>
void rotate(const float * cosines, const float * from, int n_pairs, int distance, float * to) {
    const float * sines = cosines + n_pairs;
#pragma GCC ivdep
    for (int i = 0; i < n_pairs; ++i) {
        const float a = from[i * step];
        const float b = from[i * step + distance];
        to[i * step] = a * cosines[i] - b * sines[i];
        to[i * step + distance] = a * sines[i] + b * cosines[i];
    }
}

class rotations : public ggml::cpu::tensor_traits {
    bool work_size(int, const ggml_tensor *, size_t & size) override {
        size = 0;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * x = op->src[0];
        const int n = n_rotated(op);
        const int64_t n_heads = op->ne[1];
        const int64_t n_tokens = op->ne[2];
        const size_t table_size = op->ne[0] * n_tokens * sizeof(float);
        GGML_ASSERT(params->wsize >= table_size);
        float * table = (float *) ((char *) params->wdata + params->wsize - table_size);
        if (!has_table_of(params->rotation, op)) {
            for (int64_t token = params->ith; token < n_tokens; token += params->nth) {
                fill(op, token, table + token * n);
            }
            ggml_barrier(params->threadpool);
        }
        const share rows(n_heads * n_tokens, params->ith, params->nth);
        for (int64_t row = rows.begin; row < rows.end; ++row) {
            const int64_t token = row / n_heads;
            const int64_t head = row % n_heads;
            const float * from = (const float *) ((const char *) x->data + head * x->nb[1] + token * x->nb[2]);
            float * to = (float *) ((char *) op->data + head * op->nb[1] + token * op->nb[2]);
            if (ggml_get_op_params_i32(op, 2) == GGML_ROPE_TYPE_NEOX) {
                rotate<1>(table + token * n, from, n / 2, n / 2, to);
            } else {
                rotate<2>(table + token * n, from, n / 2, 1, to);
            }
            if (to != from) {
                std::copy(from + n, from + op->ne[0], to + n);
            }
        }
        return true;
    }
};

}  // namespace

ggml::cpu::tensor_traits * rotation_traits(const ggml_tensor * op) {
    static rotations traits;
    const int mode = ggml_get_op_params_i32(op, 2);
    const bool fits = (mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX) &&
        ggml_get_op_params_f32(op, 7) == 0 &&  // YaRN is not supported
        ggml_get_op_params_i32(op, 15) == 0 && op->ne[3] == 1 && op->type == GGML_TYPE_F32;
    return fits ? &traits : nullptr;
}

}  // namespace qcls
