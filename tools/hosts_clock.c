/* Shifts the wall clock of the programs that load this (LD_PRELOAD) by HOSTS_WALL_SHIFT_S seconds.

   The kernel has a namespace for the monotonic clocks but none for the wall clock. So deadlines that a program hands to
   the kernel as wall clock times are shifted back: Ray waits for conditions by the wall clock, and would wait for ever,
   or not at all. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

typedef int (*clock_function)(clockid_t, struct timespec *);
typedef int (*wait_function)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef long (*system_function)(long, ...);

#define YEAR_2001 1000000000 /* no monotonic clock has got that far */

static clock_function real_clock;
static wait_function real_wait;
static system_function real_system;
static long shift;

__attribute__((constructor)) static void prepare(void) {
    const char *text = getenv("HOSTS_WALL_SHIFT_S");
    shift = text ? atol(text) : 0;
    if (!real_clock) real_clock = (clock_function)dlsym(RTLD_NEXT, "clock_gettime");
    if (!real_system) real_system = (system_function)dlsym(RTLD_NEXT, "syscall");
    /* There is an older function of this name for other conditions. */
    if (!real_wait) real_wait = (wait_function)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real_wait) real_wait = (wait_function)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
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

/* What the kernel's own clock will show then. */
static struct timespec shifted_back(const struct timespec *deadline) {
    struct timespec real = *deadline;
    if (real.tv_sec > YEAR_2001) real.tv_sec -= shift;
    return real;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    if (!real_wait) prepare();
    struct timespec real = shifted_back(deadline);
    return real_wait(condition, mutex, &real);
}

long syscall(long number, ...) {
    long a[6];
    struct timespec real;
    va_list given;
    va_start(given, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(given, long);
    va_end(given);
    if (!real_system) prepare();
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3]) {
        real = shifted_back((const struct timespec *)a[3]);
        a[3] = (long)&real;
    }
    return real_system(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
