// Kernels that write activations in the layout of the direct matrix kernels.
#pragma once

#include "mmq_direct_launch.h"

namespace mmq_direct {

// The larger of two values that are not negative, or NaN if one of them is NaN. fmaxf would return the other one and
// hide a damaged model. Compared as integers such values have the same order, with NaN above all numbers.
static __device__ __forceinline__ float larger(const float a, const float b) {
    return __int_as_float(max(__float_as_int(a), __float_as_int(b)));
}

// The absolute value. fabsf may leave the sign of NaN unchanged.
static __device__ __forceinline__ float magnitude(const float v) {
    return __int_as_float(__float_as_int(v) & 0x7FFFFFFF);
}

static __device__ __forceinline__ float largest_of_4(const float4 v) {
    return larger(larger(magnitude(v.x), magnitude(v.y)), larger(magnitude(v.z), magnitude(v.w)));
}

template <int N_LANES>
static __device__ __forceinline__ float largest_of_lanes(float largest) {
#pragma unroll
    for (int offset = N_LANES/2; offset > 0; offset /= 2) {
        largest = larger(largest, __shfl_xor_sync(0xFFFFFFFF, largest, offset));
    }
    return largest;
}

// Quantises four values of a column, from k on. All lanes of a warp call it and have K_STEP values together. A sum is
// that of the quantised values: of the values themselves, as in quantize_mmq_q8_1, it would leave what was rounded off
// multiplied by a weight less its minimum, which is larger than the weight.
static __device__ __forceinline__ void quantize_4(const activations & out, const int col, const int k, const float4 v) {
    const float largest = largest_of_lanes<K_SCALE/4>(largest_of_4(v));
    const bool is_zero = largest == 0.0f;  // false for NaN, so that its scale becomes NaN
    const float inverse = is_zero ? 0.0f : 127.0f/largest;
    const float4 code = make_float4(roundf(v.x*inverse), roundf(v.y*inverse), roundf(v.z*inverse), roundf(v.w*inverse));
    float sum = code.x + code.y + code.z + code.w;
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFF, sum, offset);
    }
    if (col >= 8*out.n_groups) {
        return;
    }
    const int kb = k/32 % 4;
    const int quarter = out.split_order ? k/4 % 4 : k/8 % 4;
    const int byte = out.split_order ? k/16 % 2*4 : k % 8;
    char * group = out.y + ((size_t) (k/K_STEP)*out.n_groups + col/8)*GROUP_BYTES;
    *(char4 *) (group + kb/2*512 + (col % 8*4 + quarter)*16 + kb % 2*8 + byte) = make_char4(code.x, code.y, code.z, code.w);
    if (k % 32 == 0) {
        const float scale = is_zero ? 0.0f : 1.0f/inverse;
        *(float *) (group + GROUP_SCALES + kb/2*32 + col % 8*4) = scale;
        *(half *) (group + GROUP_SUMS + col % 8*8 + kb*2) = __float2half(scale*sum);
    }
}

// Quantises x (n_k, n_cols), a block for each 4*K_STEP values of a column. Columns past n_cols become zeros, and so do
// all counters in `arrived`.
static __global__ void quantize_values(const float * x, const int64_t stride_col, const int n_k, const int n_cols,
        const activations out, unsigned int * arrived) {
    const int col = blockIdx.y;
    const int k = (blockIdx.x*blockDim.x + threadIdx.x)*4;
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    for (int i = (col*gridDim.x + blockIdx.x)*blockDim.x + threadIdx.x; i < MAX_TILES; i += gridDim.x*gridDim.y*blockDim.x) {
        arrived[i] = 0;
    }
    if (k >= n_k) {  // whole warps: n_k is a multiple of K_BLOCK
        return;
    }
    quantize_4(out, col, k, col < n_cols ? *(const float4 *) (x + col*stride_col + k) : make_float4(0, 0, 0, 0));
}

// Computes sum = a + b, or a if b is null, and quantises sum/rms(sum)*weight, a block for each column. Tensors are
// (n_k, n_cols), contiguous; n_k = 4*N*blockDim.x. All counters in `arrived` become zero. Shared memory: WARP_SIZE
// floats.
template <int N, int N_OUT>
static __global__ __launch_bounds__(1024) void normalize(const float * a, const float * b, float * sum,  // sum may be a or b
        const float * __restrict__ weight, const float eps, const int n_k, const int n_cols, const activations out0,
        const activations out1, unsigned int * arrived) {
    extern __shared__ float reduced[];
    const int col = blockIdx.x;
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    for (int i = col*blockDim.x + threadIdx.x; i < MAX_TILES; i += gridDim.x*blockDim.x) {
        arrived[i] = 0;
    }
    float4 v[N] = {};
    float squares = 0.0f;
    if (col < n_cols) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const size_t i = (size_t) col*n_k + (n*blockDim.x + threadIdx.x)*4;
            v[n] = *(const float4 *) (a + i);
            if (b != nullptr) {
                const float4 w = *(const float4 *) (b + i);
                v[n] = make_float4(v[n].x + w.x, v[n].y + w.y, v[n].z + w.z, v[n].w + w.w);
                *(float4 *) (sum + i) = v[n];
            }
            squares += v[n].x*v[n].x + v[n].y*v[n].y + v[n].z*v[n].z + v[n].w*v[n].w;
        }
    }
    squares = block_reduce<block_reduce_method::SUM>(squares, reduced);
    const float scale = rsqrtf(squares/n_k + eps);
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const int k = (n*blockDim.x + threadIdx.x)*4;
        const float4 w = *(const float4 *) (weight + k);
        const float4 y = make_float4(scale*v[n].x*w.x, scale*v[n].y*w.y, scale*v[n].z*w.z, scale*v[n].w*w.w);
        quantize_4(out0, col, k, y);
        if (N_OUT == 2) {
            quantize_4(out1, col, k, y);
        }
    }
}

// The same, with results equal to the bit to those of separate launches: sums are added in the order of ggml's
// rms_norm_f32, in which thread t has the values t, t + CHUNK, … A thread here does the work of four of those. n_k is
// at most N*CHUNK; a block has CHUNK/4 threads.
template <int CHUNK, int N>
static __global__ __launch_bounds__(CHUNK/4) void normalize_in_order(const float * a, const float * b, float * sum,
        const float * __restrict__ weight, const float eps, const int n_k, const int n_cols, const activations out0,
        const activations out1, unsigned int * arrived) {
    constexpr int N_SUMS = CHUNK/WARP_SIZE;  // one for each warp of rms_norm_f32
    __shared__ float sums[N_SUMS];
    const int col = blockIdx.x;
    const int k0 = 4*threadIdx.x;
    float4 w[N] = {};
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if (n*CHUNK + k0 < n_k) {
            w[n] = *(const float4 *) (weight + n*CHUNK + k0);
        }
    }
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    for (int i = col*blockDim.x + threadIdx.x; i < MAX_TILES; i += gridDim.x*blockDim.x) {
        arrived[i] = 0;
    }
    float4 v[N] = {};
    float4 squares = {};
    if (col < n_cols) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const size_t i = (size_t) col*n_k + n*CHUNK + k0;
            if (n*CHUNK + k0 < n_k) {
                v[n] = *(const float4 *) (a + i);
                if (b != nullptr) {
                    const float4 other = *(const float4 *) (b + i);
                    v[n] = make_float4(v[n].x + other.x, v[n].y + other.y, v[n].z + other.z, v[n].w + other.w);
                    *(float4 *) (sum + i) = v[n];
                }
            }
            squares.x = fmaf(v[n].x, v[n].x, squares.x);
            squares.y = fmaf(v[n].y, v[n].y, squares.y);
            squares.z = fmaf(v[n].z, v[n].z, squares.z);
            squares.w = fmaf(v[n].w, v[n].w, squares.w);
        }
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) {
        squares.x += __shfl_xor_sync(0xFFFFFFFF, squares.x, offset);
        squares.y += __shfl_xor_sync(0xFFFFFFFF, squares.y, offset);
        squares.z += __shfl_xor_sync(0xFFFFFFFF, squares.z, offset);
        squares.w += __shfl_xor_sync(0xFFFFFFFF, squares.w, offset);
    }
    if (threadIdx.x % 8 == 0) {
        sums[threadIdx.x/8] = (squares.x + squares.z) + (squares.y + squares.w);
    }
    __syncthreads();
    const int lane = threadIdx.x % WARP_SIZE;
    const float total = warp_reduce_sum(lane < N_SUMS ? sums[lane] : 0.0f);
    const float mean = total/n_k;
    const float scale = rsqrtf(mean + eps);
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const int k = n*CHUNK + k0;
        if (k < n_k) {  // whole warps: n_k is a multiple of K_BLOCK
            // rounded like a stored value, so that the compiler does not contract it with a following sum
            const float4 y = make_float4(
                __fmul_rn(__fmul_rn(scale, v[n].x), w[n].x), __fmul_rn(__fmul_rn(scale, v[n].y), w[n].y),
                __fmul_rn(__fmul_rn(scale, v[n].z), w[n].z), __fmul_rn(__fmul_rn(scale, v[n].w), w[n].w));
            quantize_4(out0, col, k, y);
            if (out1.y != nullptr) {
                quantize_4(out1, col, k, y);
            }
        }
    }
}

} // namespace mmq_direct
