// How recurrent layers walk the token tree of a batch: what libllama lays out and the operations of the backends read.
#ifndef QCLS_TREE_ROWS_H
#define QCLS_TREE_ROWS_H

#include <cstdint>

namespace qcls {

// The rows of an int32 tensor [n_tree_rows][n_tokens].
enum tree_row {
    tree_parent,  // of each token: the one that it grows from, which comes before it; ~i: the state in row i of the cache
    tree_order,   // the tokens as they are walked: depth first, so that one state changes along each chain
    tree_source,  // of each place in that order: the slot with the state before the token; tree_running: the last one's
    tree_slot,    // of each place: the slot that keeps the state after the token; tree_no_slot where no other one needs it
    n_tree_rows
};

constexpr int32_t tree_no_state = INT32_MIN;  // a parent: the token begins a text
constexpr int32_t tree_running = -1;
constexpr int32_t tree_no_slot = -1;

// The branch that needs most slots is walked last, when its branch point needs none any more. So n slots are enough for
// 2^n leaves, and there are at most 4,096 sequences.
constexpr int n_tree_slots = 12;

// What the operations know: taps of a convolution, values of a row of a state.
constexpr int least_taps = 2;
constexpr int most_taps = 4;
constexpr int most_state_values = 256;

}  // namespace qcls

#endif
