// The work of one thread: of n items in a row those from begin to end.
#ifndef QCLS_SHARE_H
#define QCLS_SHARE_H

#include <cstdint>

namespace qcls {

struct share {
    share(int64_t n, int i_thread, int n_threads) : begin(n * i_thread / n_threads), end(n * (i_thread + 1) / n_threads) {}

    const int64_t begin;
    const int64_t end;
};

}  // namespace qcls

#endif
