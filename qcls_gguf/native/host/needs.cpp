// What the CPU code needs: this file is compiled with the options of that code, and holds no more than a text.
#include "processor.h"

namespace {

// A macro cannot ask whether another one is defined, so that each set of processor.h stands here once more.
const char text[] =
#ifdef __SSE3__
    "SSE3 "
#endif
#ifdef __SSSE3__
    "SSSE3 "
#endif
#ifdef __SSE4_1__
    "SSE4_1 "
#endif
#ifdef __SSE4_2__
    "SSE4_2 "
#endif
#ifdef __MOVBE__
    "MOVBE "
#endif
#ifdef __POPCNT__
    "POPCNT "
#endif
#ifdef __AVX__
    "AVX "
#endif
#ifdef __F16C__
    "F16C "
#endif
#ifdef __FMA__
    "FMA "
#endif
#ifdef __BMI__
    "BMI "
#endif
#ifdef __BMI2__
    "BMI2 "
#endif
#ifdef __LZCNT__
    "LZCNT "
#endif
#ifdef __XOP__
    "XOP "
#endif
#ifdef __FMA4__
    "FMA4 "
#endif
#ifdef __TBM__
    "TBM "
#endif
#ifdef __AVX2__
    "AVX2 "
#endif
#ifdef __AVXVNNI__
    "AVXVNNI "
#endif
#ifdef __AVXIFMA__
    "AVXIFMA "
#endif
#ifdef __AVXVNNIINT8__
    "AVXVNNIINT8 "
#endif
#ifdef __AVXNECONVERT__
    "AVXNECONVERT "
#endif
#ifdef __AVX512F__
    "AVX512F "
#endif
#ifdef __AVX512CD__
    "AVX512CD "
#endif
#ifdef __AVX512BW__
    "AVX512BW "
#endif
#ifdef __AVX512DQ__
    "AVX512DQ "
#endif
#ifdef __AVX512VL__
    "AVX512VL "
#endif
#ifdef __AVX512IFMA__
    "AVX512IFMA "
#endif
#ifdef __AVX512VBMI__
    "AVX512VBMI "
#endif
#ifdef __AVX512VBMI2__
    "AVX512VBMI2 "
#endif
#ifdef __AVX512VNNI__
    "AVX512VNNI "
#endif
#ifdef __AVX512BITALG__
    "AVX512BITALG "
#endif
#ifdef __AVX512VPOPCNTDQ__
    "AVX512VPOPCNTDQ "
#endif
#ifdef __AVX512FP16__
    "AVX512FP16 "
#endif
#ifdef __AVX512BF16__
    "AVX512BF16 "
#endif
#ifdef __GFNI__
    "GFNI "
#endif
#ifdef __VAES__
    "VAES "
#endif
#ifdef __VPCLMULQDQ__
    "VPCLMULQDQ "
#endif
    "";

}  // namespace

const char * qcls_processor_needs(void) {
    return text;
}
