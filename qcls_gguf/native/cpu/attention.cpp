#include "attention.h"

#include "share.h"
#include "simd.h"

#include <algorithm>
#include <cstring>

namespace qcls {
namespace {

// A sequence's list is read in blocks that begin where (index + first position) is a multiple of this. So the same
// cells form the same blocks for every token, whatever cells it sees after them.
constexpr int block_cells = 128;
constexpr int max_item_heads = 4;
constexpr int chunk_cells = 4 * n_lanes;  // whose keys are transposed at once,
constexpr int chunk_values = 64;          // so many values of each
constexpr int max_item_rows = visible_cells::max_tile_tokens * max_item_heads;

// One query: a head of a token.
struct row {
    const float * q;
    float * out;
    int32_t first;
    int32_t end;
    float max = -std::numeric_limits<float>::infinity();
    float sum = 0;  // of e^(score - max)
};

// An item of work: the tokens of a tile, with some of the query heads that read one kv head.
struct item {
    const tile * tokens;
    int32_t head_kv;
    int32_t head;
    int32_t n_heads;
};

// score[r][c] += q·k of R queries and N vectors of cells, over the values [from, from + n) of a head; `k` has a row for
// each of them. The order in which a product is summed does not depend on the other queries and cells.
template <int R, int N>
void add_scores(const row * rows, const float (*k)[chunk_cells], int from, int n, float (*score)[block_cells]) {
    vec sums[R][N];
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < N; ++c) {
            sums[r][c] = load(score[r] + c * n_lanes);
        }
    }
    for (int i = 0; i < n; ++i) {
        vec cells[N];
        for (int c = 0; c < N; ++c) {
            cells[c] = load(k[i] + c * n_lanes);
        }
        for (int r = 0; r < R; ++r) {
            const vec q = all(rows[r].q[from + i]);
            for (int c = 0; c < N; ++c) {
                sums[r][c] = fma(q, cells[c], sums[r][c]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < N; ++c) {
            store(score[r] + c * n_lanes, sums[r][c]);
        }
    }
}

// The scores of all rows and the cells [first, end) of a block, of which k[c] has `size` values. Keys are transposed, so
// that a lane computes the score of a cell and nothing is added across lanes.
template <typename K>
void score_block(const row * rows, int n_rows, const K * const * k, int first, int end, int size,
                 float (*score)[block_cells]) {
    constexpr decltype(&add_scores<1, 1>) of_vectors[2][4] = {
        {add_scores<1, 1>, add_scores<1, 2>, add_scores<1, 3>, add_scores<1, 4>},
        {add_scores<max_rows, 1>, add_scores<max_rows, 2>, add_scores<max_rows, 3>, add_scores<max_rows, 4>},
    };
    for (int r = 0; r < n_rows; ++r) {
        std::fill(score[r], score[r] + block_cells, 0.0f);
    }
    for (int c = first / n_lanes * n_lanes; c < end; c += chunk_cells) {
        const int n_vectors = std::min(chunk_cells, end - c + n_lanes - 1) / n_lanes;
        for (int from = 0; from < size; from += chunk_values) {
            const int n = std::min(chunk_values, size - from);
            alignas(64) float transposed[chunk_values][chunk_cells];
            for (int v = 0; v < n_vectors; ++v) {
                const K * cells[n_lanes];
                for (int lane = 0; lane < n_lanes; ++lane) {
                    cells[lane] = k[std::clamp(c + v * n_lanes + lane, first, end - 1)] + from;
                }
                for (int i = 0; i < n; i += n_lanes) {
                    vec values[n_lanes];
                    if (n - i >= n_lanes) {
                        for (int lane = 0; lane < n_lanes; ++lane) {
                            values[lane] = load(cells[lane] + i);
                        }
                    } else {
                        for (int lane = 0; lane < n_lanes; ++lane) {
                            values[lane] = load_part(cells[lane] + i, n - i);
                        }
                    }
                    transpose(values);
                    for (int j = 0; j < n_lanes; ++j) {
                        store(transposed[i + j] + v * n_lanes, values[j]);
                    }
                }
            }
            for (int r = 0; r < n_rows;) {
                const bool are_many = n_rows - r >= max_rows;
                of_vectors[are_many][n_vectors - 1](
                    rows + r, transposed, from, n, (float (*)[block_cells]) (score[r] + c));
                r += are_many ? max_rows : 1;
            }
        }
    }
}

// out[r][i ..] += weight[r][c] * v[c][i ..] for R queries and N vectors of values, over the cells [begin, end) in
// order.
template <int R, int N, typename V>
void add_values(const row * rows, const float (*weight)[block_cells], const V * const * v, int begin, int end, int i) {
    vec sums[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            sums[r][n] = load(rows[r].out + i + n * n_lanes);
        }
    }
    for (int c = begin; c < end; ++c) {
        vec part[N];
        for (int n = 0; n < N; ++n) {
            part[n] = load(v[c] + i + n * n_lanes);
        }
        for (int r = 0; r < R; ++r) {
            const vec w = all(weight[r][c]);
            for (int n = 0; n < N; ++n) {
                sums[r][n] = fma(w, part[n], sums[r][n]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            store(rows[r].out + i + n * n_lanes, sums[r][n]);
        }
    }
}

template <int R, typename V>
void add_values(const row * rows, const float (*weight)[block_cells], const V * const * v, int begin, int end, int i,
                int size) {
    for (; i + 4 * n_lanes <= size; i += 4 * n_lanes) {
        add_values<R, 4>(rows, weight, v, begin, end, i);
    }
    if (i + 2 * n_lanes <= size) {
        add_values<R, 2>(rows, weight, v, begin, end, i);
        i += 2 * n_lanes;
    }
    if (i + n_lanes <= size) {
        add_values<R, 1>(rows, weight, v, begin, end, i);
        i += n_lanes;
    }
    for (int r = 0; r < R && i < size; ++r) {
        vec sum = load_part(rows[r].out + i, size - i);
        for (int c = begin; c < end; ++c) {
            sum = fma(all(weight[r][c]), load_part(v[c] + i, size - i), sum);
        }
        store_part(rows[r].out + i, sum, size - i);
    }
}

// Turns the scores [begin, end) of a block into weights e^(score * scale - max), and rescales the row's earlier sums to
// the new maximum.
void weigh(row & row, float * score, int begin, int end, float scale, int size) {
    constexpr float never = -std::numeric_limits<float>::infinity();
    const int from = begin / n_lanes * n_lanes;
    const int to = (end + n_lanes - 1) / n_lanes * n_lanes;
    std::fill(score + from, score + begin, never);
    std::fill(score + end, score + to, never);
    vec highest = all(never);
    for (int i = from; i < to; i += n_lanes) {
        const vec scaled_score = mul(load(score + i), all(scale));
        store(score + i, scaled_score);
        highest = max(highest, scaled_score);
    }
    const float before = row.max;
    row.max = std::max(before, max_of(highest));
    vec sum = all(0);
    for (int i = from; i < to; i += n_lanes) {
        const vec weight = exp_of(add(load(score + i), all(-row.max)));
        store(score + i, weight);
        sum = add(sum, weight);
    }
    if (row.max != before) {
        const vec less = exp_of(all(before - row.max));
        float factor[n_lanes];
        store(factor, less);
        row.sum *= factor[0];
        for (int i = 0; i < size; ++i) {
            row.out[i] *= factor[0];
        }
    }
    row.sum += sum_of(sum);
}

// Reads one block for R rows, whose scores are replaced by weights. v[c] belongs to cell `base + c` of the list; it is
// set if some row sees it.
template <int R, typename V>
void read_block(const attention_call & call, row * rows, int base, float (*score)[block_cells], const V * const * v) {
    int begin[R];
    int end[R];
    int common_begin = 0;
    int common_end = block_cells;
    for (int r = 0; r < R; ++r) {
        begin[r] = std::clamp(rows[r].first - base, 0, block_cells);
        end[r] = std::max(begin[r], std::min(rows[r].end - base, block_cells));
        common_begin = std::max(common_begin, begin[r]);
        common_end = std::min(common_end, end[r]);
    }
    common_end = std::max(common_begin, common_end);

    for (int r = 0; r < R; ++r) {
        if (begin[r] < end[r]) {
            weigh(rows[r], score[r], begin[r], end[r], call.scale, call.head_size_v);
        }
    }
    // Each row adds only the cells that it sees, in order, so that a NaN in another cell has no effect on it.
    for (int r = 0; r < R; ++r) {
        add_values<1>(rows + r, score + r, v, begin[r], std::min(end[r], common_begin), 0, call.head_size_v);
    }
    add_values<R>(rows, score, v, common_begin, common_end, 0, call.head_size_v);
    for (int r = 0; r < R; ++r) {
        add_values<1>(rows + r, score + r, v, std::max(begin[r], common_end), end[r], 0, call.head_size_v);
    }
}

template <typename K, typename V> void attend(const attention_call & call, const item & item) {
    const seeing_token * const tokens = call.visible->token.data() + item.tokens->begin;
    const int n_tokens = item.tokens->end - item.tokens->begin;
    const listed_cell * const list = item.tokens->list.cell;
    row rows[max_item_rows];
    int n_rows = 0;
    int first = item.tokens->list.n_cells;
    int end = 0;
    for (int t = 0; t < n_tokens; ++t) {
        const seeing_token & token = tokens[t];
        for (int h = item.head; h < item.head + item.n_heads; ++h) {
            row & row = rows[n_rows++];
            row.q = call.q + token.index * call.q_token_stride + h * call.q_head_stride;
            row.out = call.out + ((ptrdiff_t) token.index * call.n_head + h) * call.head_size_v;
            row.first = token.first;
            row.end = token.end;
            std::fill(row.out, row.out + call.head_size_v, 0.0f);
        }
        first = std::min(first, token.first);
        end = std::max(end, token.end);
    }
    if (first >= end) {
        return;
    }
    const auto * k_base = (const char *) call.k + item.head_kv * call.k_head_stride;
    const auto * v_base = (const char *) call.v + item.head_kv * call.v_head_stride;
    const int phase = list[0].first % block_cells;
    for (int base = (first + phase) / block_cells * block_cells - phase; base < end; base += block_cells) {
        const K * k[block_cells];
        const V * v[block_cells];
        const int block_first = std::max(base, first);
        const int block_end = std::min(base + block_cells, end);
        for (int i = block_first; i < block_end; ++i) {
            const auto cell = (ptrdiff_t) list[i].second;
            k[i - base] = (const K *) (k_base + cell * call.k_cell_stride);
            v[i - base] = (const V *) (v_base + cell * call.v_cell_stride);
        }
        alignas(64) float score[max_item_rows][block_cells];
        score_block(rows, n_rows, k, block_first - base, block_end - base, call.head_size_k, score);
        int i = 0;
        for (; i + max_rows <= n_rows; i += max_rows) {
            read_block<max_rows>(call, rows + i, base, score + i, v);
        }
        for (; i < n_rows; ++i) {
            read_block<1>(call, rows + i, base, score + i, v);
        }
    }
    for (int i = 0; i < n_rows; ++i) {
        const float share = rows[i].sum != 0 ? 1 / rows[i].sum : 0;
        for (int j = 0; j < call.head_size_v; ++j) {
            rows[i].out[j] *= share;
        }
    }
}

}  // namespace
}  // namespace qcls

void qcls_attend(const qcls::attention_call * call, int32_t i_thread, int32_t n_threads) {
    using namespace qcls;
    const visible_cells & visible = *call->visible;
    const int n_grouped = call->n_head / call->n_head_kv;
    const int n_slices = (n_grouped + max_item_heads - 1) / max_item_heads;
    const auto attend_item = call->k_is_f16 ? (call->v_is_f16 ? attend<fp16, fp16> : attend<fp16, float>)
                                            : (call->v_is_f16 ? attend<float, fp16> : attend<float, float>);
    // Items are ordered by slices of the heads, then by tiles. A thread takes the items that begin in its share of the
    // cost.
    const share cost(visible.cost * call->n_head_kv * n_slices, i_thread, n_threads);
    for (int64_t slice = visible.cost > 0 ? cost.begin / visible.cost : 0; slice * visible.cost < cost.end; ++slice) {
        const auto head_kv = (int32_t) (slice / n_slices);
        const auto in_group = (int32_t) (slice % n_slices) * max_item_heads;
        const int32_t n_heads = std::min(max_item_heads, n_grouped - in_group);
        const auto begins_before = [&](const tile & t, int64_t at) { return slice * visible.cost + t.cost_before < at; };
        auto t = std::lower_bound(visible.tiles.begin(), visible.tiles.end(), cost.begin, begins_before);
        for (; t != visible.tiles.end() && begins_before(*t, cost.end); ++t) {
            attend_item(*call, {&*t, head_kv, head_kv * n_grouped + in_group, n_heads});
        }
    }
}
