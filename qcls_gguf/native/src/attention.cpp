// This project's attention on plain arrays, so that tests can compare it with a simple implementation.
#include "shim.h"

#include "attention.h"

#include "ggml-backend.h"

#include <string>
#include <thread>
#include <vector>

namespace {

qcls::attend_fn attend() {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    const auto found = cpu ? (qcls::attend_fn) ggml_backend_reg_get_proc_address(cpu, "qcls_attend") : nullptr;
    if (!found) {
        throw failure{QCLS_UNSUPPORTED, "this build's CPU code has no such attention"};
    }
    return found;
}

void check(bool good, const char * message) {
    if (!good) {
        throw bad_argument(std::string("attention: ") + message);
    }
}

void run(const qcls::attention_call & call, int32_t n_threads) {
    const qcls::attend_fn share = attend();
    std::vector<std::thread> threads;
    for (int32_t i = 1; i < n_threads; ++i) {
        threads.emplace_back(share, &call, i, n_threads);
    }
    share(&call, 0, n_threads);
    for (std::thread & thread : threads) {
        thread.join();
    }
}

}  // namespace

int32_t qcls_compute_attention(const qcls_attention * attention, qcls_error * error) {
    return guarded(error, QCLS_DECODE_FAILED, [&] {
        const qcls_attention of = taken(attention, QCLS_UP_TO(qcls_attention, out), "qcls_attention");
        check_array(of.token_seq, of.n_tokens, "attention: token_seq");
        check_array(of.token_pos, of.n_tokens, "attention: token_pos");
        check(of.n_head > 0 && of.n_head_kv > 0 && of.n_head % of.n_head_kv == 0,
              "n_head must be a multiple of n_head_kv");
        check(of.head_size_k > 0 && of.head_size_v > 0, "head sizes must be positive");
        check(of.n_threads >= 1 && of.n_threads <= 512, "n_threads must be between 1 and 512");
        check(of.n_seqs >= 0 && of.n_tokens >= 0 && of.n_cells >= 0, "a number is negative");
        check(of.list_start && of.list_start[0] == 0, "the lists must begin at 0");
        std::vector<qcls::listed_cell> cells;
        for (int64_t s = 0; s < of.n_seqs; ++s) {
            check(of.list_start[s + 1] >= of.list_start[s], "list_start must ascend");
            for (int32_t i = of.list_start[s]; i < of.list_start[s + 1]; ++i) {
                check(of.list_cell[i] >= 0 && of.list_cell[i] < of.n_cells, "a list names a cell that is not there");
                check(of.list_pos[i] >= 0 && (i == of.list_start[s] || of.list_pos[i] >= of.list_pos[i - 1]),
                      "the positions of a list must ascend from 0 or more");
                cells.emplace_back(of.list_pos[i], (uint32_t) of.list_cell[i]);
            }
        }
        for (int64_t i = 0; i < of.n_tokens; ++i) {
            check(of.token_seq[i] >= 0 && of.token_seq[i] < of.n_seqs && of.token_pos[i] >= 0,
                  "a token has no sequence or position");
        }
        qcls::visible_cells visible;
        visible.make(
            (int32_t) of.n_tokens, [&](int32_t i) { return of.token_seq[i]; }, [&](int32_t i) { return of.token_pos[i]; },
            [&](int32_t s) {
                return qcls::cell_list{cells.data() + of.list_start[s], of.list_start[s + 1] - of.list_start[s]};
            },
            [&](int32_t p, int32_t own) { return of.window > 0 && own - p >= of.window; });

        const ptrdiff_t size = of.is_f16 ? 2 : 4;
        qcls::attention_call call;
        call.q = of.q;
        call.q_head_stride = of.head_size_k;
        call.q_token_stride = (ptrdiff_t) of.head_size_k * of.n_head;
        call.k = of.k;
        call.k_head_stride = of.head_size_k * size;
        call.k_cell_stride = of.head_size_k * size * of.n_head_kv;
        call.v = of.v;
        call.v_head_stride = of.head_size_v * size;
        call.v_cell_stride = of.head_size_v * size * of.n_head_kv;
        call.k_is_f16 = call.v_is_f16 = of.is_f16 != 0;
        call.n_head = of.n_head;
        call.n_head_kv = of.n_head_kv;
        call.head_size_k = of.head_size_k;
        call.head_size_v = of.head_size_v;
        call.scale = of.scale;
        call.visible = &visible;
        call.out = of.out;
        run(call, of.n_threads);
    });
}
