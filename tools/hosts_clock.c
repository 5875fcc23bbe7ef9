/* Shifts the wall clock of the programs that load this (LD_PRELOAD) by HOSTS_WALL_SHIFT_S seconds.

   The kernel has a namespace for the monotonic clocks but none for the wall clock. Deadlines that a program hands to the
   kernel as wall clock times are not shifted back: Python and PyTorch wait by the monotonic clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

typedef int (*clock_function)(clockid_t, struct timespec *);

static clock_function real_clock;
static long shift;

__attribute__((constructor)) static void prepare(void) {
    const char *text = getenv("HOSTS_WALL_SHIFT_S");
    if (!real_clock) real_clock = (clock_function)dlsym(RTLD_NEXT, "clock_gettime");
    shift = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock) prepare(); /* another library's constructor may run before ours */
    int result = real_clock(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME_COARSE, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}
