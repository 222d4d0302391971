/* Puts SLOW_FSYNC_US microseconds into every fsync of a process that is started with LD_PRELOAD. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void be_slow(void) {
    const char *pause = getenv("SLOW_FSYNC_US");
    if (pause != NULL) usleep((useconds_t)atoi(pause));
}

int fsync(int fd) {
    be_slow();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    be_slow();
    return (int)syscall(SYS_fdatasync, fd);
}
