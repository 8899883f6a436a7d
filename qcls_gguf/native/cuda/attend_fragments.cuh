// Fragments that the tensor cores multiply: 16 rows, 8 columns and an inner dimension of 8 halves, distributed over the
// lanes of a warp.
#pragma once

#include <cstdint>

#include <cuda_fp16.h>

namespace qcls_attend {

static __device__ __forceinline__ uint32_t half_pair(const float a, const float b) {
    const half2 pair = __floats2half2_rn(a, b);
    return *(const uint32_t *) &pair;
}

// c += a * b for 16 rows, 8 columns and an inner dimension of 8, or of 16 as two fragments of 8
static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[2], const uint32_t b) {
#if __CUDA_ARCH__ >= 750
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
#endif
}

static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a0)[2], const uint32_t (&a1)[2],
                                                const uint32_t b0, const uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0[0]), "r"(a0[1]), "r"(a1[0]), "r"(a1[1]), "r"(b0), "r"(b1));
#else
    multiply(c, a0, b0);
    multiply(c, a1, b1);
#endif
}

// Loads four matrices of 8 rows of 8 halves; lane l passes the address of row l % 8 of matrix l / 8.
static __device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const __half * row) {
#if __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"((uint32_t) __cvta_generic_to_shared(row)) : "memory");
#endif
}

static __device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const __half * row) {
#if __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"((uint32_t) __cvta_generic_to_shared(row)) : "memory");
#endif
}

}  // namespace qcls_attend
