// What this processor has and lacks. Compiled for any processor.
#include "processor.h"

#include <string>

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>

namespace {

struct instruction_set {
    const char * name;
    uint32_t leaf;
    uint32_t subleaf;
    int reg;
    int bit;
    int saved;
};

#define QCLS_ROW(name, leaf, subleaf, reg, bit, saved) {#name, leaf, subleaf, reg, bit, saved},
constexpr instruction_set all_sets[] = {QCLS_INSTRUCTION_SETS(QCLS_ROW)};
#undef QCLS_ROW

bool has_bit(uint32_t leaf, uint32_t subleaf, int reg, int bit) {
    uint32_t value[4] = {};
    if (!__get_cpuid_count(leaf, subleaf, &value[0], &value[1], &value[2], &value[3])) {
        return false;
    }
    if (leaf == 7 && subleaf > 0) {  // processors may return anything for a subleaf that they do not have
        uint32_t last = 0, b, c, d;
        __get_cpuid_count(leaf, 0, &last, &b, &c, &d);
        if (subleaf > last) {
            return false;
        }
    }
    return value[reg] >> bit & 1;
}

// XCR0: which registers the system saves when it switches to another thread; 0 where it saves none of them.
uint32_t saved_registers() {
    if (!has_bit(1, 0, 2, 27)) {
        return 0;
    }
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

// The names of the instruction sets that the processor has (is_there) or lacks; of all, or of those that the CPU code
// is compiled for.
std::string names_of(bool is_there, bool needed_only) {
    const uint32_t saved = saved_registers();
    const bool is_saved[] = {true, (saved & 0x6) == 0x6, (saved & 0xe6) == 0xe6};
    std::string names;
    size_t i = 0;
    for (const instruction_set & each : all_sets) {
        const bool is_needed = qcls_compiled_for[i++][0] == '1';
        const bool has_it = is_saved[each.saved] && has_bit(each.leaf, each.subleaf, each.reg, each.bit);
        if (has_it == is_there && (is_needed || !needed_only)) {
            names += names.empty() ? "" : " ";
            names += each.name;
        }
    }
    return names;
}

}  // namespace

const char * qcls_processor_has(void) {
    static const std::string names = names_of(true, false);
    return names.c_str();
}

const char * qcls_processor_lacks(void) {
    static const std::string names = names_of(false, true);
    return names.c_str();
}

#else

const char * qcls_processor_has(void) {
    return "";
}

const char * qcls_processor_lacks(void) {
    return "";
}

#endif
