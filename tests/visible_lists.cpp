// Holds the packed lists of random trees of sequences against what each token sees. Prints what is wrong; fails then.
#include "visible_lists.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

using namespace qcls;

namespace {

std::mt19937 engine(0);

int any(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(engine);
}

struct batch {
    std::vector<std::vector<listed_cell>> lists;  // of each sequence
    std::vector<int> seq, pos;                    // of each token
};

// Sequences that begin with a part of an earlier one, with cells all over the cache; tokens at their ends mostly.
batch random_batch() {
    batch made;
    std::vector<uint32_t> cells(40000);
    for (uint32_t i = 0; i < cells.size(); ++i) {
        cells[i] = i;
    }
    std::shuffle(cells.begin(), cells.end(), engine);
    const int n_seqs = any(1, 20);
    const int most_tokens = any(0, 4) ? 20 : 150;
    for (int s = 0; s < n_seqs; ++s) {
        std::vector<listed_cell> list;
        if (s > 0 && any(0, 3)) {
            const auto & parent = made.lists[any(0, s - 1)];
            const auto size = (int) parent.size();
            list.assign(parent.begin(), parent.begin() + (any(0, 1) ? size : any(0, size)));
        }
        for (int n = any(0, any(0, 3) ? 20 : 400); n > 0; --n) {
            list.emplace_back((int) list.size(), cells.back());
            cells.pop_back();
        }
        const auto size = (int) list.size();
        for (int n = any(0, most_tokens); n > 0; --n) {
            made.seq.push_back(s);
            made.pos.push_back(any(0, 4) ? std::max(-1, size - 1 - any(0, most_tokens)) : any(-1, size));
        }
        made.lists.push_back(std::move(list));
    }
    return made;
}

// Where a token's cell number k is read, if that must not depend on the batch: part, chunk and bit follow from k alone.
bool is_in_place(int32_t k, const lists_item & item, int32_t chunk, int32_t bit) {
    return item.part == k / 512 && chunk == k / 32 % 16 && bit == k % 32 && item.n_first == std::min(item.n_chunks, 8);
}

const char * what_is_wrong(const batch & given, int n_grouped, int n_head_kv, visible_lists & lists, bool is_invariant) {
    visible_cells visible;
    visible.make(
        (int32_t) given.seq.size(), [&](int32_t i) { return given.seq[i]; }, [&](int32_t i) { return given.pos[i]; },
        [&](int32_t s) { return cell_list{given.lists[s].data(), (int32_t) given.lists[s].size()}; },
        [](int32_t, int32_t) { return false; });
    lists.pack(visible);
    const std::vector<int32_t> & packed = lists.packed();
    const auto * const items = (const lists_item *) (packed.data() + lists_begin);
    std::vector<std::vector<uint32_t>> seen(given.seq.size());
    std::vector<int> n_parts(given.seq.size());
    std::vector<int> counters;
    for (int32_t i = 0; i < packed[0]; ++i) {
        const lists_item & item = items[i];
        if (item.n_tokens < 1 || item.n_tokens * n_grouped > max_tile_rows || item.cells % chunk_cells != 0) {
            return "an item has a wrong size";
        }
        if (item.n_first > item.n_chunks || 2 * item.n_first < item.n_chunks) {
            return "the first slice is too small, or too large";
        }
        if (item.n_parts > 1) {
            if (item.slot + item.n_parts > lists.needed().n_slots) {
                return "a slot is not counted";
            }
            if (item.part == 0) {
                counters.push_back(item.counter);
            }
        }
        for (int32_t t = 0; t < item.n_tokens; ++t) {
            const int32_t token = packed.at(item.tokens + t);
            n_parts[token] += item.part + 1 == item.n_parts ? item.n_parts : 0;
            for (int32_t chunk = 0; chunk < item.n_chunks; ++chunk) {
                const bool whole = chunk < item.n_whole;
                const uint32_t mask =
                    whole ? ~0u : (uint32_t) packed.at(item.masks + (chunk - item.n_whole) * item.n_tokens + t);
                for (int32_t bit = 0; bit < chunk_cells; ++bit) {
                    const int32_t cell = packed.at(item.cells + chunk * chunk_cells + bit);
                    if (cell < 0 || cell >= 40000) {
                        return "a cell is not there";
                    }
                    if (mask >> bit & 1) {
                        if (is_invariant && !is_in_place((int32_t) seen[token].size(), item, chunk, bit)) {
                            return "where a cell is read depends on the batch";
                        }
                        seen[token].push_back((uint32_t) cell);
                    }
                }
            }
        }
    }
    for (size_t c = 0; c < counters.size(); ++c) {
        const int32_t end = c + 1 < counters.size() ? counters[c + 1] : (int32_t) packed.size();
        if (end - counters[c] < n_head_kv * tile_warps ||
            std::any_of(packed.begin() + counters[c], packed.begin() + end, [](int32_t n) { return n != 0; })) {
            return "counters are too few, or not 0";
        }
    }
    for (size_t i = 0; i < given.seq.size(); ++i) {
        std::vector<uint32_t> wanted;
        for (const listed_cell & cell : given.lists[given.seq[i]]) {
            if (cell.first <= given.pos[i]) {
                wanted.push_back(cell.second);
            }
        }
        std::sort(wanted.begin(), wanted.end());
        std::sort(seen[i].begin(), seen[i].end());
        if (seen[i] != wanted || n_parts[i] < 1) {
            return "a token sees other cells than it may, or is left out";
        }
    }
    return lists.room().holds(lists.needed()) ? nullptr : "the room does not hold what it was made for";
}

}  // namespace

int main() {
    for (int i = 0; i < 100; ++i) {
        const int n_grouped = any(1, 16);
        const int n_head_kv = any(1, 8);
        const bool is_invariant = i % 2 == 1;
        visible_lists lists(n_grouped, n_head_kv, is_invariant);
        for (int again = 0; again < 2; ++again) {  // what is kept from the last batch must not matter
            if (const char * wrong = what_is_wrong(random_batch(), n_grouped, n_head_kv, lists, is_invariant)) {
                printf("batch %d: %s\n", i, wrong);
                return 1;
            }
        }
    }
    return 0;
}
