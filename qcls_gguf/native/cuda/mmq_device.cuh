// The instructions of the direct matrix kernels: those of 7.5, and their replacements on 8.0 and newer.
#pragma once

#include "mmq_layout.cuh"

namespace mmq_direct {

// The generation that this code is compiled for.
#ifdef CP_ASYNC_AVAILABLE
constexpr generation THIS_GENERATION = generation::AMPERE;
#else
constexpr generation THIS_GENERATION = generation::TURING;
#endif // CP_ASYNC_AVAILABLE

// --- loads to registers -------------------------------------------------------------------------------------------

// Early loads stay above the next __syncwarp(), far ahead of the use of their values. Other loads are marked read-only
// (.nc), and the compiler may move them down. The hint makes the load fetch whole lines, which contain the row's values
// for the next step.
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

template <bool early> static __device__ __forceinline__ int ldg_half(const char * p) {
    unsigned short v;
    if constexpr (early) {
        asm volatile("ld.global.L2::128B.u16 %0, [%1];" : "=h"(v) : "l"(p));
    } else {
        asm volatile("ld.global.nc.L2::128B.u16 %0, [%1];" : "=h"(v) : "l"(p));
    }
    return v;
}

// --- copies to shared memory (8.0 and newer) ----------------------------------------------------------------------

static __device__ __forceinline__ unsigned shared_address(const void * p) {
    return (unsigned) __cvta_generic_to_shared(p);
}

// Copies 8 or 16 bytes; both addresses must be aligned to that. The lane that copies sees the bytes after a wait, other
// lanes after a barrier that follows the wait.
template <int bytes> static __device__ __forceinline__ void copy_async(const unsigned to, const char * from) {
#ifdef CP_ASYNC_AVAILABLE
    if constexpr (bytes == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
    } else {
        static_assert(bytes == 8, "no such copy");
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8;" : : "r"(to), "l"(from) : "memory");
    }
#else
    GGML_UNUSED(to);
    GGML_UNUSED(from);
#endif // CP_ASYNC_AVAILABLE
}

// Makes the copies since the last call, possibly none, a group.
static __device__ __forceinline__ void close_copy_group() {
#ifdef CP_ASYNC_AVAILABLE
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif // CP_ASYNC_AVAILABLE
}

// Waits until all groups but the last have arrived.
static __device__ __forceinline__ void wait_for_copies_but_last_group() {
#ifdef CP_ASYNC_AVAILABLE
    asm volatile("cp.async.wait_group 1;" : : : "memory");
#endif // CP_ASYNC_AVAILABLE
}

// --- products -----------------------------------------------------------------------------------------------------

// An int8 product of signed activations with signed or unsigned weights. It is a macro because the types are part of
// the instruction's text.
#define MMQ_DIRECT_MMA(shape, operands, ...)                                                        \
    if constexpr (is_unsigned) {                                                                    \
        asm("mma.sync.aligned." shape ".row.col.s32.u8.s8.s32 " operands : __VA_ARGS__);            \
    } else {                                                                                        \
        asm("mma.sync.aligned." shape ".row.col.s32.s8.s8.s32 " operands : __VA_ARGS__);            \
    }

// start: the initial value of the int32 sums, MAGIC_BITS, four times.
template <bool is_unsigned>
static __device__ __forceinline__ void mma_first(int (&c)[2], const int a, const int b, const int4 & start) {
    MMQ_DIRECT_MMA("m8n8k16", "{%0, %1}, {%2}, {%3}, {%4, %5};",
        "=r"(c[0]), "=r"(c[1]) : "r"(a), "r"(b), "r"(start.x), "r"(start.y))
}

template <bool is_unsigned>
static __device__ __forceinline__ void mma_next(int (&c)[2], const int a, const int b) {
    MMQ_DIRECT_MMA("m8n8k16", "{%0, %1}, {%2}, {%3}, {%0, %1};", "+r"(c[0]), "+r"(c[1]) : "r"(a), "r"(b))
}

template <bool is_unsigned>
static __device__ __forceinline__ void mma_16(int (&c)[2][2], const int a0, const int a1, const int b, const int4 & start) {
#ifdef AMPERE_MMA_AVAILABLE
    MMQ_DIRECT_MMA("m16n8k16", "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};",
        "=r"(c[0][0]), "=r"(c[0][1]), "=r"(c[1][0]), "=r"(c[1][1])
        : "r"(a0), "r"(a1), "r"(b), "r"(start.x), "r"(start.y), "r"(start.z), "r"(start.w))
#else
    GGML_UNUSED_VARS(c, a0, a1, b, start);
#endif // AMPERE_MMA_AVAILABLE
}

template <bool is_unsigned>
static __device__ __forceinline__ void mma_32(int (&c)[2][2], const int (&a0)[2], const int (&a1)[2], const int2 b, const int4 & start) {
#ifdef AMPERE_MMA_AVAILABLE
    MMQ_DIRECT_MMA("m16n8k32", "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};",
        "=r"(c[0][0]), "=r"(c[0][1]), "=r"(c[1][0]), "=r"(c[1][1])
        : "r"(a0[0]), "r"(a1[0]), "r"(a0[1]), "r"(a1[1]), "r"(b.x), "r"(b.y),
          "r"(start.x), "r"(start.y), "r"(start.z), "r"(start.w))
#else
    GGML_UNUSED_VARS(c, a0, a1, b, start);
#endif // AMPERE_MMA_AVAILABLE
}

#undef MMQ_DIRECT_MMA

static __device__ __forceinline__ void mma_half(float (&c0)[2], float (&c1)[2], const int a0, const int a1, const int b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c0[0]), "+f"(c0[1]), "+f"(c1[0]), "+f"(c1[1]) : "r"(a0), "r"(a1), "r"(b));
}

// How many groups of 8 rows a product instruction takes.
template <generation gen> constexpr int GROUPS_OF_PRODUCT = gen == generation::AMPERE ? 2 : 1;

// int8 products of 32 values of K, for the GROUPS_OF_PRODUCT groups of rows from a on and for 8 columns; sums start at
// MAGIC_BITS. With one scale, c[0] has the sum of all 32; with two, c[0] has that of the first 16 in split order and
// c[1] that of the last 16.
template <generation gen, bool is_unsigned, int n_scales>
static __device__ __forceinline__ void multiply_32(int (&c)[n_scales][GROUPS_OF_PRODUCT<gen>][2], const int (*a)[2], const int2 b,
        const int4 & start) {
    if constexpr (gen == generation::AMPERE) {
        if constexpr (n_scales == 1) {
            mma_32<is_unsigned>(c[0], a[0], a[1], b, start);
        } else {
            mma_16<is_unsigned>(c[0], a[0][0], a[1][0], b.x, start);
            mma_16<is_unsigned>(c[1], a[0][1], a[1][1], b.y, start);
        }
    } else {
        mma_first<is_unsigned>(c[0][0], a[0][0], b.x, start);
        if constexpr (n_scales == 1) {
            mma_next<is_unsigned>(c[0][0], a[0][1], b.y);
        } else {
            mma_first<is_unsigned>(c[1][0], a[0][1], b.y, start);
        }
    }
}

} // namespace mmq_direct
