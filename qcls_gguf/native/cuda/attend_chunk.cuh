// A chunk of 32 cells: fetched from the cache to registers, stored to shared memory, and multiplied from there.
#pragma once

#include "attend.h"
#include "attend_fragments.cuh"
#include "attend_state.cuh"
#include "visible_layout.h"

namespace qcls_attend {

using qcls::chunk_cells;
using qcls::tile_warps;

constexpr int slice_threads = tile_warps * 32;  // threads that share a chunk

// A chunk in shared memory. A cell's head takes D halves and 16 bytes of padding, so that the same part of 8 cells is
// in different banks.
template <int D> struct chunk_memory {
    static constexpr int pitch = D + 8;
    __half k[chunk_cells * pitch];
    __half v[chunk_cells * pitch];
};

// The pieces of a chunk, 16 bytes each, that a thread fetches ahead.
template <int D> struct fetched {
    static constexpr int n_pieces = chunk_cells * D / 8;  // for all threads together
    static constexpr int n = (n_pieces + slice_threads - 1) / slice_threads;
    uint4 k[n];
    uint4 v[n];
};

// The cell of thread i's piece number j. Pieces from n_pieces on do not exist.
template <int D> static __device__ __forceinline__ int cell_of(const int i, const int j) {
    return (j * slice_threads + i) / (D / 8);
}

template <int D> static __device__ __forceinline__ int value_of(const int i, const int j) {
    return (j * slice_threads + i) % (D / 8) * 8;
}

template <int D> static __device__ __forceinline__ bool is_piece(const int i, const int j) {
    return fetched<D>::n_pieces % slice_threads == 0 || j * slice_threads + i < fetched<D>::n_pieces;
}

template <int D>
static __device__ __forceinline__ void read_cells(int (&cells)[fetched<D>::n], const int32_t * chunk, const int i) {
#pragma unroll
    for (int j = 0; j < fetched<D>::n; ++j) {
        cells[j] = is_piece<D>(i, j) ? chunk[cell_of<D>(i, j)] : 0;
    }
}

template <int D>
static __device__ __forceinline__ void fetch(fetched<D> & to, const ggml_cuda_attend_call & call, const int head_kv,
                                             const int (&cells)[fetched<D>::n], const int i) {
#pragma unroll
    for (int j = 0; j < fetched<D>::n; ++j) {
        if (is_piece<D>(i, j)) {
            const int64_t cell = cells[j];
            const int at = value_of<D>(i, j) * sizeof(__half);
            const int64_t k_at = cell * call.k_cell_stride + head_kv * call.k_head_stride + at;
            const int64_t v_at = cell * call.v_cell_stride + head_kv * call.v_head_stride + at;
            to.k[j] = *(const uint4 *) ((const char *) call.k + k_at);
            to.v[j] = *(const uint4 *) ((const char *) call.v + v_at);
        }
    }
}

template <int D>
static __device__ __forceinline__ void put_down(chunk_memory<D> & to, const fetched<D> & from, const int i) {
#pragma unroll
    for (int j = 0; j < fetched<D>::n; ++j) {
        if (is_piece<D>(i, j)) {
            const int at = cell_of<D>(i, j) * to.pitch + value_of<D>(i, j);
            *(uint4 *) (to.k + at) = from.k[j];
            *(uint4 *) (to.v + at) = from.v[j];
        }
    }
}

// Computes the scores of a chunk; score[t] has those of 8 cells.
template <int D>
static __device__ __forceinline__ void multiply_keys(float (&score)[4][4], const uint32_t (&q)[D / 8][2],
                                                     const __half * k, const int lane) {
    constexpr int pitch = chunk_memory<D>::pitch;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            score[t][i] = 0;
        }
    }
#pragma unroll
    for (int i = 0; i < D / 8; i += 2) {
#pragma unroll
        for (int t = 0; t < 4; t += 2) {
            uint32_t part[4];  // of 8 cells the values from 8i and from 8i + 8 on, then the same of the next 8 cells
            load_matrices(part, k + (8 * t + lane / 16 * 8 + lane % 8) * pitch + 8 * i + lane / 8 % 2 * 8);
            multiply(score[t], q[i], q[i + 1], part[0], part[1]);
            multiply(score[t + 1], q[i], q[i + 1], part[2], part[3]);
        }
    }
}

// Adds the weighted values of a chunk; weight[t] has the weights of 8 cells as a fragment for the tensor cores.
template <int D>
static __device__ __forceinline__ void add_values(state<D> & to, const uint32_t (&weight)[4][2], const __half * v,
                                                  const int lane) {
    constexpr int pitch = chunk_memory<D>::pitch;
#pragma unroll
    for (int t = 0; t < 4; t += 2) {
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            uint32_t part[4];  // values from 8i on of 8 cells and of the next 8, then values from 8i + 8 on
            load_transposed(part, v + (8 * t + lane / 8 % 2 * 8 + lane % 8) * pitch + 8 * i + lane / 16 * 8);
            multiply(to.out[i], weight[t], weight[t + 1], part[0], part[1]);
            multiply(to.out[i + 1], weight[t], weight[t + 1], part[2], part[3]);
        }
    }
}

}  // namespace qcls_attend
