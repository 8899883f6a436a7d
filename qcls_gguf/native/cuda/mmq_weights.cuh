// A warp's share of a quantised matrix in code for 7.5, fetched ahead, directly to registers or through a part of
// shared memory that only this warp uses.
#pragma once

#include "mmq_unpack.cuh"

namespace mmq_direct {

// The weights of one warp, fetched a K_BLOCK or a K_STEP ahead. Half of a block has two pairs of 32 values. unpack()
// gives, for the 32 values number n of a pair of half h, the int8 fragments a (RG, 2) and their scales s (RG,
// N_SCALES). With short_loop, h is known only at run time.
template <ggml_type type, int RG, bool early, bool short_loop> struct weights;

template <int RG, bool early, bool short_loop> struct weights<GGML_TYPE_Q4_K, RG, early, short_loop> {
    static constexpr int N_SCALES = 1;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = true;
    static constexpr int BLOCK_BYTES = sizeof(block_q4_K);
    static constexpr int SMEM_BYTES = 0;

    int4 head[RG];  // d and dmin, 12 bytes of scales and minimums
    int4 next_head[RG];
    int2 q[short_loop ? 2 : 4][RG];  // the codes of a half, or of the whole block
    const char * px[RG];
    int offset;      // with short_loop: where the next fetch begins, from px on
    int scales[RG];  // with short_loop: the scales of this half

    __device__ __forceinline__ void fetch_head() {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            next_head[r] = ldg4<early>(px[r]);
        }
    }
    __device__ __forceinline__ void fetch_pair(const int i, const int first) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            q[i][r] = ldg2<early>(px[r] + first + 32*i + 8*(threadIdx.x % 4));
        }
    }
    __device__ __forceinline__ void start(const char * x, const int stride_row, char *) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            px[r] = x + (8*r + threadIdx.x/4)*stride_row;
        }
        fetch_head();
#pragma unroll
        for (int i = 0; i < (short_loop ? 2 : 4); ++i) {
            fetch_pair(i, Q4_K_HEAD_BYTES);
        }
    }
    // Called before each of a block's two steps: makes the fetched values readable and fetches the next ones.
    __device__ __forceinline__ void open_step(const int h, const bool is_last, const int) {
        if (h == 0) {
#pragma unroll
            for (int r = 0; r < RG; ++r) {
                head[r] = next_head[r];
                px[r] += is_last ? 0 : BLOCK_BYTES;
            }
        }
        if constexpr (short_loop) {
            // px points to the next block already, or still to the last one
            offset = h == 0 ? Q4_K_HEAD_BYTES + 64 - (is_last ? 0 : BLOCK_BYTES) : Q4_K_HEAD_BYTES;
#pragma unroll
            for (int r = 0; r < RG; ++r) {
                scales[r] = q4_k_scales(head[r], h);
            }
        }
    }
    __device__ __forceinline__ void unpack(const int h, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][1]) {
        const int i = short_loop ? pair : 2*h + pair;
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            const float d = __low2float(*(const half2 *) &head[r].x);
            q4_k_values<IS_UNSIGNED>(q[i][r], short_loop ? scales[r] : q4_k_scales(head[r], h), d, pair, n, a[r], s[r][0]);
        }
        if (n == 1) {
            fetch_pair(i, short_loop ? offset : Q4_K_HEAD_BYTES);
            if (h == 1 && pair == 0) {
                fetch_head();
            }
        }
    }
    __device__ __forceinline__ int min_fragment(const int r, const int h) {
        return q4_k_min_fragment(head[r], h);
    }
};

// Rows pass through a part of shared memory that only their warp uses, because their blocks are not aligned for the
// lanes' loads.
template <int RG, bool early, bool short_loop> struct weights<GGML_TYPE_Q8_0, RG, early, short_loop> {
    static constexpr int N_SCALES = 1;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = false;
    static constexpr int BLOCK_BYTES = K_BLOCK/QK8_0*sizeof(block_q8_0);
    static constexpr int STEP_BYTES = BLOCK_BYTES/2;
    static constexpr int ROW_VECTORS = STEP_BYTES/8;
    static constexpr int N_VECTORS = RG*8*ROW_VECTORS;
    static constexpr int N_LOADS = (N_VECTORS + 31)/32;
    static constexpr int ROW_WORDS = 36;  // 34 and padding: with 36 words (4 modulo 32) lanes use different banks
    static constexpr int SMEM_BYTES = RG*8*ROW_WORDS*4;

    int2 raw[N_LOADS];
    const char * px;
    int * stage;

    __device__ __forceinline__ void fetch(const int stride_row) {
#pragma unroll
        for (int l = 0; l < N_LOADS; ++l) {
            const int i = l*32 + threadIdx.x;
            if (N_VECTORS % 32 == 0 || i < N_VECTORS) {
                raw[l] = ldg2<early>(px + (i / ROW_VECTORS)*stride_row + (i % ROW_VECTORS)*8);
            }
        }
    }
    __device__ __forceinline__ void start(const char * x, const int stride_row, char * smem) {
        px = x;
        stage = (int *) smem;
        fetch(stride_row);
    }
    __device__ __forceinline__ void open_step(const int h, const bool is_last, const int stride_row) {
        __syncwarp();
#pragma unroll
        for (int l = 0; l < N_LOADS; ++l) {
            const int i = l*32 + threadIdx.x;
            if (N_VECTORS % 32 == 0 || i < N_VECTORS) {
                *(int2 *) (stage + (i / ROW_VECTORS)*ROW_WORDS + (i % ROW_VECTORS)*2) = raw[l];
            }
        }
        __syncwarp();
        if (h == 0 || !is_last) {
            px += STEP_BYTES;
            fetch(stride_row);
        }
    }
    __device__ __forceinline__ void unpack(const int, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][1]) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            q8_0_values(stage + (8*r + threadIdx.x/4)*ROW_WORDS + 17*pair, n, a[r], s[r][0]);
        }
    }
};

template <int RG, bool early, bool short_loop> struct weights<GGML_TYPE_Q6_K, RG, early, short_loop> {
    static constexpr int N_SCALES = 2;
    static constexpr bool IS_UNSIGNED = false;
    static constexpr bool HAS_MIN = false;
    static constexpr int BLOCK_BYTES = sizeof(block_q6_K);
    static constexpr int ROW_LOADED = 53;  // words that contain a block; odd blocks begin in the middle of a word
    static constexpr int ROW_WORDS = 60;   // with a distance of 60 words (28 modulo 32) lanes use different banks
    static constexpr int SMEM_BYTES = RG*8*ROW_WORDS*4;

    int raw[RG*8][2];
    const char * px;  // the block, whose number may be even or odd
    int * stage;
    int shift;        // bits into the first word

    __device__ __forceinline__ void fetch(const int stride_row) {
        const char * first = px - ((size_t) px & 2);
#pragma unroll
        for (int i = 0; i < RG*8; ++i) {
            const int * row = (const int *) (first + i*stride_row);
            raw[i][0] = ldg<early>(row + threadIdx.x);
            if (threadIdx.x < ROW_LOADED - 32) {
                raw[i][1] = ldg<early>(row + threadIdx.x + 32);
            }
        }
    }
    __device__ __forceinline__ void start(const char * x, const int stride_row, char * smem) {
        px = x;
        stage = (int *) smem;
        fetch(stride_row);
    }
    __device__ __forceinline__ void open_step(const int h, const bool is_last, const int stride_row) {
        if (h != 0) {
            return;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < RG*8; ++i) {
            stage[i*ROW_WORDS + threadIdx.x] = raw[i][0];
            if (threadIdx.x < ROW_LOADED - 32) {
                stage[i*ROW_WORDS + threadIdx.x + 32] = raw[i][1];
            }
        }
        __syncwarp();
        shift = 8*((size_t) px & 2);
        if (!is_last) {
            px += BLOCK_BYTES;
            fetch(stride_row);
        }
    }
    __device__ __forceinline__ void unpack(const int h, const int pair, const int n, int (&a)[RG][2], float (&s)[RG][2]) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            q6_k_values(stage + (8*r + threadIdx.x/4)*ROW_WORDS, shift, h, pair, n, a[r], s[r]);
        }
    }
};

} // namespace mmq_direct
