// A warp's share of a quantised matrix: fetched ahead, straight to registers or past a part of shared memory of its own.
#pragma once

#include "mmq_layout.cuh"

namespace mmq_direct {

// Early loads stay above the next __syncwarp(), far from where their values are wanted. Others, which are read-only to the
// compiler (.nc), it puts off as it likes. The hint fetches whole lines: a row's next values, which the next step wants,
// come with these.
template <bool early> static __device__ __forceinline__ int ldg(const int * p) {
    int v;
    if constexpr (early) {
        asm volatile("ld.global.L2::128B.s32 %0, [%1];" : "=r"(v) : "l"(p));
    } else {
        asm volatile("ld.global.nc.L2::128B.s32 %0, [%1];" : "=r"(v) : "l"(p));
    }
    return v;
}
template <bool early> static __device__ __forceinline__ int2 ldg2(const char * p) {
    int2 v;
    if constexpr (early) {
        asm volatile("ld.global.L2::128B.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    } else {
        asm volatile("ld.global.nc.L2::128B.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    }
    return v;
}
template <bool early> static __device__ __forceinline__ int4 ldg4(const char * p) {
    int4 v;
    if constexpr (early) {
        asm volatile("ld.global.L2::128B.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    } else {
        asm volatile("ld.global.nc.L2::128B.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    }
    return v;
}

// byte i of v, 0 to 255, as 2^23 + byte
static __device__ __forceinline__ float byte_above_2_23(const int v, const int i) {
    return __int_as_float(__byte_perm(v, 0x4B000000, 0x7440 + i));
}

// The weights of one warp, fetched a K_BLOCK or a K_STEP ahead. unpack() gives, for the 32 values n of the pair p of the block, the int8
// fragments a (RG, 2), their scales s (RG, N_SCALES), and nb, -MAGIC times those (exact: a scale has at most 19 bits).
template <ggml_type type, int RG, bool early> struct weights;

template <int RG, bool early> struct weights<GGML_TYPE_Q4_K, RG, early> {
    static constexpr int N_SCALES = 1;
    static constexpr bool HAS_MIN = true;
    static constexpr int BLOCK_BYTES = sizeof(block_q4_K);
    static constexpr int SMEM_BYTES = 0;

    int4 head[RG];  // d and dmin, 12 bytes of scales and minimums
    int4 next_head[RG];
    int2 q[4][RG];
    const char * px[RG];

    __device__ __forceinline__ void fetch_head() {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            next_head[r] = ldg4<early>(px[r]);
        }
    }
    __device__ __forceinline__ void fetch_pair(const int p) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            q[p][r] = ldg2<early>(px[r] + 16 + 32*p + 8*(threadIdx.x % 4));
        }
    }
    __device__ __forceinline__ void start(const char * x, const int stride_row, char *) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            px[r] = x + (8*r + threadIdx.x/4)*stride_row;
        }
        fetch_head();
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            fetch_pair(p);
        }
    }
    // Before each of a block's two steps. What was fetched is read from here on, what comes next is fetched.
    __device__ __forceinline__ void open_step(const int h, const bool is_last, const int) {
        if (h == 0) {
#pragma unroll
            for (int r = 0; r < RG; ++r) {
                head[r] = next_head[r];
                px[r] += is_last ? 0 : BLOCK_BYTES;
            }
        }
    }
    __device__ __forceinline__ void unpack(const int p, const int n, int (&a)[RG][2], float (&s)[RG][1], float (&nb)[RG][1]) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            a[r][0] = (q[p][r].x >> (4*n)) & 0x0F0F0F0F;
            a[r][1] = (q[p][r].y >> (4*n)) & 0x0F0F0F0F;
            const int scales = p < 2 ? head[r].y & 0x3F3F3F3F : (head[r].w & 0x0F0F0F0F) | ((head[r].y >> 2) & 0x30303030);
            const float d = __low2float(*(const half2 *) &head[r].x);
            s[r][0] = fmaf(byte_above_2_23(scales, (2*p + n) % 4), d, -8388608.0f*d);
            nb[r][0] = -MAGIC*s[r][0];
        }
        if (n == 1) {
            fetch_pair(p);
            if (p == 2) {
                fetch_head();
            }
        }
    }
    // A fragment of the minimums of K_STEP values: row x 4 sub-blocks, the other 4 of the instruction's 8 are zero.
    __device__ __forceinline__ int min_fragment(const int r, const int h) {
        const int mins = h == 0 ? head[r].z & 0x3F3F3F3F : ((head[r].w >> 4) & 0x0F0F0F0F) | ((head[r].z >> 2) & 0x30303030);
        const int above_1024 = __byte_perm(mins >> (16*(threadIdx.x % 2)), 0x64646464, 0x4140);
        const half2 m = __hsub2(*(const half2 *) &above_1024, __float2half2_rn(1024.0f));
        const half2 v = __hmul2(m, __half2half2(__hneg(__high2half(*(const half2 *) &head[r].x))));
        return threadIdx.x % 4 < 2 ? *(const int *) &v : 0;
    }
};

// Rows pass through a part of shared memory that only their warp uses: their blocks are not aligned to what lanes want.
template <int RG, bool early> struct weights<GGML_TYPE_Q8_0, RG, early> {
    static constexpr int N_SCALES = 1;
    static constexpr bool HAS_MIN = false;
    static constexpr int BLOCK_BYTES = K_BLOCK/QK8_0*sizeof(block_q8_0);
    static constexpr int STEP_BYTES = BLOCK_BYTES/2;
    static constexpr int ROW_VECTORS = STEP_BYTES/8;
    static constexpr int N_VECTORS = RG*8*ROW_VECTORS;
    static constexpr int N_LOADS = (N_VECTORS + 31)/32;
    static constexpr int ROW_WORDS = 36;  // 34 and padding: 4 modulo 32 keeps lanes from meeting in banks
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
    __device__ __forceinline__ void unpack(const int p, const int n, int (&a)[RG][2], float (&s)[RG][1], float (&nb)[RG][1]) {
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            const int * row = stage + (8*r + threadIdx.x/4)*ROW_WORDS + 17*(p % 2);
            const int * w = row + threadIdx.x % 4;
            a[r][0] = n == 0 ? __funnelshift_r(w[0], w[1], 16) : w[9];
            a[r][1] = n == 0 ? __funnelshift_r(w[4], w[5], 16) : w[13];
            s[r][0] = __half2float(((const half *) row)[17*n]);
            nb[r][0] = -MAGIC*s[r][0];
        }
    }
};

template <int RG, bool early> struct weights<GGML_TYPE_Q6_K, RG, early> {
    static constexpr int N_SCALES = 2;
    static constexpr bool HAS_MIN = false;
    static constexpr int BLOCK_BYTES = sizeof(block_q6_K);
    static constexpr int ROW_LOADED = 53;  // words that hold a block, which begins in the middle of one if it is odd
    static constexpr int ROW_WORDS = 60;   // their distance: 28 modulo 32 keeps lanes from meeting in banks
    static constexpr int SMEM_BYTES = RG*8*ROW_WORDS*4;

    int raw[RG*8][2];
    const char * px;  // of the block, which is even or odd
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
    // 4*(q - 32) fits int8, so the 6 bits go to the top of the byte and the scale is a fourth.
    __device__ __forceinline__ void unpack(const int p, const int n, int (&a)[RG][2], float (&s)[RG][2], float (&nb)[RG][2]) {
        const int high = 4*(p % 2);  // the second pair of a half block: the high nibbles
#pragma unroll
        for (int r = 0; r < RG; ++r) {
            const int * row = stage + (8*r + threadIdx.x/4)*ROW_WORDS;
            const int * w = row + threadIdx.x % 4;
            const auto word = [&](const int i) { return __funnelshift_r(w[i], w[i + 1], shift); };
            const int sc = __funnelshift_r(row[48 + p], row[49 + p], shift) ^ 0x80808080;
            const float d = 0.25f*__half2float(((const half *) row)[104 + shift/16]);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int qh = word(32 + 8*(p/2) + 4*i) >> high;
                const int ql = word(16*(p/2) + 8*n + 4*i) >> high;
                a[r][i] = (((ql << 2) & 0x3C3C3C3C) | ((n == 0 ? qh << 6 : qh << 4) & 0xC0C0C0C0)) ^ 0x80808080;
                s[r][i] = (byte_above_2_23(sc, 2*n + i) - 8388736.0f)*d;
                nb[r][i] = -MAGIC*s[r][i];
            }
        }
    }
};

} // namespace mmq_direct
