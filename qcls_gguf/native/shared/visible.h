// Which cells of the cache each token of a batch may see: made once a batch, read by every layer's attention.
#ifndef QCLS_VISIBLE_H
#define QCLS_VISIBLE_H

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace qcls {

using listed_cell = std::pair<int32_t, uint32_t>;  // position, index of the cell

// The cells of one sequence, sorted by position. Their owner must keep them until the attention is computed.
struct cell_list {
    const listed_cell * cell;
    int32_t n_cells;
};

// A token of the batch, and the part [first, end) of its sequence's list that it sees.
struct seeing_token {
    int32_t index;
    int32_t first;
    int32_t end;
};

// The tokens [begin, end) of visible_cells::token, which read the same list, ordered by how far they see.
struct tile {
    cell_list list;
    int32_t begin;
    int32_t end;
    int64_t cost_before;  // the cost of all tiles before this one
};

struct visible_cells {
    static constexpr int32_t max_tile_tokens = 16;

    std::vector<seeing_token> token;
    std::vector<tile> tiles;
    int64_t cost = 0;  // of all tiles: the pairs of a token and a cell that it sees, plus 1 for each token

    // Lists what n_tokens tokens see: seq_of(i) is one sequence of token i, pos_of(i) its position, and list_of(seq)
    // the cells of that sequence, which include the batch's own tokens. A token sees the cells up to its own position,
    // except those at a position p with is_masked(p, its own position), which must be at the beginning of the list.
    template <typename SeqOf, typename PosOf, typename ListOf, typename IsMasked>
    void make(int32_t n_tokens, SeqOf && seq_of, PosOf && pos_of, ListOf && list_of, IsMasked && is_masked) {
        order.clear();
        for (int32_t i = 0; i < n_tokens; ++i) {
            order.emplace_back(seq_of(i), i);
        }
        std::sort(order.begin(), order.end());

        token.clear();
        tiles.clear();
        cost = 0;
        for (size_t begin = 0, end; begin < order.size(); begin = end) {
            const int32_t seq = order[begin].first;
            for (end = begin; end < order.size() && order[end].first == seq; ++end) {
            }
            add_sequence(list_of(seq), begin, end, pos_of, is_masked);
        }
    }

private:
    std::vector<std::pair<int32_t, int32_t>> order;  // sequence, token

    template <typename PosOf, typename IsMasked>
    void add_sequence(cell_list list, size_t begin, size_t end, PosOf && pos_of, IsMasked && is_masked) {
        const listed_cell * const last = list.cell + list.n_cells;
        const auto first_token = (int32_t) token.size();
        for (size_t i = begin; i < end; ++i) {
            const int32_t pos = pos_of(order[i].second);
            const listed_cell * const seen_end =
                std::upper_bound(list.cell, last, pos, [](int32_t p, const listed_cell & c) { return p < c.first; });
            const listed_cell * const seen_first = std::partition_point(
                list.cell, seen_end, [&](const listed_cell & c) { return is_masked(c.first, pos); });
            token.push_back({order[i].second, (int32_t) (seen_first - list.cell), (int32_t) (seen_end - list.cell)});
        }
        // a batch lists a sequence's tokens by position, so this usually moves nothing
        std::stable_sort(token.begin() + first_token, token.end(),
                         [](const seeing_token & a, const seeing_token & b) { return a.end < b.end; });
        for (int32_t i = first_token; i < (int32_t) token.size(); i += max_tile_tokens) {
            const int32_t tile_end = std::min((int32_t) token.size(), i + max_tile_tokens);
            tiles.push_back({list, i, tile_end, cost});
            for (int32_t j = i; j < tile_end; ++j) {
                cost += 1 + token[j].end - token[j].first;
            }
        }
    }
};

}  // namespace qcls

#endif
