// Recurrent layers that walk the token tree of a batch: all tokens in one pass, whatever the lengths of the branches
// (patches/0014-tree-walk.patch). States are read where they lie in the cache, and none is written.
#ifndef QCLS_TREE_WALK_H
#define QCLS_TREE_WALK_H

#include "tree_rows.h"

#include <cstdint>
#include <vector>

class llama_batch_allocr;
class llama_memory_recurrent;
struct llama_ubatch;
struct llm_graph_context;
struct llm_graph_params;

namespace qcls {

// What a cache of states knows of it.
class tree_walk {
public:
    bool is_on = false;  // whether the next batches are walked

    // All tokens of a batch as one sequence; an empty one where they were taken before. Throws where they do not fit.
    static llama_ubatch take(llama_batch_allocr & batch, uint32_t n_most);

    // Makes the rows for a batch in which each token comes after the one that it grows from.
    void lay_out(const llama_ubatch & batch, const llama_memory_recurrent & states);
    void lay_out(const std::vector<int32_t> & parents);

    // [n_tree_rows][n_tokens]; see tree_rows.h
    const std::vector<int32_t> & rows() const { return made; }

    // The sizes of the tree as one number, by which llama.cpp tells graphs with recurrent layers apart; graphs that write
    // states have numbers from -1 on.
    int32_t graph_number() const { return -2 - n_roots * (n_tree_slots + 1) - n_slots_used; }
    static tree_node sizes_of(int32_t graph_number);

private:
    void find_order();

    std::vector<int32_t> made;
    int32_t n_roots = 0;
    int32_t n_slots_used = 0;
    // kept, so that the next batch allocates nothing; of each sequence, or of each token
    std::vector<int32_t> last_token, parent, child, sibling, n_slots, to_walk;
};

// How many of a context's n sequences keep states at once: set_n_with_states() of qcls_llama.h.
uint32_t n_with_states(uint32_t n);

// Changes a graph that was built for one sequence so that its recurrent layers walk the tree; nothing where the batch is
// not walked. Throws where the graph does something with states that is not known.
void walk_tree(const llm_graph_context & graph, const llm_graph_params & params);

}  // namespace qcls

#endif
