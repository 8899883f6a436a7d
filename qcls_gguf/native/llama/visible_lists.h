// The lists of visible cells as a GPU reads them: one array of int32, packed once a batch, read by every layer.
#ifndef QCLS_VISIBLE_LISTS_H
#define QCLS_VISIBLE_LISTS_H

#include "visible.h"
#include "visible_layout.h"

#include <cstdint>
#include <vector>

namespace qcls {

// How much a launch, and so a graph, has room for.
struct lists_room {
    int32_t n_ints = 0;   // int32 of the packed array
    int32_t n_items = 0;  // blocks for each kv head
    int32_t n_slots = 0;  // parts whose results are kept until the last part of their tile is done

    bool holds(const lists_room & need) const {
        return need.n_ints <= n_ints && need.n_items <= n_items && need.n_slots <= n_slots;
    }
};

class visible_lists {
public:
    // n_grouped query heads, at most max_tile_rows, read each of the n_head_kv kv heads. is_invariant: how a token's
    // cells are divided into chunks and parts does not depend on the rest of the batch.
    visible_lists(int32_t n_grouped, int32_t n_head_kv, bool is_invariant = false);

    // Packs the lists of a batch. `visible` must have no sliding windows: each token sees its list from the beginning.
    void pack(const visible_cells & visible);

    const std::vector<int32_t> & packed() const { return packed_; }
    const lists_room & needed() const { return needed_; }

    // The room that a graph should have, so that it also serves other batches like this one.
    lists_room room() const;

    // The room that is usually enough for a batch of n_tokens over n_cells; a batch that needs more gets a larger
    // graph.
    lists_room usual_room(int32_t n_tokens, int32_t n_cells) const;

private:
    // Tokens of one sequence, visible_cells::token [begin, end).
    struct run {
        cell_list list;
        int32_t begin;
        int32_t end;
        int32_t n_seen;  // cells of the list that the last token sees
    };
    // Runs that are read together; their lists are equal in the first n_shared cells.
    struct tile {
        int32_t first_run;
        int32_t n_runs;
        int32_t n_tokens;
        int32_t n_shared;
        // indices in tokens_, cells_ and masks_
        int32_t token;
        int32_t cell;
        int32_t mask;
        int32_t n_chunks;
        int32_t n_whole;
    };

    void find_runs(const visible_cells & visible);
    void group_runs();
    void add_cells(tile & tile);
    void add_tokens(const visible_cells & visible, tile & tile);
    void add_mask(const visible_cells & visible, const tile & tile, int32_t begin);
    void add_items();
    void lay_out();

    const int32_t n_head_kv_;
    const int32_t tile_tokens_;
    const int32_t n_items_wanted_;
    const bool is_invariant_;
    std::vector<int32_t> packed_;
    lists_room needed_;

    std::vector<run> runs_;
    std::vector<tile> tiles_;
    std::vector<int32_t> tokens_;
    std::vector<int32_t> cells_;
    std::vector<int32_t> masks_;
    std::vector<lists_item> items_;
    const listed_cell * read_list_ = nullptr;  // its first n_read_ cells are in cells_ from read_cell_ on
    int32_t n_read_ = 0;
    int32_t read_cell_ = 0;
    int32_t n_slots_ = 0;
    int32_t n_counters_ = 0;
};

}  // namespace qcls

#endif
