// The order in which recurrent layers walk a token tree, and where states wait for the other branches.
#include "tree_rows.h"
#include "tree_walk.h"

#include <algorithm>

namespace qcls {

void tree_walk::find_order() {
    const int32_t n_tokens = (int32_t) (made.size() / n_tree_rows);
    const int32_t * parent = made.data() + (size_t) tree_parent * n_tokens;
    int32_t * order = made.data() + (size_t) tree_order * n_tokens;
    int32_t * source = made.data() + (size_t) tree_source * n_tokens;
    int32_t * slot = made.data() + (size_t) tree_slot * n_tokens;
    int32_t * begin = made.data() + (size_t) tree_begin * n_tokens;
    std::fill(begin, begin + n_tokens, n_tokens);
    n_roots = n_slots_used = 0;
    child.assign(n_tokens, -1);
    sibling.assign(n_tokens, -1);
    n_slots.assign(n_tokens, 0);
    // A list of children begins with the one that needs most slots, which is walked last, when the branch point needs its
    // slot no more; the second one needs most of the others.
    for (int32_t i = n_tokens - 1; i >= 0; --i) {
        if (const int32_t first = child[i]; first >= 0) {
            const int32_t second = sibling[first];
            n_slots[i] = std::max(n_slots[first], second >= 0 ? n_slots[second] + 1 : 0);
        }
        if (parent[i] < 0) {
            continue;
        }
        int32_t * place = &child[parent[i]];
        if (*place >= 0 && n_slots[*place] > n_slots[i]) {
            int32_t * next = &sibling[*place];
            place = *next >= 0 && n_slots[*next] > n_slots[i] ? &sibling[*next] : next;
        }
        sibling[i] = *place;
        *place = i;
    }
    // Depth first, on a stack of tokens. From here on n_slots says how many slots hold states of branch points above a
    // token, which is the slot that a branch point gets.
    int32_t n_walked = 0;
    for (int32_t root = 0; root < n_tokens; ++root) {
        if (parent[root] >= 0) {
            continue;
        }
        n_slots_used = std::max(n_slots_used, n_slots[root]);
        begin[n_roots++] = n_walked;
        n_slots[root] = 0;
        to_walk.assign(1, root);
        while (!to_walk.empty()) {
            const int32_t i = to_walk.back();
            const int32_t first = child[i];
            const bool branches = first >= 0 && sibling[first] >= 0;
            to_walk.pop_back();
            const bool goes_on = i == root || order[n_walked - 1] == parent[i];
            source[n_walked] = goes_on ? tree_running : n_slots[parent[i]];
            slot[n_walked] = branches ? n_slots[i] : tree_no_slot;
            order[n_walked++] = i;
            for (int32_t c = first; c >= 0; c = sibling[c]) {
                n_slots[c] = n_slots[i] + (c != first);
                to_walk.push_back(c);
            }
        }
    }
}

tree_node tree_walk::sizes_of(int32_t graph_number) {
    const int32_t number = -2 - graph_number;
    tree_node node = {};
    node.n_roots = number / (n_tree_slots + 1);
    node.n_slots = number % (n_tree_slots + 1);
    return node;
}

void tree_walk::lay_out(const std::vector<int32_t> & parents) {
    made.assign(n_tree_rows * parents.size(), 0);
    std::copy(parents.begin(), parents.end(), made.begin() + tree_parent * parents.size());
    find_order();
}

}  // namespace qcls
