// A disk that is slow or fails, for one kind of call on files whose path contains a text.
// BAD_DISK="<call>:<text in the path>:<errno or 0>:<which time, 0 for each>:<ms to wait>:<bytes per second or 0>",
// several of them separated by ";". What matched is appended to BAD_DISK_LOG, one line each.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_fsync)(int), (*real_fdatasync)(int), (*real_close)(int);
static int passed[16];

__attribute__((constructor)) static void find(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_close = dlsym(RTLD_NEXT, "close");
}

static void pause_ms(double ms) {
    struct timespec left = {(time_t)(ms / 1000), (long)((ms - 1000 * (long)(ms / 1000)) * 1e6)};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

// The error to fail with; 0 to go on.
static int meet(const char *call, int descriptor, size_t bytes) {
    const char *spec = getenv("BAD_DISK");
    if (!spec) return 0;
    char link[64], path[4096], copy[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    strncpy(copy, spec, sizeof copy - 1);
    copy[sizeof copy - 1] = 0;
    int index = 0;
    for (char *save, *entry = strtok_r(copy, ";", &save); entry && index < 16; entry = strtok_r(NULL, ";", &save), index++) {
        char name[32], text[1024];
        int code, which;
        double ms, rate;
        if (sscanf(entry, "%31[^:]:%1023[^:]:%d:%d:%lf:%lf", name, text, &code, &which, &ms, &rate) != 6) continue;
        if (strcmp(name, call) || !strstr(path, text)) continue;
        int time = __sync_add_and_fetch(&passed[index], 1);
        const char *log = getenv("BAD_DISK_LOG");
        if (log) {
            char line[5000];
            int file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
            int size = snprintf(line, sizeof line, "%s %s\n", call, path);
            if (file >= 0) { real_write(file, line, size); real_close(file); }
        }
        if (which && time != which) continue;
        if (rate > 0) ms += 1000.0 * bytes / rate;
        if (ms > 0) pause_ms(ms);
        if (code) return code;
    }
    return 0;
}

ssize_t write(int descriptor, const void *buffer, size_t size) {
    int code = meet("write", descriptor, size);
    if (code) { errno = code; return -1; }
    return real_write(descriptor, buffer, size);
}

int fsync(int descriptor) {
    int code = meet("fsync", descriptor, 0);
    if (code) { errno = code; return -1; }
    return real_fsync(descriptor);
}

int fdatasync(int descriptor) {
    int code = meet("fdatasync", descriptor, 0);
    if (code) { errno = code; return -1; }
    return real_fdatasync(descriptor);
}

int close(int descriptor) {
    int code = meet("close", descriptor, 0);
    int result = real_close(descriptor);  // as on Linux: it is closed all the same
    if (code) { errno = code; return -1; }
    return result;
}
