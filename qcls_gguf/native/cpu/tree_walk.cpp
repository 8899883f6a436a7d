// Recurrent layers over a token tree: each token's state is made from that of the token which it grows from. States are
// kept only where the tree branches, and none goes back into the cache. The operations are nodes of ggml's graph
// (tree_graph.cpp of libllama).
#include "tree_walk.h"

#include "norm.h"
#include "share.h"
#include "simd.h"
#include "tree_rows.h"

#include "ggml.h"

#include <algorithm>
#include <memory>
#include <vector>

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
const float * in_cache(const ggml_tensor * first, int32_t row) {
    return (const float *) ((const char *) first->data + (size_t) row * first->view_src->nb[1]);
}

// Calls work(i, read, write) for each vector of n values, from value i on.
template <typename F> [[gnu::always_inline]] inline void each_part(int n, F && work) {
    int i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
        work(i, [](const float * p) { return load(p); }, [](float * p, vec a) { store(p, a); });
    }
    if (i < n) {
        const int rest = n - i;
        work(i, [rest](const float * p) { return load_part(p, rest); }, [rest](float * p, vec a) { store_part(p, a, rest); });
    }
}

// --- short convolutions ---------------------------------------------------------------------------------------------

constexpr int n_channels = normed_channels;  // at once: whole heads, where heads are normed

// out[c] = sum of weight[j][c] * tap[j][c], the newest token last
template <int n_taps>
void add_taps(const float (*weight)[n_channels], const float * const * tap, int n, float * out) {
    each_part(n, [&](int c, auto && read, auto && write) {
        vec sum = mul(read(weight[0] + c), read(tap[0] + c));
        for (int j = 1; j < n_taps; ++j) {
            sum = fma(read(weight[j] + c), read(tap[j] + c), sum);
        }
        write(out + c, sum);
    });
}

// Of n channels from c on: SiLU, then the norm of each head in those that are normed.
void add_silu_and_norms(const tree_node & what, int64_t c, int n, float * out) {
    each_part(n, [&](int i, auto && read, auto && write) { write(out + i, silu_of(read(out + i))); });
    const int n_normed = (int) std::clamp<int64_t>(what.n_normed - c, 0, n);
    for (float * head = out; head < out + n_normed; head += what.head_size) {
        const float mean = (float) (sum_of_squares(head, what.head_size) / what.head_size);
        const vec by = all(what.scale / std::sqrt(mean + what.eps));
        each_part(what.head_size, [&](int i, auto && read, auto && write) { write(head + i, mul(read(head + i), by)); });
    }
}

// input [n_tokens, channels], kernel [taps, channels], the cache's first row [taps - 1, channels], tree
template <int n_taps> void convolve(const ggml_tensor * node, int i_thread, int n_threads) {
    const ggml_tensor * input = node->src[0];
    const ggml_tensor * kernel = node->src[1];
    const ggml_tensor * first = node->src[2];
    const tree walk(node->src[3]);
    const tree_node what = read_node(node->op_params);
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
            float * out = (float *) ((char *) node->data + t * node->nb[1]) + c0;
            add_taps<n_taps>(weight, tap, n, out);
            if (what.has_more) {
                add_silu_and_norms(what, c0, n, out);
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

constexpr int n_group = n_lanes / 2;  // rows of a state at once: two sums of each row, in a vector of their own
// Rows with which the whole tree is walked, as many as the L1 cache holds: each time q and k of all tokens are read again.
constexpr int n_walked = 64;

// One head's inputs of one token.
struct step {
    const float * q;
    const float * k;
    const float * x;      // of the group's rows
    const float * decay;  // one, or one for each value of a row
    float gain;
};

// What rows of a state before a token are multiplied with instead of k or q, where each of their values has its own decay.
template <bool has_decays, typename F> vec decayed(const float * k_or_q, const step & in, int i, F && read) {
    const vec values = read(k_or_q + i);
    return has_decays ? mul(values, read(in.decay + i)) : values;
}

// Two sums of each of N rows; their order is the same in all lanes.
template <int N> void store_sums(const vec (&sums)[2 * N], float * to) {
    if constexpr (2 * N == n_lanes) {
        store(to, sums_of(sums));
    } else {
        std::transform(sums, sums + 2 * N, to, sum_of);
    }
}

// Products of N rows with k, then with q.
template <int N, bool has_decays> void multiply_rows(const float * rows, int size, const step & in, float * products) {
    vec sums[2 * N];
    std::fill(sums, sums + 2 * N, all(0));
    each_part(size, [&](int i, auto && read, auto &&) {
        const vec k = decayed<has_decays>(in.k, in, i, read);
        const vec q = decayed<has_decays>(in.q, in, i, read);
        for (int r = 0; r < N; ++r) {
            const vec row = read(rows + r * size + i);
            sums[r] = fma(row, k, sums[r]);
            sums[N + r] = fma(row, q, sums[N + r]);
        }
    });
    store_sums<N>(sums, products);
}

// What a token adds to each row, times k. products: of the rows with k.
template <int N, bool is_delta, bool has_decays> void find_changes(const step & in, const float * products, float * change) {
    const float decay = *in.decay;
    for (int r = 0; r < N; ++r) {
        const float product = is_delta ? (has_decays ? products[r] : decay * products[r]) : 0;
        change[r] = (in.x[r] - product) * in.gain;
    }
}

// The products with q of N rows after a token, where nothing else needs these rows. products: of the rows before it.
template <int N, bool is_delta, bool has_decays>
void finish_rows(int size, const step & in, const float * products, float scale, float * out) {
    vec sum = all(0);
    each_part(size, [&](int i, auto && read, auto &&) { sum = fma(read(in.k + i), read(in.q + i), sum); });
    const float k_by_q = sum_of(sum);
    const float decay = has_decays ? 1 : *in.decay;
    float change[N];
    find_changes<N, is_delta, has_decays>(in, products, change);
    for (int r = 0; r < N; ++r) {
        out[r] = (decay * products[N + r] + change[r] * k_by_q) * scale;
    }
}

// Makes N rows after a token of those before it, and their products with q. products: of a delta net's rows with k; they
// become those with the next token's k. `to` may be `from`.
template <int N, bool is_delta, bool has_decays>
void change_rows(const float * from, float * to, int size, const step & in, const step & next, float * products,
                 float scale, float * out) {
    const float decay = *in.decay;
    float change[N];
    find_changes<N, is_delta, has_decays>(in, products, change);
    vec sums[2 * N];  // with the next k, then with q
    std::fill(sums, sums + 2 * N, all(0));
    each_part(size, [&](int i, auto && read, auto && write) {
        const vec k = read(in.k + i);
        const vec q = read(in.q + i);
        const vec by = has_decays ? read(in.decay + i) : all(decay);
        const vec next_k = is_delta ? decayed<has_decays>(next.k, next, i, read) : all(0);
        for (int r = 0; r < N; ++r) {
            const vec row = fma(all(change[r]), k, mul(by, read(from + r * size + i)));
            write(to + r * size + i, row);
            if constexpr (is_delta) {
                sums[r] = fma(row, next_k, sums[r]);
            }
            sums[N + r] = fma(row, q, sums[N + r]);
        }
    });
    store_sums<N>(sums, products);
    for (int r = 0; r < N; ++r) {
        out[r] = products[N + r] * scale;
    }
}

// Memory that a thread keeps, so that the next layer allocates nothing.
thread_local std::vector<float> states_memory;
thread_local std::vector<float> gates_memory;

// Decay and gain of each token, in one head after the other.
class gates {
public:
    explicit gates(const ggml_tensor * node)
        : decay(node->src[3]), gain(node->src[4]), n_tokens(node->src[2]->ne[2]),
          are_inputs(read_node(node->op_params).has_more),
          bias(are_inputs ? (const float *) node->src[7]->data : nullptr),
          factor(are_inputs ? (const float *) node->src[8]->data : nullptr) {}

    void begin_head(int64_t head) {
        if (are_inputs && head != current) {
            gates_memory.resize(2 * n_tokens);
            made = gates_memory.data();
            for (int64_t t = 0; t < n_tokens; ++t) {
                const float x = at(decay, t, 0)[head] + bias[head];
                made[t] = std::exp((x > 20 ? x : std::log1p(std::exp(x))) * factor[head]);
                made[n_tokens + t] = 1 / (1 + std::exp(-at(gain, t, 0)[head]));
            }
        }
        current = head;
    }
    const float * decay_of(int64_t t) const { return are_inputs ? made + t : at(decay, current, t); }
    float gain_of(int64_t t) const { return are_inputs ? made[n_tokens + t] : *at(gain, current, t); }

private:
    const ggml_tensor * decay;  // [1 or size, heads, n_tokens], as input [heads, n_tokens]
    const ggml_tensor * gain;   // [1, heads, n_tokens], as input [heads, n_tokens]
    const int64_t n_tokens;
    const bool are_inputs;  // decay = e^(softplus(input + bias) * factor), gain = sigmoid(input)
    const float * bias;
    const float * factor;
    int64_t current = -1;
    float * made = nullptr;  // decays, then gains
};

// A token's results from N rows of the state before it. Each row r:
//   delta net:   r = decay * r;  r += (x - r . k) * gain * k;  out = r . q
//   state space: r = decay * r;  r += x * gain * k;            out = r . q
// `to` gets the rows after it, unless it is NULL: then nothing needs them. goes_on: `from` is of the token walked before.
template <int N, bool is_delta, bool has_decays>
void add_token(const float * from, float * to, bool goes_on, int size, const step & in, const step & next, float * products,
               float scale, float * out) {
    if (!to || (is_delta && !goes_on)) {
        multiply_rows<N, has_decays>(from, size, in, products);
    }
    if (to) {
        change_rows<N, is_delta, has_decays>(from, to, size, in, next, products, scale, out);
    } else {
        finish_rows<N, is_delta, has_decays>(size, in, products, scale, out);
    }
}

// q and k [size, heads of theirs, n_tokens], x [rows, heads, n_tokens], decay and gain, the cache's first row
// [size, rows, heads], tree
template <bool is_delta, bool has_decays> void walk_states(ggml_tensor * node, int i_thread, int n_threads) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * x = node->src[2];
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
    const int64_t n_parts = (n_rows + n_walked - 1) / n_walked;
    const share items(n_heads * n_parts, i_thread, n_threads);
    gates gates_of(node);
    const size_t n_state = (size_t) n_walked * size;
    states_memory.resize((read_node(node->op_params).n_slots + 1) * n_state + n_lanes);
    void * states = states_memory.data();  // the running one, then the slots
    size_t n_bytes = states_memory.size() * sizeof(float);
    std::align(sizeof(vec), 1, states, n_bytes);
    static_assert(tree_no_slot == -1);  // the running state's place
    const auto kept = [&](int32_t slot) { return (float *) states + (slot + 1) * n_state; };
    for (int64_t item = items.begin; item < items.end; ++item) {
        const int64_t head = item / n_parts;
        const int64_t row = item % n_parts * n_walked;
        const int n = (int) std::min<int64_t>(n_walked, n_rows - row);
        const int64_t q_head = of_head(q, head);
        const int64_t k_head = of_head(k, head);
        gates_of.begin_head(head);
        const auto inputs = [&](int32_t t) {
            return step{at(q, q_head, t), at(k, k_head, t), at(x, head, t) + row, gates_of.decay_of(t), gates_of.gain_of(t)};
        };
        const float * state = nullptr;  // after the token walked before
        const float * to_fetch = nullptr;
        const float * fetched = nullptr;
        bool goes_on = false;
        alignas(64) float products[2 * n_walked];
        for (int32_t i = 0; i < walk.n_tokens; ++i) {
            const int32_t t = walk[tree_order][i];
            const int32_t parent = walk[tree_parent][t];
            const int32_t slot = walk[tree_slot][i];
            const int32_t t_next = i + 1 < walk.n_tokens ? walk[tree_order][i + 1] : t;
            const bool next_goes_on = t_next != t && walk[tree_source][i + 1] == tree_running && walk[tree_parent][t_next] >= 0;
            if (parent == tree_no_state) {
                std::fill_n(kept(tree_no_slot), n * size, 0.0f);
                state = kept(tree_no_slot);
            } else if (parent < 0) {
                state = in_cache(first, ~parent) + (head * n_rows + row) * size;
                to_fetch = state + n * size;  // the next item's rows
                fetched = to_fetch + n * size;
            } else if (!goes_on) {
                state = kept(walk[tree_source][i]);
            }
            // a few lines for each token: more at once would have to wait for each other
            for (int line = 0; line < 32 && to_fetch < fetched; ++line, to_fetch += 16) {
                __builtin_prefetch(to_fetch, 0, 2);
            }
            float * to = next_goes_on || slot != tree_no_slot ? kept(slot) : nullptr;
            const step in = inputs(t);
            const step next = inputs(t_next);
            const auto add = [&](auto add_to, int r) {
                const step of_rows = {in.q, in.k, in.x + r, in.decay, in.gain};
                add_to(state + r * size, to ? to + r * size : nullptr, goes_on, size, of_rows, next, products + 2 * r, scale,
                       (float *) node->data + (t * n_heads + head) * n_rows + row + r);
            };
            int r = 0;
            for (; r + n_group <= n; r += n_group) {
                add(add_token<n_group, is_delta, has_decays>, r);
            }
            for (; r < n; ++r) {
                add(add_token<1, is_delta, has_decays>, r);
            }
            state = to;
            goes_on = next_goes_on;
        }
    }
}

template <bool is_delta> void walk_states(ggml_tensor * node, int i_thread, int n_threads, void *) {
    const bool has_decays = !read_node(node->op_params).has_more && node->src[3]->ne[0] > 1;
    (has_decays ? walk_states<is_delta, true> : walk_states<is_delta, false>)(node, i_thread, n_threads);
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
