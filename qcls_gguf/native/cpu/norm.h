// Sums of squares for RMS norms.
#ifndef QCLS_NORM_H
#define QCLS_NORM_H

#include <cstdint>

namespace qcls {

// Adds to 16 sums in turn, so that additions need not wait for each other. Their order depends on n alone.
inline double sum_of_squares(const float * x, int64_t n) {
    constexpr int n_sums = 16;
    double sums[n_sums] = {};
    int64_t i = 0;
    for (; i + n_sums <= n; i += n_sums) {
        for (int s = 0; s < n_sums; ++s) {
            sums[s] += (double) (x[i + s] * x[i + s]);
        }
    }
    double sum = 0;
    for (; i < n; ++i) {
        sum += (double) (x[i] * x[i]);
    }
    for (const double part : sums) {
        sum += part;
    }
    return sum;
}

}  // namespace qcls

#endif
