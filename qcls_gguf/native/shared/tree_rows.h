// How recurrent layers walk the token tree of a batch: what libllama lays out and the operations of the backends read.
#ifndef QCLS_TREE_ROWS_H
#define QCLS_TREE_ROWS_H

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace qcls {

// The rows of an int32 tensor [n_tree_rows][n_tokens].
enum tree_row {
    tree_parent,  // of each token: the one that it grows from, which comes before it; ~i: the state in row i of the cache
    tree_order,   // the tokens as they are walked: depth first, so that one state changes along each chain
    tree_source,  // of each place in that order: the slot with the state before the token; tree_running: the last one's
    tree_slot,    // of each place: the slot that keeps the state after the token; tree_no_slot where no other one needs it
    tree_begin,   // of each root, a token whose parent is not in the batch: its place in the order; n_tokens after the last
    n_tree_rows
};

constexpr int32_t tree_no_state = INT32_MIN;  // a parent: the token begins a text
constexpr int32_t tree_running = -1;
constexpr int32_t tree_no_slot = -1;

// The branch that needs most slots is walked last, when its branch point needs none any more. So n slots are enough for
// 2^n leaves, and there are at most 4,096 sequences.
constexpr int n_tree_slots = 12;

// What a node of such an operation says besides its sources, after the parameters that ggml_custom_4d() stores in it.
struct tree_node {
    // of the trees that its graph serves
    int32_t n_roots;
    int32_t n_slots;
    // Neighbouring nodes that are computed with it: SiLU after a convolution, then the norm of each head in its first
    // channels; the gates of a delta net.
    int32_t has_more;
    int32_t n_normed;  // channels: x becomes x / sqrt(mean of its head's squares + eps) * scale
    int32_t head_size;
    float eps;
    float scale;
};
constexpr size_t tree_node_offset = sizeof(void *) * 4;

inline tree_node read_node(const int32_t * op_params) {
    tree_node found;
    memcpy(&found, (const char *) op_params + tree_node_offset, sizeof(found));
    return found;
}

// What the operations know: taps of a convolution, values of a row of a state.
constexpr int least_taps = 2;
constexpr int most_taps = 4;
constexpr int most_state_values = 256;
// Normed with a convolution: of so many channels at once, heads of a multiple of the least size.
constexpr int normed_channels = 256;
constexpr int least_normed = 32;

}  // namespace qcls

#endif
