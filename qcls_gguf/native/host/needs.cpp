// The instruction sets that the CPU code needs. This file is compiled with the options of that code, so it must contain
// no function: a function might use instructions that this processor lacks.
#include "processor.h"

// A macro's value as text: "1" where the compiler defines it, otherwise its name.
#define QCLS_VALUE(macro) QCLS_TEXT(macro)
#define QCLS_TEXT(value) #value
#define QCLS_ROW(name, leaf, subleaf, reg, bit, saved) QCLS_VALUE(__##name##__),

const char * const qcls_compiled_for[] = {QCLS_INSTRUCTION_SETS(QCLS_ROW) ""};
