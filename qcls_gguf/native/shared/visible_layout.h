// The layout of the lists of visible cells in the array that a GPU reads.
#ifndef QCLS_VISIBLE_LAYOUT_H
#define QCLS_VISIBLE_LAYOUT_H

#include <cstdint>

namespace qcls {

// Cells are read 32 at a time, one index by each lane of a warp.
constexpr int32_t chunk_cells = 32;
// A row is a query head of a token. The rows of a tile share one kv head; 16 of them are multiplied at once.
constexpr int32_t max_tile_rows = 64;
constexpr int32_t tile_warps = max_tile_rows / 16;

// A tile or a part of one: its tokens see some or all of 32 * n_chunks cells. The packed array begins with the number
// of items; the items follow from lists_begin on. `tokens`, `cells`, `masks` and `counter` are indices in the packed
// array.
struct lists_item {
    int32_t tokens;  // indices in the batch
    int32_t n_tokens;
    int32_t cells;
    int32_t n_chunks;
    int32_t n_whole;  // every token sees all cells of the first n_whole chunks
    int32_t masks;    // for each other chunk a word for each token: bit i says whether it sees cell i
    int32_t part;
    int32_t n_parts;
    int32_t slot;     // where part 0 of the tile keeps its result; the slots of the other parts follow
    int32_t counter;  // the tile's first counter: there is one for each kv head and 16 rows, 0 between launches
    int32_t n_first;  // how many chunks the first of two slices reads, at least half of them
    int32_t unused;
};
constexpr int32_t lists_begin = 4;

}  // namespace qcls

#endif
