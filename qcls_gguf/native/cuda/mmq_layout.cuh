// What the parts of the direct matrix kernels share.
#pragma once

#include "mmq_activations.h"

#include "ggml-cuda/common.cuh"

namespace mmq_direct {

// TURING: code for 7.5, which has int8 products of 8x8x16. AMPERE: code for 8.0 and newer, with int8 products of 16x8x32
// and copies to shared memory that pass no register.
enum class generation { TURING, AMPERE };

constexpr int K_BLOCK = 256;  // values of K that work is divided by

// An int32 sum that starts at MAGIC_BITS reads, as a float, MAGIC + sum (|sum| < 2^22): a conversion without the slow I2F.
constexpr int MAGIC_BITS = 0x4B400000;
constexpr float MAGIC = 12582912.0f;

} // namespace mmq_direct
