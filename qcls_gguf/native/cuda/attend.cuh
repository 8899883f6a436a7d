// The kernel. A block computes an item of the lists for one kv head. A warp has 16 of the item's rows; there are two
// sets of warps, the slices, each of which reads half of the item's chunks.
#pragma once

#include "attend_chunk.cuh"

namespace qcls_attend {

constexpr int n_slices = 2;

// Reads the chunks [begin, end) of an item in n_steps steps, as many as the longer slice has. A chunk is fetched while
// the previous one is computed, and its indices while the previous one is fetched. Warps without rows only fetch.
template <int D>
static __device__ __forceinline__ void read_chunks(
        state<D> & s, const uint32_t (&q)[D / 8][2], const ggml_cuda_attend_call & call, const qcls::lists_item & item,
        chunk_memory<D> & memory, const int begin, const int end, const int n_steps, const int (&token)[2],
        const bool has_rows, const int head_kv) {
    const int lane = threadIdx.x % 32;
    const int thread = threadIdx.x % slice_threads;
    const int32_t * const all_cells = call.lists + item.cells;
    int cells[fetched<D>::n];
    fetched<D> next;
    if (begin < end) {
        read_cells<D>(cells, all_cells + begin * chunk_cells, thread);
        fetch<D>(next, call, head_kv, cells, thread);
        read_cells<D>(cells, all_cells + min(begin + 1, end - 1) * chunk_cells, thread);
    }
    for (int step = 0; step < n_steps; ++step) {
        const int chunk = begin + step;
        uint32_t seen[2] = {0xffffffff, 0xffffffff};
        if (chunk >= item.n_whole && chunk < end) {
            const int32_t * const mask = call.lists + item.masks + (chunk - item.n_whole) * item.n_tokens;
            seen[0] = (uint32_t) mask[token[0]];
            seen[1] = (uint32_t) mask[token[1]];
        }
        __syncthreads();
        if (chunk < end) {
            put_down(memory, next, thread);
        }
        __syncthreads();
        if (chunk + 1 < end) {
            fetch<D>(next, call, head_kv, cells, thread);
            read_cells<D>(cells, all_cells + min(chunk + 2, end - 1) * chunk_cells, thread);
        }
        if (has_rows && chunk < end) {
            float score[4][4];
            multiply_keys<D>(score, q, memory.k, lane);
            uint32_t weight[4][2];
            weigh(s, score, weight, seen, lane);
            add_values(s, weight, memory.v, lane);
        }
    }
}

// n_grouped query heads read one kv head; row * inverse / 65536 is row / n_grouped.
template <int D>
static __global__ void __launch_bounds__(n_slices * slice_threads, 1)
    attend(const ggml_cuda_attend_call call, const int n_grouped, const int inverse) {
    union memory {
        chunk_memory<D> chunks[n_slices];
        float4 states[tile_warps * slot_size<D>()];
    };
    __shared__ __align__(16) unsigned char shared[sizeof(memory)];
    memory & mine = *(memory *) shared;
    if ((int) blockIdx.x >= call.lists[0]) {
        return;
    }
    const qcls::lists_item item = ((const qcls::lists_item *) (call.lists + qcls::lists_begin))[blockIdx.x];
    const int lane = threadIdx.x % 32;
    const int group = threadIdx.x % slice_threads / 32;
    const int slice = threadIdx.x / slice_threads;
    const int head_kv = blockIdx.y;
    const int n_rows = item.n_tokens * n_grouped;
    const bool has_rows = 16 * group < n_rows;
    const int32_t * const tokens = call.lists + item.tokens;
    int token[2];  // the tokens of the lane's rows, by their number in the tile
    bool is_row[2];
    int64_t row[2];  // the rows' index, of token and head, in q and out
    uint32_t q[D / 8][2];
    const float by = call.scale * 1.4426950408889634f;  // exponents have base 2
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int in_tile = 16 * group + lane / 4 + 8 * r;
        is_row[r] = in_tile < n_rows;
        token[r] = is_row[r] ? in_tile * inverse / 65536 : 0;
        const int head = head_kv * n_grouped + (is_row[r] ? in_tile - token[r] * n_grouped : 0);
        const int64_t index = tokens[token[r]];
        row[r] = index * call.n_head + head;
        const float * const from = call.q + index * call.q_token_stride + head * call.q_head_stride + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < D / 8; ++i) {
            const float2 x = *(const float2 *) (from + 8 * i);
            q[i][r] = half_pair(x.x * by, x.y * by);
        }
    }
    state<D> s;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            s.out[i][j] = 0;
        }
    }
    s.max[0] = s.max[1] = -INFINITY;
    s.sum[0] = s.sum[1] = 0;
    const int n_first = item.n_first;
    const int begin = slice == 0 ? 0 : n_first;
    const int end = slice == 0 ? n_first : item.n_chunks;
    read_chunks<D>(s, q, call, item, mine.chunks[slice], begin, end, n_first, token, has_rows, head_kv);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        s.sum[r] += __shfl_xor_sync(0xffffffff, s.sum[r], 1);
        s.sum[r] += __shfl_xor_sync(0xffffffff, s.sum[r], 2);
    }
    if (n_first < item.n_chunks) {
        __syncthreads();  // all warps have finished with the chunks
        if (slice == 1 && has_rows) {
            put(mine.states + group * slot_size<D>(), s, lane);
        }
        __syncthreads();
        if (slice == 0 && has_rows) {
            add(s, mine.states + group * slot_size<D>(), lane, [](const float4 * p) { return *p; });
        }
    }
    if (slice == 1 || !has_rows) {
        return;
    }
    if (item.n_parts > 1) {
        // the warp that finishes last adds the results of all parts in their order
        const auto slot_of = [&](const int part) {
            const int64_t slot = (int64_t) (item.slot + part) * call.n_head_kv + head_kv;
            return call.slots + (slot * tile_warps + group) * slot_size<D>();
        };
        put(slot_of(item.part), s, lane);
        __threadfence();
        __syncwarp();
        unsigned n_done = 0;
        if (lane == 0) {
            auto * const counter = (unsigned *) (call.lists + item.counter + head_kv * tile_warps + group);
            n_done = atomicInc(counter, item.n_parts - 1);  // the last one makes it 0 again
        }
        if (__shfl_sync(0xffffffff, n_done, 0) != item.n_parts - 1) {
            return;
        }
        __threadfence();
        s.max[0] = s.max[1] = -INFINITY;
        s.sum[0] = s.sum[1] = 0;
        const float none[2] = {0, 0};
        scale(s, none);
#pragma unroll 2
        for (int part = 0; part < item.n_parts; ++part) {
            add(s, slot_of(part), lane, [](const float4 * p) { return __ldcg(p); });
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (!is_row[r]) {
            continue;
        }
        const float share = s.sum[r] > 0 ? 1 / s.sum[r] : 0;
        float * const to = call.out + row[r] * D + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < D / 8; ++i) {
            *(float2 *) (to + 8 * i) = make_float2(s.out[i][2 * r] * share, s.out[i][2 * r + 1] * share);
        }
    }
}

}  // namespace qcls_attend
