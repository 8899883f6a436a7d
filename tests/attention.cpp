// The CPU's attention over visible cells on plain arrays, for tests/abi/test_attention.py.
#include "attention.h"

#include <cstdint>
#include <thread>
#include <vector>

// Sequence s has the cells list_cell[list_start[s]] ... list_cell[list_start[s + 1] - 1], at the positions list_pos, which
// ascend. Token i is of sequence token_seq[i], at token_pos[i], and sees the cells up to there.
struct arrays {
    int32_t n_threads;
    int32_t n_tokens;
    int32_t n_seqs;
    int32_t window;  // how many positions, its own among them, a token sees at most; 0: all
    int32_t n_head;
    int32_t n_head_kv;
    int32_t head_size_k;
    int32_t head_size_v;
    int32_t is_f16;  // of k and v; else they are F32
    float scale;
    const int32_t * token_seq;
    const int32_t * token_pos;
    const int32_t * list_start;
    const int32_t * list_pos;
    const int32_t * list_cell;
    const float * q;
    const void * k;
    const void * v;
    float * out;
};

extern "C" void compute_attention(const arrays * of, qcls::attend_fn attend) {
    std::vector<qcls::listed_cell> cells;
    for (int32_t i = 0; i < of->list_start[of->n_seqs]; ++i) {
        cells.emplace_back(of->list_pos[i], (uint32_t) of->list_cell[i]);
    }
    qcls::visible_cells visible;
    visible.make(
        of->n_tokens, [&](int32_t i) { return of->token_seq[i]; }, [&](int32_t i) { return of->token_pos[i]; },
        [&](int32_t s) {
            return qcls::cell_list{cells.data() + of->list_start[s], of->list_start[s + 1] - of->list_start[s]};
        },
        [&](int32_t p, int32_t own) { return of->window > 0 && own - p >= of->window; });

    const ptrdiff_t size = of->is_f16 ? 2 : 4;
    qcls::attention_call call;
    call.q = of->q;
    call.q_head_stride = of->head_size_k;
    call.q_token_stride = (ptrdiff_t) of->head_size_k * of->n_head;
    call.k = of->k;
    call.k_head_stride = of->head_size_k * size;
    call.k_cell_stride = of->head_size_k * size * of->n_head_kv;
    call.v = of->v;
    call.v_head_stride = of->head_size_v * size;
    call.v_cell_stride = of->head_size_v * size * of->n_head_kv;
    call.k_is_f16 = call.v_is_f16 = of->is_f16 != 0;
    call.n_head = of->n_head;
    call.n_head_kv = of->n_head_kv;
    call.head_size_k = of->head_size_k;
    call.head_size_v = of->head_size_v;
    call.scale = of->scale;
    call.visible = &visible;
    call.out = of->out;

    std::vector<std::thread> threads;
    for (int32_t i = 1; i < of->n_threads; ++i) {
        threads.emplace_back(attend, &call, i, of->n_threads);
    }
    attend(&call, 0, of->n_threads);
    for (std::thread & thread : threads) {
        thread.join();
    }
}
