/* Leaves the AMX tiles of this thread as another library might: tiles belong to nobody across calls. Needs no compiler
 * that knows AMX, and no processor that has it until it is called. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
} whole_tiles __attribute__((aligned(64))) = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16},
};

/* released == 0: configured as eight tiles of 16 rows of 64 bytes; else without a configuration. Returns 0, or -1 where the
 * system does not let the process use tiles. */
int disturb_tiles(int released) {
    const long request_permission = 0x1023, tile_data = 18;
    if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0) {
        return -1;
    }
    if (released) {
        __asm__ volatile("tilerelease");
    } else {
        __asm__ volatile("ldtilecfg %0" : : "m"(whole_tiles));
    }
    return 0;
}
