// Checks lane order against the blocks of llama.cpp's file format: exits with 0 and a line for each type, or says what
// differs. What lanes load is taken by the index functions that the kernels are compiled with.
#include "lane_order.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

using bytes = std::vector<uint8_t>;

static void check(const bool ok, const char * what, const size_t at) {
    if (!ok) {
        printf("%s: at %zu\n", what, at);
        exit(1);
    }
}

static bytes random_bytes(const size_t n, const unsigned seed) {
    bytes result(n);
    std::mt19937 random(seed);
    for (auto & byte : result) {
        byte = (uint8_t) random();
    }
    return result;
}

template <typename type> static bytes permuted(const bytes & stock, const size_t row_bytes) {
    bytes lanes(stock.size());
    for (size_t i = 0; i < lanes.size(); ++i) {
        lanes[i] = stock[lane_order::stock_byte<type>(i, row_bytes)];
    }
    return lanes;
}

template <typename type> static void check_permutation(const char * name, const size_t n_rows, const size_t row_bytes) {
    std::vector<int> n_times(n_rows * row_bytes);
    const bytes stock = random_bytes(n_rows * row_bytes, 1);
    bytes back(n_rows * row_bytes);
    const bytes lanes = permuted<type>(stock, row_bytes);
    for (size_t i = 0; i < stock.size(); ++i) {
        const size_t from = lane_order::stock_byte<type>(i, row_bytes);
        check(from < stock.size() && n_times[from]++ == 0, "no permutation", i);
        back[from] = lanes[i];
        if (i % 2 == 0) {
            check(from % 2 == 0 && lane_order::stock_byte<type>(i + 1, row_bytes) == from + 1, "a pair is parted", i);
        }
    }
    check(back == stock, "permuted and back is another matrix", 0);
    printf("%s: %zu rows of %zu bytes\n", name, n_rows, row_bytes);
}

// Calls f(bytes of a unit's group, its first row, its first value of K) as a warp of RG groups walks along K from k0 on.
template <typename type, int RG, typename F>
static void walk(const bytes & lanes, const size_t row_bytes, const size_t row0, const size_t k0, const size_t n_k, const F & f) {
    const uint8_t * px = lanes.data() + lane_order::unit_byte<type>(row0, k0, row_bytes);
    for (size_t k = k0; k < n_k; k += type::UNIT_K) {
        for (int r = 0; r < RG; ++r) {
            check(px + r * type::UNIT_BYTES + type::UNIT_BYTES <= lanes.data() + lanes.size(), "past the end", k);
            f(px + r * type::UNIT_BYTES, row0 + 8 * r, k);
        }
        px += lane_order::GROUPS * type::UNIT_BYTES;
    }
}

// The same for every warp and every K that a kernel may begin at.
template <typename type, int RG, typename F>
static void walk_all(const bytes & lanes, const size_t row_bytes, const size_t n_rows, const size_t n_k, const F & f) {
    for (size_t row0 = 0; row0 < n_rows; row0 += 8 * RG) {
        for (size_t k0 = 0; k0 < n_k; k0 += 256) {
            walk<type, RG>(lanes, row_bytes, row0, k0, n_k, f);
        }
    }
}

template <int RG> static void check_q8_0(const size_t n_rows, const size_t n_k) {
    using type = lane_order::q8_0;
    const size_t row_bytes = n_k / 32 * type::BLOCK_BYTES;
    const bytes stock = random_bytes(n_rows * row_bytes, 2);
    const bytes lanes = permuted<type>(stock, row_bytes);
    size_t n_checked = 0;
    walk_all<type, RG>(lanes, row_bytes, n_rows, n_k, [&](const uint8_t * unit, const size_t row, const size_t k) {
        for (int lane = 0; lane < 32; ++lane) {
            for (int kb = 0; kb < 4; ++kb) {
                const uint8_t * block = stock.data() + (row + lane / 4) * row_bytes + (k / 32 + kb) * type::BLOCK_BYTES;
                // fragments a[0] and a[1], as unpack() takes them
                const uint8_t * a = unit + type::values(kb / 2, lane) + kb % 2 * 8;
                check((a - lanes.data()) % 8 == 0 && type::values(kb / 2, lane) % 16 == 0, "not aligned", lane);
                check(memcmp(a, block + 2 + 4 * (lane % 4), 4) == 0, "q8_0: a[0]", lane);
                check(memcmp(a + 4, block + 2 + 16 + 4 * (lane % 4), 4) == 0, "q8_0: a[1]", lane);
                check(memcmp(unit + type::scales(kb / 2, lane) + kb % 2 * 2, block, 2) == 0, "q8_0: scale", lane);
                ++n_checked;
            }
        }
    });
    printf("q8_0, %d groups a warp: %zu fragments\n", RG, n_checked);
}

// Value i of 32 values n of pair p of half h, and its scale, as ggml's dequantize_row_q6_K has them.
static int q6_k_value(const uint8_t * block, const int h, const int p, const int n, const int i) {
    const int low = block[64 * h + 32 * n + i] >> (4 * p) & 15;
    const int high = block[128 + 32 * h + i] >> (2 * (2 * p + n)) & 3;
    return (low | high << 4) - 32;
}

static int8_t q6_k_scale(const uint8_t * block, const int h, const int p, const int n, const int i) {
    return (int8_t) block[192 + 8 * h + 2 * (2 * p + n) + i / 16];
}

template <int RG> static void check_q6_k(const size_t n_rows, const size_t n_k) {
    using type = lane_order::q6_k;
    const size_t row_bytes = n_k / 256 * type::ROW_BYTES;
    const bytes stock = random_bytes(n_rows * row_bytes, 3);
    const bytes lanes = permuted<type>(stock, row_bytes);
    size_t n_checked = 0;
    walk_all<type, RG>(lanes, row_bytes, n_rows, n_k, [&](const uint8_t * unit, const size_t row, const size_t k) {
        for (int lane = 0; lane < 32; ++lane) {
            const uint8_t * block = stock.data() + (row + lane / 4) * row_bytes + k / 256 * type::ROW_BYTES;
            check(memcmp(unit + type::d(lane), block + 208, 2) == 0, "q6_k: d", lane);
            for (int h = 0; h < 2; ++h) {
                check(type::low(h, lane) % 16 == 0 && type::high(h, lane) % 8 == 0 && type::scales(h, lane) % 8 == 0,
                      "not aligned", lane);
                uint32_t low[4], high[2], scales[2];  // what a lane loads
                memcpy(low, unit + type::low(h, lane), 16);
                memcpy(high, unit + type::high(h, lane), 8);
                memcpy(scales, unit + type::scales(h, lane), 8);
                for (int p = 0; p < 2; ++p) {
                    for (int n = 0; n < 2; ++n) {
                        for (int i = 0; i < 2; ++i) {
                            // as q6_k_value() of mmq_unpack.cuh puts them together
                            const uint32_t ql = low[2 * n + i] >> (4 * p);
                            const uint32_t qh = high[i] >> (4 * p);
                            const uint32_t a = (((ql << 2) & 0x3C3C3C3C) | ((n == 0 ? qh << 6 : qh << 4) & 0xC0C0C0C0)) ^ 0x80808080;
                            for (int j = 0; j < 4; ++j) {
                                const int in_block = 16 * i + 4 * (lane % 4) + j;
                                const int value = q6_k_value(block, h, p, n, in_block);
                                check((int8_t) (a >> (8 * j)) == 4 * value, "q6_k: value", lane);
                                ++n_checked;
                            }
                            const auto scale = (int8_t) (scales[p] >> (8 * (2 * n + i)));
                            check(scale == q6_k_scale(block, h, p, n, 16 * i), "q6_k: scale", lane);
                        }
                    }
                }
            }
        }
    });
    printf("q6_k, %d groups a warp: %zu values\n", RG, n_checked);
}

// The choice by the device itself, whatever code it runs, and what is said instead of it.
static void check_wish() {
    for (const int capability : {600, 700, 720, 750, 800, 860, 890, 900, 1000, 1200}) {
        check(lane_order::is_wanted(nullptr, capability) == (capability == 750), "by device", capability);
        check(!lane_order::is_wanted("0", capability), "not wanted", capability);
        check(lane_order::is_wanted("1", capability) && lane_order::is_wanted("yes", capability), "wanted", capability);
    }
    printf("by default on 7.5 alone\n");
}

int main() {
    check_wish();
    check_permutation<lane_order::q8_0>("q8_0", 32, 256 / 32 * 34);
    check_permutation<lane_order::q8_0>("q8_0", 96, 768 / 32 * 34);
    check_permutation<lane_order::q6_k>("q6_k", 32, 210);
    check_permutation<lane_order::q6_k>("q6_k", 96, 3 * 210);
    check_q8_0<2>(96, 768);
    check_q8_0<4>(96, 768);
    check_q6_k<2>(96, 768);
    check_q6_k<4>(96, 768);
    return 0;
}
