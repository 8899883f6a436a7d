// Recurrent layers over random token trees: each token's result, and the states that are kept, against those of its path
// alone, computed in doubles.
#include "tree_rows.h"
#include "tree_walk.h"

#include "../cpu/tree_walk.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

std::mt19937 random_bits(1);

int below(int n) { return (int) (random_bits() % (unsigned) n); }

// A tensor of floats of its own, with values from least to most.
struct floats {
    floats(std::initializer_list<int64_t> sizes, float least, float most) {
        std::fill(tensor.ne, tensor.ne + 4, 1);
        std::copy(sizes.begin(), sizes.end(), tensor.ne);
        tensor.nb[0] = sizeof(float);
        for (int i = 1; i < 4; ++i) {
            tensor.nb[i] = tensor.nb[i - 1] * tensor.ne[i - 1];
        }
        value.resize(tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3]);
        for (float & each : value) {
            each = least + (most - least) * (float) random_bits() / 4294967295.0f;
        }
        tensor.data = value.data();
    }
    const float * row(int64_t i1, int64_t i2) const { return value.data() + (i2 * tensor.ne[1] + i1) * tensor.ne[0]; }

    ggml_tensor tensor = {};
    std::vector<float> value;
};

constexpr int n_cells = 3;  // of the cache, whose states are read

struct random_tree {
    explicit random_tree(int n_tokens) {
        for (int i = 0; i < n_tokens; ++i) {
            const int kind = below(8);
            parent.push_back(i == 0 || kind == 0 ? ~below(n_cells) : kind == 1 ? qcls::tree_no_state
                             : kind < 5          ? i - 1
                                                 : below(i));
        }
        walk.lay_out(parent);
        rows = walk.rows();
        tensor.ne[0] = (int64_t) rows.size();
        tensor.data = rows.data();
    }
    // what a token's state is made of: a row of the cache or no state, then its ancestors and itself
    std::vector<int32_t> path(int token) const {
        std::vector<int32_t> found = {token};
        while (found.back() >= 0) {
            found.push_back(parent[found.back()]);
        }
        std::reverse(found.begin(), found.end());
        return found;
    }

    std::vector<int32_t> parent;
    std::vector<int32_t> rows;
    qcls::tree_walk walk;
    ggml_tensor tensor = {};
};

void check(bool is_right, const std::string & what) {
    if (!is_right) {
        fprintf(stderr, "%s\n", what.c_str());
        exit(1);
    }
}

std::vector<float> computed(const char * name, std::initializer_list<ggml_tensor *> sources, std::array<int64_t, 2> size,
                            const qcls::tree_node & what) {
    floats out({size[0], size[1]}, NAN, NAN);
    memcpy((char *) out.tensor.op_params + qcls::tree_node_offset, &what, sizeof(what));
    std::copy(sources.begin(), sources.end(), out.tensor.src);
    for (int thread = 0; thread < 3; ++thread) {
        qcls::tree_operation(name)(&out.tensor, thread, 3, nullptr);
    }
    return out.value;
}

void expect_near(double found, double wanted, const std::string & what) {
    check(std::fabs(found - wanted) <= 2e-5 * (1 + std::fabs(wanted)),
          what + ": " + std::to_string(found) + " instead of " + std::to_string(wanted));
}

void test_order(const random_tree & tree) {
    const int n = (int) tree.parent.size();
    const int32_t * order = tree.rows.data() + qcls::tree_order * n;
    const int32_t * source = tree.rows.data() + qcls::tree_source * n;
    const int32_t * slot = tree.rows.data() + qcls::tree_slot * n;
    std::vector<int32_t> in_slot(qcls::n_tree_slots, -1);
    std::vector<bool> is_walked(n);
    for (int i = 0; i < n; ++i) {
        const int32_t t = order[i];
        const int32_t parent = tree.parent[t];
        check(!is_walked[t], "a token is walked twice");
        is_walked[t] = true;
        if (parent >= 0) {
            const int32_t before = source[i] == qcls::tree_running ? order[i - 1] : in_slot.at(source[i]);
            check(before == parent, "a token gets another one's state");
        }
        if (slot[i] != qcls::tree_no_slot) {
            in_slot.at(slot[i]) = t;
        }
    }
}

void test_convolution(const random_tree & tree, int n_taps, int n_channels, bool has_more) {
    qcls::tree_node what = {};
    what.has_more = has_more;
    what.head_size = qcls::least_normed << below(3);
    what.n_normed = has_more ? below(n_channels / what.head_size + 1) * what.head_size : 0;
    what.eps = 0.01f;
    what.scale = 0.5f;
    const int n = (int) tree.parent.size();
    floats by_token({n_channels, n}, -1, 1), kernel({n_taps, n_channels}, -1, 1);
    floats cache({(n_taps - 1) * n_channels, n_cells}, -1, 1);
    ggml_tensor input = by_token.tensor, first = cache.tensor, rows = tree.tensor;  // input: transposed
    std::swap(input.ne[0], input.ne[1]);
    std::swap(input.nb[0], input.nb[1]);
    first.view_src = &cache.tensor;
    const std::vector<float> found =
        computed("qcls_tree_convolution", {&input, &kernel.tensor, &first, &rows}, {n_channels, n}, what);
    for (int t = 0; t < n; ++t) {
        const std::vector<int32_t> path = tree.path(t);
        std::vector<double> wanted(n_channels);
        for (int c = 0; c < n_channels; ++c) {
            double sum = 0;
            for (int j = 0; j < n_taps; ++j) {
                const int at = (int) path.size() - n_taps + j;  // in the path; before its first token in the cache
                double tap = 0;
                if (at > 0) {
                    tap = by_token.row(path[at], 0)[c];
                } else if (path[0] != qcls::tree_no_state) {
                    tap = cache.row(~path[0], 0)[c * (n_taps - 1) + n_taps - 2 + at];
                }
                sum += tap * kernel.row(c, 0)[j];
            }
            wanted[c] = has_more ? sum / (1 + std::exp(-sum)) : sum;
        }
        for (int head = 0; head < what.n_normed; head += what.head_size) {
            double mean = 0;
            for (int c = head; c < head + what.head_size; ++c) {
                mean += wanted[c] * wanted[c] / what.head_size;
            }
            for (int c = head; c < head + what.head_size; ++c) {
                wanted[c] *= what.scale / std::sqrt(mean + what.eps);
            }
        }
        for (int c = 0; c < n_channels; ++c) {
            expect_near(found[t * n_channels + c], wanted[c], "convolution");
        }
    }
}

// has_gates: decay and gain are made of other inputs
void test_states(const random_tree & tree, bool is_delta, int size, int n_rows, int n_heads, int n_k, bool has_decays,
                 bool has_gates) {
    qcls::tree_node what = qcls::tree_walk::sizes_of(tree.walk.graph_number());
    what.has_more = has_gates;
    const int n = (int) tree.parent.size();
    floats q({size, n_k, n}, -1, 1), k({size, n_k, n}, -0.3f, 0.3f), x({n_rows, n_heads, n}, -1, 1);
    floats decay({has_decays ? size : 1, n_heads, n}, 0.5f, 1), gain({1, n_heads, n}, 0, 1);
    floats decay_input({n_heads, n}, -2, 25), gain_input({n_heads, n}, -3, 3), bias({n_heads}, -1, 1), factor({n_heads}, -1, 0);
    for (int i = 0; has_gates && i < n_heads * n; ++i) {
        const double x = (double) decay_input.value[i] + bias.value[i % n_heads];
        decay.value[i] = (float) std::exp(std::log1p(std::exp(x)) * factor.value[i % n_heads]);
        gain.value[i] = (float) (1 / (1 + std::exp(-(double) gain_input.value[i])));
    }
    floats cache({(int64_t) size * n_rows * n_heads, n_cells}, -1, 1);
    ggml_tensor first = cache.tensor, rows = tree.tensor;
    first.view_src = &cache.tensor;
    const char * name = is_delta ? "qcls_tree_delta_net" : "qcls_tree_scan";
    const std::vector<float> found =
        computed(name, {&q.tensor, &k.tensor, &x.tensor, &(has_gates ? decay_input : decay).tensor,
                        &(has_gates ? gain_input : gain).tensor, &first, &rows, &bias.tensor, &factor.tensor},
                 {(int64_t) n_rows * n_heads, n}, what);
    for (int t = 0; t < n; ++t) {
        const std::vector<int32_t> path = tree.path(t);
        for (int head = 0; head < n_heads; ++head) {
            const int of_k = is_delta ? head % n_k : head / (n_heads / n_k);
            for (int r = 0; r < n_rows; ++r) {
                std::vector<double> state(size);
                for (int i = 0; i < size && path[0] != qcls::tree_no_state; ++i) {
                    state[i] = cache.row(~path[0], 0)[(head * n_rows + r) * size + i];
                }
                for (size_t p = 1; p < path.size(); ++p) {
                    double product = 0;
                    for (int i = 0; i < size; ++i) {
                        state[i] *= decay.row(head, path[p])[has_decays ? i : 0];
                        product += state[i] * k.row(of_k, path[p])[i];
                    }
                    const double wanted = x.row(head, path[p])[r] - (is_delta ? product : 0);
                    for (int i = 0; i < size; ++i) {
                        state[i] += wanted * *gain.row(head, path[p]) * k.row(of_k, path[p])[i];
                    }
                }
                double out = 0;
                for (int i = 0; i < size; ++i) {
                    out += state[i] * q.row(of_k, t)[i];
                }
                out *= is_delta ? 1 / std::sqrt((double) size) : 1;
                expect_near(found[(t * n_heads + head) * n_rows + r], out, name);
            }
        }
    }
}

}  // namespace

int main() {
    for (int i = 0; i < 40; ++i) {
        const random_tree tree(1 + below(40));
        test_order(tree);
        test_convolution(tree, 2 + below(3), 1 + below(400), below(2));
        const bool has_decays = below(2);
        test_states(tree, true, 8 + below(60), 1 + below(20), 4, 2, has_decays, !has_decays && below(2));
        test_states(tree, false, 8 + below(60), 1 + below(20), 4, 2, has_decays, false);
    }
    // a full binary tree, which needs most slots, and a leaf more at each place of a chain, which needs one
    std::vector<int32_t> full = {qcls::tree_no_state}, comb = {qcls::tree_no_state};
    for (int32_t i = 1; i < 8191; ++i) {
        full.push_back((i - 1) / 2);
        comb.push_back(i % 2 ? std::max(0, i - 2) : i - 2);
    }
    for (const auto & [parents, n_wanted] : {std::pair(full, qcls::n_tree_slots), std::pair(comb, 1)}) {
        qcls::tree_walk walk;
        walk.lay_out(parents);
        const auto slots = walk.rows().begin() + qcls::tree_slot * parents.size();
        const int32_t n = *std::max_element(slots, slots + parents.size()) + 1;
        check(n == n_wanted, "a tree needs " + std::to_string(n) + " slots");
    }
}
