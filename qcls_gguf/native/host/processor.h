// Which instruction sets the CPU code of this build needs, and which this processor has. This is a separate library,
// compiled for any processor and not linked to llama.cpp: it is asked before anything else is loaded.
#ifndef QCLS_PROCESSOR_H
#define QCLS_PROCESSOR_H

#define QCLS_API __attribute__((visibility("default")))

extern "C" {

// The instruction sets that the processor has and that the system lets a process use, by the names of compilers'
// macros, separated by spaces. AMX is not among them, because the code that uses it asks for it.
QCLS_API const char * qcls_processor_has(void);

// The instruction sets that the CPU code needs and the processor lacks; none if the build chooses among variants when
// it starts.
QCLS_API const char * qcls_processor_lacks(void);
}

// For each set, "1" if the CPU code is compiled for it (needs.cpp).
extern const char * const qcls_compiled_for[];

// x86-64. Name, which is the compiler's macro without underscores at its ends; leaf and subleaf of CPUID; register, 0
// to 3 for EAX to EDX; bit; which registers the system must save: 0 none, 1 those of AVX, 2 those of AVX-512. These are
// the sets that compilers or ggml use if the code is compiled for them. Sources: "Intel 64 and IA-32 Architectures
// Software Developer's Manual", volume 2, CPUID; "AMD64 Architecture Programmer's Manual", volume 3, appendix E.
#define QCLS_INSTRUCTION_SETS(X)               \
    X(SSE3, 0x1, 0, 2, 0, 0)                   \
    X(SSSE3, 0x1, 0, 2, 9, 0)                  \
    X(SSE4_1, 0x1, 0, 2, 19, 0)                \
    X(SSE4_2, 0x1, 0, 2, 20, 0)                \
    X(MOVBE, 0x1, 0, 2, 22, 0)                 \
    X(POPCNT, 0x1, 0, 2, 23, 0)                \
    X(AVX, 0x1, 0, 2, 28, 1)                   \
    X(F16C, 0x1, 0, 2, 29, 1)                  \
    X(FMA, 0x1, 0, 2, 12, 1)                   \
    X(BMI, 0x7, 0, 1, 3, 0)                    \
    X(BMI2, 0x7, 0, 1, 8, 0)                   \
    X(LZCNT, 0x80000001, 0, 2, 5, 0)           \
    X(AVX2, 0x7, 0, 1, 5, 1)                   \
    X(AVXVNNI, 0x7, 1, 0, 4, 1)                \
    X(AVXIFMA, 0x7, 1, 0, 23, 1)               \
    X(AVXVNNIINT8, 0x7, 1, 3, 4, 1)            \
    X(AVXNECONVERT, 0x7, 1, 3, 5, 1)           \
    X(AVX512F, 0x7, 0, 1, 16, 2)               \
    X(AVX512CD, 0x7, 0, 1, 28, 2)              \
    X(AVX512BW, 0x7, 0, 1, 30, 2)              \
    X(AVX512DQ, 0x7, 0, 1, 17, 2)              \
    X(AVX512VL, 0x7, 0, 1, 31, 2)              \
    X(AVX512IFMA, 0x7, 0, 1, 21, 2)            \
    X(AVX512VBMI, 0x7, 0, 2, 1, 2)             \
    X(AVX512VBMI2, 0x7, 0, 2, 6, 2)            \
    X(AVX512VNNI, 0x7, 0, 2, 11, 2)            \
    X(AVX512BITALG, 0x7, 0, 2, 12, 2)          \
    X(AVX512VPOPCNTDQ, 0x7, 0, 2, 14, 2)       \
    X(AVX512FP16, 0x7, 0, 3, 23, 2)            \
    X(AVX512BF16, 0x7, 1, 0, 5, 2)             \
    X(GFNI, 0x7, 0, 2, 8, 0)                   \
    X(VAES, 0x7, 0, 2, 9, 1)                   \
    X(VPCLMULQDQ, 0x7, 0, 2, 10, 1)

#endif
