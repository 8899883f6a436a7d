// Recurrent layers over a token tree: each token's state is made from that of the token which it grows from. States are kept
// only where the tree branches, and in the cache where the tree says so. The operations are nodes of ggml's graph (tree_graph.cpp of libllama).
#include "tree_walk.h"

#include "simd.h"
#include "tree_rows.h"

#include "ggml.h"

#include <algorithm>

namespace qcls {
namespace {

struct tree {
    explicit tree(const ggml_tensor * rows) : n_tokens((int32_t) (rows->ne[0] / n_tree_rows)), rows((const int32_t *) rows->data) {}

    const int32_t * operator[](tree_row row) const { return rows + (size_t) row * n_tokens; }

    const int32_t n_tokens;
    const int32_t * rows;
};

// What a node's tensor has at a place; in the cache, of a row of it.
const float * at(const ggml_tensor * tensor, int64_t i1, int64_t i2) {
    return (const float *) ((const char *) tensor->data + i1 * tensor->nb[1] + i2 * tensor->nb[2]);
}
float * in_cache(const ggml_tensor * first, int32_t row) {
    return (float *) ((char *) first->data + (size_t) row * first->view_src->nb[1]);
}

// The work of a thread, [begin, end) of n.
struct share {
    share(int64_t n, int i_thread, int n_threads) : begin(n * i_thread / n_threads), end(n * (i_thread + 1) / n_threads) {}

    const int64_t begin;
    const int64_t end;
};

// --- short convolutions ---------------------------------------------------------------------------------------------

constexpr int n_channels = 64;  // at once

// out[c] = sum of weight[j][c] * tap[j][c], the newest token last
template <int n_taps>
void add_taps(const float (*weight)[n_channels], const float * const * tap, int n, float * out) {
    int c = 0;
    for (; c + n_lanes <= n; c += n_lanes) {
        vec sum = mul(load(weight[0] + c), load(tap[0] + c));
        for (int j = 1; j < n_taps; ++j) {
            sum = fma(load(weight[j] + c), load(tap[j] + c), sum);
        }
        store(out + c, sum);
    }
    for (; c < n; ++c) {
        float sum = 0;
        for (int j = 0; j < n_taps; ++j) {
            sum += weight[j][c] * tap[j][c];
        }
        out[c] = sum;
    }
}

// input [n_tokens, channels], kernel [taps, channels], the cache's first row [taps - 1, channels], tree
template <int n_taps> void convolve(const ggml_tensor * node, int i_thread, int n_threads) {
    const ggml_tensor * input = node->src[0];
    const ggml_tensor * kernel = node->src[1];
    const ggml_tensor * first = node->src[2];
    const tree walk(node->src[3]);
    const int64_t n_all = kernel->ne[1];
    const share blocks((n_all + n_channels - 1) / n_channels, i_thread, n_threads);
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
        const int64_t c0 = block * n_channels;
        const int n = (int) std::min<int64_t>(n_channels, n_all - c0);
        float weight[n_taps][n_channels];
        float old[n_taps][n_channels];  // the taps before the batch, the newest one last but one
        int32_t root = 0;               // whose they are
        for (int c = 0; c < n; ++c) {
            for (int j = 0; j < n_taps; ++j) {
                weight[j][c] = at(kernel, c0 + c, 0)[j];
            }
        }
        for (int32_t t = 0; t < walk.n_tokens; ++t) {
            const float * tap[n_taps];
            int32_t token = t;
            int j = n_taps - 1;
            for (; j >= 0 && token >= 0; --j) {
                tap[j] = (const float *) ((const char *) input->data + token * input->nb[0]) + c0;
                token = walk[tree_parent][token];
            }
            if (j >= 0 && token != root) {
                root = token;
                const float * kept = root == tree_no_state ? nullptr : in_cache(first, ~root) + c0 * (n_taps - 1);
                for (int c = 0; c < n; ++c) {
                    for (int i = 0; i < n_taps - 1; ++i) {
                        old[i][c] = kept ? kept[c * (n_taps - 1) + i] : 0.0f;
                    }
                }
            }
            for (const int n_old = j + 1; j >= 0; --j) {
                tap[j] = old[n_taps - 1 - n_old + j];
            }
            add_taps<n_taps>(weight, tap, n, (float *) ((char *) node->data + t * node->nb[1]) + c0);
            if (const int32_t row = walk[tree_write][t]; row != tree_no_row) {
                float * to = in_cache(first, row) + c0 * (n_taps - 1);
                for (int c = 0; c < n; ++c) {
                    for (int i = 0; i < n_taps - 1; ++i) {
                        to[c * (n_taps - 1) + i] = tap[i + 1][c];
                    }
                }
            }
        }
    }
}

void convolve(ggml_tensor * node, int i_thread, int n_threads, void *) {
    switch (node->src[1]->ne[0]) {
        case 2: return convolve<2>(node, i_thread, n_threads);
        case 3: return convolve<3>(node, i_thread, n_threads);
        default: return convolve<4>(node, i_thread, n_threads);
    }
}

// --- delta nets and state spaces ------------------------------------------------------------------------------------

constexpr int n_group = 8;  // rows of a state at once
constexpr int group_values = n_group * most_state_values;

// One head's inputs of one token.
struct step {
    const float * q;
    const float * k;
    const float * x;      // of the group's rows
    const float * decay;  // one, or one for each value of a row
    float gain;
};

// Changes N rows of a state by one token, and gives their products with q. Each row r:
//   delta net:   r = decay * r;  r += (x - r . k) * gain * k;  out = r . q
//   state space: r = decay * r;  r += x * gain * k;            out = r . q
template <int N, bool is_delta, bool has_decays>
void change_rows(float * rows, int size, const step & in, float scale, float * out) {
    const auto each_part = [&](auto && work) {
        int i = 0;
        for (; i + n_lanes <= size; i += n_lanes) {
            work(i, [](const float * p) { return load(p); }, [](float * p, vec a) { store(p, a); });
        }
        if (i < size) {
            const int n = size - i;
            work(i, [n](const float * p) { return load_part(p, n); }, [n](float * p, vec a) { store_part(p, a, n); });
        }
    };
    vec sums[N];
    const auto begin_sums = [&] { std::fill(sums, sums + N, all(0)); };
    float change[N];
    if constexpr (is_delta) {
        begin_sums();
        each_part([&](int i, auto && read, auto &&) {
            vec k = read(in.k + i);
            if constexpr (has_decays) {
                k = mul(k, read(in.decay + i));
            }
            for (int r = 0; r < N; ++r) {
                sums[r] = fma(read(rows + r * size + i), k, sums[r]);
            }
        });
    }
    const float decay = *in.decay;
    for (int r = 0; r < N; ++r) {
        change[r] = in.x[r] * in.gain;
        if constexpr (is_delta) {
            const float product = sum_of(sums[r]);
            change[r] = (in.x[r] - (has_decays ? product : decay * product)) * in.gain;
        }
    }
    begin_sums();
    each_part([&](int i, auto && read, auto && write) {
        const vec k = read(in.k + i);
        const vec q = read(in.q + i);
        const vec by = has_decays ? read(in.decay + i) : all(decay);
        for (int r = 0; r < N; ++r) {
            float * row = rows + r * size + i;
            const vec changed = fma(all(change[r]), k, mul(by, read(row)));
            write(row, changed);
            sums[r] = fma(changed, q, sums[r]);
        }
    });
    for (int r = 0; r < N; ++r) {
        out[r] = sum_of(sums[r]) * scale;
    }
}

// q and k [size, heads of theirs, n_tokens], x [rows, heads, n_tokens], decay [1 or size, heads, n_tokens],
// gain [1, heads, n_tokens], the cache's first row [size, rows, heads], tree
template <bool is_delta> void walk_states(ggml_tensor * node, int i_thread, int n_threads, void *) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * x = node->src[2];
    const ggml_tensor * decay = node->src[3];
    const ggml_tensor * gain = node->src[4];
    const ggml_tensor * first = node->src[5];
    const tree walk(node->src[6]);
    const int size = (int) q->ne[0];
    const int64_t n_rows = x->ne[0];
    const int64_t n_heads = x->ne[1];
    const float scale = is_delta ? 1.0f / std::sqrt((float) size) : 1.0f;
    // delta nets deal heads of q and k out in turn, state spaces by groups
    const auto of_head = [&](const ggml_tensor * t, int64_t head) {
        return is_delta ? head % t->ne[1] : head / (n_heads / t->ne[1]);
    };
    const int64_t n_groups = (n_rows + n_group - 1) / n_group;
    const share items(n_heads * n_groups, i_thread, n_threads);
    alignas(64) float rows[group_values];
    alignas(64) float kept[n_tree_slots][group_values];
    for (int64_t item = items.begin; item < items.end; ++item) {
        const int64_t head = item / n_groups;
        const int64_t row = item % n_groups * n_group;
        const int n = (int) std::min<int64_t>(n_group, n_rows - row);
        const size_t n_bytes = (size_t) n * size * sizeof(float);
        for (int32_t i = 0; i < walk.n_tokens; ++i) {
            const int32_t t = walk[tree_order][i];
            const int32_t parent = walk[tree_parent][t];
            if (parent == tree_no_state) {
                memset(rows, 0, n_bytes);
            } else if (parent < 0) {
                memcpy(rows, in_cache(first, ~parent) + (head * n_rows + row) * size, n_bytes);
            } else if (const int32_t slot = walk[tree_source][i]; slot != tree_running) {
                memcpy(rows, kept[slot], n_bytes);
            }
            const step in = {at(q, of_head(q, head), t), at(k, of_head(k, head), t), at(x, head, t) + row,
                             at(decay, head, t), *at(gain, head, t)};
            float * out = (float *) node->data + (t * n_heads + head) * n_rows + row;
            const bool has_decays = decay->ne[0] > 1;
            if (n == n_group) {
                (has_decays ? change_rows<n_group, is_delta, true> : change_rows<n_group, is_delta, false>)(
                    rows, size, in, scale, out);
            } else {
                for (int r = 0; r < n; ++r) {
                    const step of_row = {in.q, in.k, in.x + r, in.decay, in.gain};
                    (has_decays ? change_rows<1, is_delta, true> : change_rows<1, is_delta, false>)(
                        rows + r * size, size, of_row, scale, out + r);
                }
            }
            if (const int32_t slot = walk[tree_slot][i]; slot != tree_no_slot) {
                memcpy(kept[slot], rows, n_bytes);
            }
            if (const int32_t to = walk[tree_write][t]; to != tree_no_row) {
                memcpy(in_cache(first, to) + (head * n_rows + row) * size, rows, n_bytes);
            }
        }
    }
}

}  // namespace

ggml_custom_op_t tree_operation(const char * name) {
    if (strcmp(name, "qcls_tree_convolution") == 0) {
        return convolve;
    }
    if (strcmp(name, "qcls_tree_delta_net") == 0) {
        return walk_states<true>;
    }
    return strcmp(name, "qcls_tree_scan") == 0 ? walk_states<false> : nullptr;
}

}  // namespace qcls
