#include "visible_lists.h"

#include <algorithm>
#include <cstring>

namespace qcls {
namespace {

// Enough blocks to fill a large card at one block for each multiprocessor; a small card computes them in turns.
constexpr int32_t blocks_wanted = 128;
// A tile of at most so many chunks is not divided: adding the parts would cost more than dividing it saves.
constexpr int32_t min_part_chunks = 8;

// The chunks of a part in batch-invariant contexts; the last part of a tile may have fewer.
constexpr int32_t invariant_part_chunks = 16;

constexpr int32_t item_ints = sizeof(lists_item) / sizeof(int32_t);

int32_t up(int32_t n, int32_t step) {
    return (n + step - 1) / step * step;
}

int32_t power_of_two(int32_t n, int32_t least) {
    int32_t power = least;
    while (power < n) {
        power *= 2;
    }
    return power;
}

// How many of the first n cells two lists have in common.
int32_t n_common(const cell_list & a, const cell_list & b, int32_t n) {
    if (a.cell == b.cell) {
        return n;
    }
    return (int32_t) (std::mismatch(a.cell, a.cell + n, b.cell).first - a.cell);
}

// A word for the numbers [from, from + 32), with the bits for [begin, end) set.
uint32_t bits(int32_t begin, int32_t end, int32_t from) {
    begin = std::max(begin - from, 0);
    end = std::min(end - from, 32);
    if (begin >= end) {
        return 0;
    }
    return (end - begin == 32 ? ~0u : (1u << (end - begin)) - 1) << begin;
}

template <typename T> void copy_to(std::vector<int32_t> & packed, int32_t at, const std::vector<T> & all) {
    if (!all.empty()) {
        memcpy(packed.data() + at, all.data(), all.size() * sizeof(T));
    }
}

}  // namespace

visible_lists::visible_lists(int32_t n_grouped, int32_t n_head_kv, bool is_invariant)
    : n_head_kv_(n_head_kv), tile_tokens_(max_tile_rows / n_grouped),
      n_items_wanted_(std::max(1, blocks_wanted / n_head_kv)), is_invariant_(is_invariant) {}

lists_room visible_lists::room() const {
    const auto ample = [](int32_t n, int32_t least) { return power_of_two(n + n / 2, least); };
    const int32_t n_items = ample(needed_.n_items, 8);
    return {ample(std::max(needed_.n_ints, lists_begin + n_items * item_ints), 1024), n_items,
            needed_.n_slots > 0 ? ample(needed_.n_slots, 8) : 0};
}

lists_room visible_lists::usual_room(int32_t n_tokens, int32_t n_cells) const {
    const int32_t n_items = power_of_two(2 * (n_tokens / tile_tokens_ + 1) + n_items_wanted_, 8);
    const int64_t n_ints =
        lists_begin + (int64_t) n_items * item_ints + 4 * (int64_t) n_cells + 64 * (int64_t) n_tokens;
    return {power_of_two((int32_t) std::min<int64_t>(n_ints, 1 << 26), 1024), n_items,
            power_of_two(2 * n_items_wanted_, 8)};
}

void visible_lists::pack(const visible_cells & visible) {
    tokens_.clear();
    cells_.clear();
    masks_.clear();
    read_list_ = nullptr;
    find_runs(visible);
    group_runs();
    for (tile & tile : tiles_) {
        add_cells(tile);
        add_tokens(visible, tile);
    }
    add_items();
    lay_out();
}

void visible_lists::find_runs(const visible_cells & visible) {
    runs_.clear();
    for (size_t t = 0, next; t < visible.tiles.size(); t = next) {
        const cell_list list = visible.tiles[t].list;
        for (next = t + 1; next < visible.tiles.size() && visible.tiles[next].list.cell == list.cell &&
                           visible.tiles[next].list.n_cells == list.n_cells && list.n_cells > 0; ++next) {
        }
        const int32_t end = visible.tiles[next - 1].end;
        for (int32_t begin = visible.tiles[t].begin; begin < end; begin += tile_tokens_) {
            const int32_t run_end = std::min(end, begin + tile_tokens_);
            runs_.push_back({list, begin, run_end, visible.token[run_end - 1].end});
        }
    }
}

// A run joins the previous tile if it adds at most half of the cells that it would read alone. In batch-invariant
// contexts it never does: it would move cells of other runs to other chunks, and so change the order of sums.
void visible_lists::group_runs() {
    tiles_.clear();
    for (int32_t r = 0; r < (int32_t) runs_.size(); ++r) {
        const run & run = runs_[r];
        const int32_t n_tokens = run.end - run.begin;
        if (!is_invariant_ && !tiles_.empty() && tiles_.back().n_tokens + n_tokens <= tile_tokens_) {
            tile & tile = tiles_.back();
            const int32_t n_most = std::min(tile.n_shared, run.n_seen);
            const int32_t n_shared = n_common(runs_[tile.first_run].list, run.list, n_most);
            const int64_t n_more =
                run.n_seen - n_shared + (int64_t) (tile.n_runs - 1) * (tile.n_shared - n_shared);
            if (2 * n_more <= run.n_seen) {
                tile.n_runs += 1;
                tile.n_tokens += n_tokens;
                tile.n_shared = n_shared;
                continue;
            }
        }
        tiles_.push_back({r, 1, n_tokens, run.n_seen, 0, 0, 0, 0, 0});
    }
}

// The cells of a tile are the cells that all its runs share, then each run's other cells. Tiles of one run each, of the
// same list, refer to the same cells.
void visible_lists::add_cells(tile & tile) {
    const run * const runs = runs_.data() + tile.first_run;
    int32_t n_cells = tile.n_shared;
    for (int32_t r = 0; r < tile.n_runs; ++r) {
        n_cells += runs[r].n_seen - tile.n_shared;
    }
    tile.n_chunks = up(n_cells, chunk_cells) / chunk_cells;
    const cell_list & list = runs[0].list;
    if (tile.n_runs == 1 && read_list_ == list.cell && n_cells <= n_read_) {
        tile.cell = read_cell_;
        return;
    }
    tile.cell = (int32_t) cells_.size();
    int32_t n_here = n_cells;
    if (tile.n_runs == 1) {  // so many cells that they serve the next tiles of the list, too
        for (const run * next = runs; next < runs_.data() + runs_.size() && next->list.cell == list.cell; ++next) {
            n_here = next->n_seen;
        }
        read_list_ = list.cell;
        n_read_ = n_here;
        read_cell_ = tile.cell;
    }
    const auto add = [&](const cell_list & from, int32_t begin, int32_t end) {
        for (int32_t i = begin; i < end; ++i) {
            cells_.push_back((int32_t) from.cell[i].second);
        }
    };
    if (tile.n_runs == 1) {
        add(list, 0, n_here);
    } else {
        add(list, 0, tile.n_shared);
        for (int32_t r = 0; r < tile.n_runs; ++r) {
            add(runs[r].list, tile.n_shared, runs[r].n_seen);
        }
    }
    if (n_here > 0) {
        cells_.resize(tile.cell + up(n_here, chunk_cells), (int32_t) cells_.back());
    }
}

void visible_lists::add_tokens(const visible_cells & visible, tile & tile) {
    tile.token = (int32_t) tokens_.size();
    tile.mask = (int32_t) masks_.size();
    int32_t all_see = tile.n_shared;
    for (int32_t r = tile.first_run; r < tile.first_run + tile.n_runs; ++r) {
        for (int32_t i = runs_[r].begin; i < runs_[r].end; ++i) {
            tokens_.push_back(visible.token[i].index);
            all_see = std::min(all_see, visible.token[i].end);
        }
    }
    tile.n_whole = all_see / chunk_cells;
    for (int32_t chunk = tile.n_whole; chunk < tile.n_chunks; ++chunk) {
        add_mask(visible, tile, chunk * chunk_cells);
    }
}

void visible_lists::add_mask(const visible_cells & visible, const tile & tile, int32_t begin) {
    int32_t own = tile.n_shared;  // where the run's other cells begin in the tile
    for (int32_t r = tile.first_run; r < tile.first_run + tile.n_runs; ++r) {
        for (int32_t i = runs_[r].begin; i < runs_[r].end; ++i) {
            const int32_t n_seen = visible.token[i].end;
            masks_.push_back((int32_t) (bits(0, std::min(n_seen, tile.n_shared), begin) |
                                        bits(own, own + n_seen - tile.n_shared, begin)));
        }
        own += runs_[r].n_seen - tile.n_shared;
    }
}

// If there are few tiles with many cells, divides them into parts, so that all multiprocessors have work.
void visible_lists::add_items() {
    items_.clear();
    n_slots_ = 0;
    n_counters_ = 0;
    int64_t n_chunks = 0;
    for (const tile & tile : tiles_) {
        n_chunks += tile.n_chunks;
    }
    const auto part_chunks = is_invariant_
        ? invariant_part_chunks
        : (int32_t) std::max<int64_t>(min_part_chunks, (n_chunks + n_items_wanted_ - 1) / n_items_wanted_);
    for (const tile & tile : tiles_) {
        const int32_t n_parts = std::max(1, (tile.n_chunks + part_chunks - 1) / part_chunks);
        const auto begin_of = [&](int32_t part) {
            return is_invariant_ ? std::min(part * part_chunks, tile.n_chunks)
                                 : (int32_t) ((int64_t) tile.n_chunks * part / n_parts);
        };
        for (int32_t part = 0; part < n_parts; ++part) {
            const int32_t begin = begin_of(part);
            const int32_t end = begin_of(part + 1);
            lists_item item = {};
            item.tokens = tile.token;
            item.n_tokens = tile.n_tokens;
            item.cells = tile.cell + begin * chunk_cells;
            item.n_chunks = end - begin;
            item.n_first = is_invariant_ ? std::min(item.n_chunks, part_chunks / 2) : (item.n_chunks + 1) / 2;
            item.n_whole = std::max(0, tile.n_whole - begin);
            item.masks = tile.mask + std::max(0, begin - tile.n_whole) * tile.n_tokens;
            item.part = part;
            item.n_parts = n_parts;
            item.slot = n_slots_;
            item.counter = n_counters_;
            items_.push_back(item);
        }
        if (n_parts > 1) {
            n_slots_ += n_parts;
            n_counters_ += n_head_kv_ * tile_warps;
        }
    }
}

void visible_lists::lay_out() {
    const auto n_items = (int32_t) items_.size();
    const int32_t tokens = lists_begin + n_items * item_ints;
    const int32_t cells = up(tokens + (int32_t) tokens_.size(), chunk_cells);  // so that a warp reads 128 aligned bytes
    const int32_t masks = cells + (int32_t) cells_.size();
    const int32_t counters = masks + (int32_t) masks_.size();
    for (lists_item & item : items_) {
        item.tokens += tokens;
        item.cells += cells;
        item.masks += masks;
        item.counter += counters;
    }
    packed_.assign(counters + n_counters_, 0);
    packed_[0] = n_items;
    copy_to(packed_, lists_begin, items_);
    copy_to(packed_, tokens, tokens_);
    copy_to(packed_, cells, cells_);
    copy_to(packed_, masks, masks_);
    needed_ = {(int32_t) packed_.size(), n_items, n_slots_};
}

}  // namespace qcls
