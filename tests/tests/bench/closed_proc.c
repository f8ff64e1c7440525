/*
 * Preloaded by tests: a machine on which no process may open the descriptors of another in /proc,
 * as where a security module forbids it, or where the owner's program may be executed but not read.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>

static int is_closed(const char *path) {
  size_t digits;
  if (strncmp(path, "/proc/", 6) != 0) return 0;
  digits = strspn(path + 6, "0123456789");
  return digits > 0 && strncmp(path + 6 + digits, "/fd/", 4) == 0;
}

#define OPEN(name)                                                  \
  int name(const char *path, int flags, ...) {                      \
    int (*real)(const char *, int, ...);                            \
    va_list more;                                                   \
    mode_t mode;                                                    \
    if (is_closed(path)) {                                          \
      errno = EACCES;                                               \
      return -1;                                                    \
    }                                                               \
    va_start(more, flags);                                          \
    mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                   \
    *(void **)&real = dlsym(RTLD_NEXT, #name);                      \
    return real(path, flags, mode);                                 \
  }

OPEN(open)
OPEN(open64)
