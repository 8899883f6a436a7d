// Sequences of a KV cache and of a batch, stored so that work grows with the cells or tokens of a sequence, not with
// the highest possible number of sequences (patches/0004-seq-cells.patch, 0009-many-sequences.patch).
#ifndef QCLS_SEQ_CELLS_H
#define QCLS_SEQ_CELLS_H

#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace qcls {

// The cells of one sequence in an array, ordered by position and index. Decoded cells are appended, trimmed cells are
// at the end, and reading all cells reads memory in order. It has the functions of std::set that llama.cpp uses.
class seq_cells : private std::vector<std::pair<llama_pos, uint32_t>> {
public:
    using base = std::vector<value_type>;
    using base::begin, base::end, base::rbegin, base::rend, base::empty, base::size, base::data, base::clear;

    const_iterator lower_bound(const value_type & value) const { return std::lower_bound(begin(), end(), value); }
    const_iterator upper_bound(const value_type & value) const { return std::upper_bound(begin(), end(), value); }

    void insert(const value_type & value) {
        const auto it = empty() || back() < value ? end() : lower_bound(value);
        if (it == end() || *it != value) {
            base::insert(it, value);
        }
    }

    size_t erase(const value_type & value) {
        const auto it = !empty() && back() == value ? end() - 1 : lower_bound(value);
        if (it == end() || *it != value) {
            return 0;
        }
        base::erase(it);
        return 1;
    }
};

// The lowest set bit of a std::bitset from `first` on; the bitset's size if there is none.
template <typename Bits> int32_t next_set(const Bits & bits, int32_t first) {
#ifdef __GLIBCXX__
    return (int32_t) (first == 0 ? bits._Find_first() : bits._Find_next(first - 1));
#else
    while (first < (int32_t) bits.size() && !bits.test(first)) {
        ++first;
    }
    return first;
#endif
}

// The positions of a sequence in a batch, which must not decrease: the lowest, the highest, and how many differ.
struct ascending_positions {
    llama_pos min = -1;
    llama_pos max = -1;
    size_t n = 0;

    bool empty() const { return n == 0; }
    size_t size() const { return n; }
    void clear() { *this = {}; }

    void insert(llama_pos pos) {
        n += n == 0 || pos != max;
        min = n == 1 ? pos : std::min(min, pos);
        max = std::max(max, pos);
    }
};

}  // namespace qcls

#endif
