// This project's attention on plain arrays, so that it can be held against a plain one.
#include "qcls.h"

#include "attention.h"

#include "ggml-backend.h"

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

qcls::attend_fn attend() {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    const auto found = cpu ? (qcls::attend_fn) ggml_backend_reg_get_proc_address(cpu, "qcls_attend") : nullptr;
    if (!found) {
        throw std::runtime_error("this build's CPU backend has no such attention");
    }
    return found;
}

void check(bool good, const char * message) {
    if (!good) {
        throw std::invalid_argument(message);
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

int32_t qcls_attention(int32_t n_tokens, const int32_t * token_seq, const int32_t * token_pos, int32_t n_seqs,
                       const int32_t * list_start, const int32_t * list_pos, const int32_t * list_cell, int32_t n_cells,
                       int32_t window, int32_t n_head, int32_t n_head_kv, int32_t head_size_k, int32_t head_size_v,
                       float scale, int32_t is_f16, const float * q, const void * k, const void * v, int32_t n_threads,
                       float * out, char * error, int32_t error_size) {
    const auto fail = [&](int32_t status, const char * message) {
        if (error && error_size > 0) {
            snprintf(error, error_size, "attention: %s", message);
        }
        return status;
    };
    try {
        check(n_head > 0 && n_head_kv > 0 && n_head % n_head_kv == 0, "n_head must be a multiple of n_head_kv");
        check(head_size_k > 0 && head_size_v > 0, "head sizes must be positive");
        check(n_threads >= 1 && n_threads <= 512, "n_threads must be between 1 and 512");
        check(n_seqs >= 0 && list_start[0] == 0, "the lists must begin at 0");
        std::vector<qcls::listed_cell> cells;
        for (int32_t s = 0; s < n_seqs; ++s) {
            check(list_start[s + 1] >= list_start[s], "list_start must ascend");
            for (int32_t i = list_start[s]; i < list_start[s + 1]; ++i) {
                check(list_cell[i] >= 0 && list_cell[i] < n_cells, "a list names a cell that is not there");
                check(list_pos[i] >= 0 && (i == list_start[s] || list_pos[i] >= list_pos[i - 1]),
                      "the positions of a list must ascend from 0 or more");
                cells.emplace_back(list_pos[i], (uint32_t) list_cell[i]);
            }
        }
        for (int32_t i = 0; i < n_tokens; ++i) {
            check(token_seq[i] >= 0 && token_seq[i] < n_seqs && token_pos[i] >= 0, "a token has no sequence or position");
        }
        qcls::visible_cells visible;
        visible.make(
            n_tokens, [&](int32_t i) { return token_seq[i]; }, [&](int32_t i) { return token_pos[i]; },
            [&](int32_t s) { return qcls::cell_list{cells.data() + list_start[s], list_start[s + 1] - list_start[s]}; },
            [&](int32_t p, int32_t own) { return window > 0 && own - p >= window; });

        const ptrdiff_t size = is_f16 ? 2 : 4;
        qcls::attention_call call;
        call.q = q;
        call.q_head_stride = head_size_k;
        call.q_token_stride = (ptrdiff_t) head_size_k * n_head;
        call.k = k;
        call.k_head_stride = head_size_k * size;
        call.k_cell_stride = head_size_k * size * n_head_kv;
        call.v = v;
        call.v_head_stride = head_size_v * size;
        call.v_cell_stride = head_size_v * size * n_head_kv;
        call.k_is_f16 = call.v_is_f16 = is_f16 != 0;
        call.n_head = n_head;
        call.n_head_kv = n_head_kv;
        call.head_size_k = head_size_k;
        call.head_size_v = head_size_v;
        call.scale = scale;
        call.visible = &visible;
        call.out = out;
        run(call, n_threads);
        return QCLS_OK;
    } catch (const std::invalid_argument & e) {
        return fail(QCLS_BAD_ARGUMENT, e.what());
    } catch (const std::exception & e) {
        return fail(QCLS_DECODE_FAILED, e.what());
    } catch (...) {
        return fail(QCLS_DECODE_FAILED, "unknown C++ exception");
    }
}
