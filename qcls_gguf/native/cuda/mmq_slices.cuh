// How the rows of a warp come to the part of shared memory that only this warp uses, a slice (a K_BLOCK or a K_STEP) at a
// time: through registers in code for 7.5, by asynchronous copies in code for 8.0 and newer. For every type that has a
// weight_type.
#pragma once

#include "mmq_copied_weights.cuh"
#include "mmq_types.cuh"
#include "mmq_weights.cuh"

namespace mmq_direct {

// The vectors of 8 or 16 bytes that a lane moves: LANES lanes move the first BULK vectors of a row, 32/LANES rows at
// once; then each lane moves the rest of one row.
template <ggml_type type, int RG> struct row_vectors {
    using T = weight_type<type>;
    static constexpr bool IS_ANYWHERE = T::ALIGNMENT < 8;  // whole aligned vectors that contain the bytes are moved
    static constexpr int VECTOR = T::ALIGNMENT == 8 ? 8 : 16;
    static constexpr int N_VECTORS = IS_ANYWHERE ? (T::BYTES + 2*VECTOR - T::ALIGNMENT - 1)/VECTOR : T::BYTES/VECTOR;
    static constexpr int LANES = VECTOR == 8 || N_VECTORS > 12 ? 16 : 8;
    static constexpr int BULK = N_VECTORS < LANES ? N_VECTORS : LANES;
    static constexpr int TAIL = N_VECTORS - BULK;
    static constexpr int ROWS_AT_ONCE = 32/LANES;
    static constexpr int N_BULK = RG*8/ROWS_AT_ONCE;
    static constexpr int N_LOADS = N_BULK + TAIL;
    static constexpr int WORDS = N_VECTORS*VECTOR/4;
    static constexpr int PITCH = 4*(WORDS/8*8 + (WORDS % 8 <= 4 ? 4 : 12));  // 4 words modulo 8: lanes use different banks

    const char * bulk;
    const char * tail;
    int stride;  // of ROWS_AT_ONCE rows

    __device__ __forceinline__ void start(const char * x, const int stride_row) {
        bulk = x + (int) threadIdx.x/LANES*stride_row + threadIdx.x%LANES*VECTOR;
        tail = x + (int) threadIdx.x*stride_row + BULK*VECTOR;
        stride = ROWS_AT_ONCE*stride_row;
    }
    __device__ __forceinline__ void advance() {
        bulk += T::BYTES;
        tail += T::BYTES;
    }
    static __device__ __forceinline__ const char * aligned(const char * p) {
        return IS_ANYWHERE ? p - ((size_t) p & (VECTOR - 1)) : p;
    }
    // Calls f(number of the load, where the vector is, where it goes).
    template <typename F> __device__ __forceinline__ void for_each(const F & f) const {
        if (BULK == LANES || threadIdx.x%LANES < BULK) {
#pragma unroll
            for (int i = 0; i < N_BULK; ++i) {
                f(i, aligned(bulk + i*stride), (i*ROWS_AT_ONCE + threadIdx.x/LANES)*PITCH + threadIdx.x%LANES*VECTOR);
            }
        }
        if (TAIL > 0 && (RG == 4 || threadIdx.x < RG*8)) {
#pragma unroll
            for (int i = 0; i < TAIL; ++i) {
                f(N_BULK + i, aligned(tail) + i*VECTOR, threadIdx.x*PITCH + (BULK + i)*VECTOR);
            }
        }
    }
};

// What both transports have: a place where the rows are read.
template <ggml_type type, int RG> struct rows_in_shared {
    using T = weight_type<type>;
    using vectors = row_vectors<type, RG>;
    static constexpr int N_SCALES = T::N_SCALES;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = T::HAS_MIN;
    static constexpr int SLICES_OF_BLOCK = T::SLICES_OF_BLOCK;
    static constexpr int BLOCK_BYTES = SLICES_OF_BLOCK*T::BYTES;

    vectors rows;
    const char * read;   // in memory, the row whose values this lane multiplies; 8 rows further, rows begin alike modulo 16
    const char * first;  // the same in shared memory

    __device__ __forceinline__ void start_rows(const char * x, const int stride_row) {
        T::prepare();
        rows.start(x, stride_row);
        read = x + (int) threadIdx.x/4*stride_row;
    }
    __device__ __forceinline__ void open_rows(const char * place) {
        first = place + threadIdx.x/4*vectors::PITCH + (vectors::IS_ANYWHERE ? (int) ((size_t) read & (vectors::VECTOR - 1)) : 0);
        read += T::BYTES;
    }
    __device__ __forceinline__ void unpack(const int h, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][N_SCALES]) const {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            T::values(first + 8*r*vectors::PITCH, SLICES_OF_BLOCK == 1 ? h : 0, pair, n, a[r], s[r]);
        }
    }
    // As q4_k_min_fragment().
    __device__ __forceinline__ int min_fragment(const int r, const int h) const {
        const half2 v = T::minimums(first + 8*r*vectors::PITCH, h, threadIdx.x % 2 * 2);
        return threadIdx.x % 4 < 2 ? *(const int *) &v : 0;
    }
};

template <ggml_type type, int RG, bool early, bool short_loop> struct weights : rows_in_shared<type, RG> {
    using vectors = row_vectors<type, RG>;
    static constexpr int SMEM_BYTES = RG*8*vectors::PITCH;
    using vector = std::conditional_t<vectors::VECTOR == 16, int4, int2>;

    vector raw[vectors::N_LOADS];
    char * stage;

    __device__ __forceinline__ void fetch() {
        this->rows.for_each([&](const int i, const char * from, const int) {
            if constexpr (vectors::VECTOR == 16) {
                raw[i] = ldg4<early>(from);
            } else {
                raw[i] = ldg2<early>(from);
            }
        });
    }
    __device__ __forceinline__ void start(const char * x, const int stride_row, char * smem) {
        stage = smem;
        this->start_rows(x, stride_row);
        fetch();
    }
    __device__ __forceinline__ void open_step(const int h, const bool is_last, const int) {
        constexpr int n_slices = weights::SLICES_OF_BLOCK;
        if (n_slices == 1 && h != 0) {
            return;
        }
        __syncwarp();
        this->rows.for_each([&](const int i, const char *, const int to) { *(vector *) (stage + to) = raw[i]; });
        __syncwarp();
        this->open_rows(stage);
        if (!is_last || (n_slices == 2 && h == 0)) {
            this->rows.advance();
            fetch();
        }
    }
};

template <ggml_type type, int RG> struct copied_weights : rows_in_shared<type, RG> {
    using vectors = row_vectors<type, RG>;
    using ring = slice_ring<weight_type<type>::SLICES_OF_BLOCK + 1, RG*8*vectors::PITCH>;  // each has at least a step in which to arrive
    static constexpr int SMEM_BYTES = ring::BYTES;

    ring slices;

    __device__ __forceinline__ void start(const char * x, const int stride_row, const char * smem, const int n_kblocks) {
        slices.start(smem, copied_weights::SLICES_OF_BLOCK*n_kblocks);
        this->start_rows(x, stride_row);
        copy();
    }
    __device__ __forceinline__ void copy() {
        const unsigned to = slices.fill();
        this->rows.for_each([&](const int, const char * from, const int place) { copy_async<vectors::VECTOR>(to + place, from); });
        this->rows.advance();
    }
    __device__ __forceinline__ void open_step(const int h) {
        if (h == 0 || copied_weights::SLICES_OF_BLOCK == 2) {
            slices.advance();
            this->open_rows(slices.base + slices.read);
        }
    }
};

} // namespace mmq_direct
