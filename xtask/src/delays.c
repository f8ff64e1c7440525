/*
 * A library to preload: threads sleep at random before and behind the system calls by which ranks
 * talk with each other and wait for each other. A race between two instructions shows once in a
 * million runs on an idle machine. Here it shows within a minute: a thread that has published
 * something and not yet looked, or looked and not yet slept, may stay there for milliseconds.
 *
 * GASPI_DELAYS_SEED: seeds the random numbers. Each thread has its own, in the order in which
 * threads make their first call. The same seed gives the same delays to the same calls; the order
 * of threads is still up to the scheduler.
 * GASPI_DELAYS_PERCENT: so many calls of a hundred are delayed.
 * GASPI_DELAYS_US: for up to so many microseconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static uint64_t setting(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

static uint64_t seed, percent, limit_us;

__attribute__((constructor)) static void read_settings(void) {
  seed = setting("GASPI_DELAYS_SEED", 1);
  limit_us = setting("GASPI_DELAYS_US", 2000);
  percent = setting("GASPI_DELAYS_PERCENT", 3);
}

/* SplitMix64. */
static uint64_t next_random(uint64_t *state) {
  uint64_t bits = *state += 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

static void delay(void) {
  static atomic_uint_fast64_t threads;
  static _Thread_local uint64_t state;
  static _Thread_local int known;
  if (!known) {
    known = 1;
    state = seed << 32 ^ atomic_fetch_add(&threads, 1);
    state = next_random(&state);
  }
  if (limit_us == 0 || next_random(&state) % 100 >= percent) {
    return;
  }
  /* What the call has left there is for the caller. */
  const int error = errno;
  const uint64_t pause_us = next_random(&state) % limit_us;
  const struct timespec pause = {(time_t)(pause_us / 1000000), (long)(pause_us % 1000000) * 1000};
  nanosleep(&pause, NULL);
  errno = error;
}

/* The function that this library stands in front of. */
static void *behind(void *_Atomic *known, const char *name) {
  void *found = atomic_load_explicit(known, memory_order_relaxed);
  if (!found) {
    found = dlsym(RTLD_NEXT, name);
    atomic_store_explicit(known, found, memory_order_relaxed);
  }
  return found;
}

#define DELAYED(type, name, parameters, arguments)                       \
  type name parameters {                                                 \
    static void *_Atomic known;                                          \
    type(*call) parameters = (type(*) parameters)behind(&known, #name);  \
    delay();                                                             \
    const type result = call arguments;                                  \
    delay();                                                             \
    return result;                                                       \
  }

DELAYED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
DELAYED(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
DELAYED(ssize_t, send, (int fd, const void *from, size_t size, int flags), (fd, from, size, flags))
DELAYED(ssize_t, recv, (int fd, void *to, size_t size, int flags), (fd, to, size, flags))
DELAYED(ssize_t, sendto,
        (int fd, const void *from, size_t size, int flags, const struct sockaddr *name,
         socklen_t len),
        (fd, from, size, flags, name, len))
DELAYED(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size))
DELAYED(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size))
DELAYED(ssize_t, vmsplice, (int fd, const struct iovec *pieces, size_t count, unsigned flags),
        (fd, pieces, count, flags))
DELAYED(ssize_t, splice,
        (int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned flags),
        (from, from_at, to, to_at, size, flags))
DELAYED(ssize_t, process_vm_readv,
        (pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from,
         unsigned long from_count, unsigned long flags),
        (pid, to, to_count, from, from_count, flags))
DELAYED(ssize_t, process_vm_writev,
        (pid_t pid, const struct iovec *from, unsigned long from_count, const struct iovec *to,
         unsigned long to_count, unsigned long flags),
        (pid, from, from_count, to, to_count, flags))
DELAYED(int, epoll_ctl, (int set, int operation, int fd, struct epoll_event *event),
        (set, operation, fd, event))
DELAYED(int, epoll_wait, (int set, struct epoll_event *events, int room, int limit_ms),
        (set, events, room, limit_ms))
DELAYED(int, poll, (struct pollfd *fds, nfds_t count, int limit_ms), (fds, count, limit_ms))
DELAYED(int, connect, (int fd, const struct sockaddr *name, socklen_t len), (fd, name, len))
DELAYED(int, accept4, (int fd, struct sockaddr *name, socklen_t *len, int flags),
        (fd, name, len, flags))
DELAYED(int, shutdown, (int fd, int how), (fd, how))
DELAYED(int, close, (int fd), (fd))
DELAYED(int, sched_yield, (void), ())

/* Futexes, membarrier, process descriptors. */
long syscall(long number, ...) {
  static void *_Atomic known;
  long (*call)(long, ...) = (long (*)(long, ...))behind(&known, "syscall");
  va_list given;
  long values[6];
  va_start(given, number);
  for (int at = 0; at < 6; at++) {
    values[at] = va_arg(given, long);
  }
  va_end(given);
  delay();
  const long result =
      call(number, values[0], values[1], values[2], values[3], values[4], values[5]);
  delay();
  return result;
}
