/* ranks: 2 */
/*
 * A thread that waits for what a device brings makes no system call per look, and no byte goes by
 * TCP while barriers and all-reduces go by devices. That is asserted only where these carry
 * everything: with GASPI_IBVERBS_LIB, whose mocked device counts how often it was looked at.
 *
 * The functions of the C library by which the library calls the system are defined here in their
 * place, and count what the waiting thread calls. A yield of the core is not counted.
 */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <dlfcn.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { DATA = 0, ROUNDS = 300, IN_VAIN = 100, PING = 2, NEVER = 3 };
/* Of so many looks one at most makes a system call, besides those by which a wait wakes others and
 * sleeps: where ranks share a core it does so behind few looks. */
enum { LOOKS_PER_CALL = 16, CALLS_PER_WAIT = 16 };
/* What control says by itself while barriers go on. A frame of a barrier has more than 40 bytes. */
enum { BYTES_BESIDE = 4096 };

static _Thread_local int counts;
static _Thread_local unsigned long calls;

/* Of the device that is mocked: not those of the library under test. */
static int is_of_device(const void *caller) {
  Dl_info found;
  return dladdr(caller, &found) != 0 && found.dli_fname != NULL &&
         strstr(found.dli_fname, "gaspi_mock_card") != NULL;
}

#define COUNTED(result, name, parameters, arguments)                       \
  result name parameters;                                                  \
  result name parameters {                                                 \
    static result(*real) parameters;                                       \
    if (real == NULL) {                                                    \
      *(void **)&real = dlsym(RTLD_NEXT, #name);                           \
    }                                                                      \
    if (counts && !is_of_device(__builtin_return_address(0))) {            \
      calls++;                                                             \
    }                                                                      \
    return real arguments;                                                 \
  }
COUNTED(int, epoll_wait, (int at, struct epoll_event *events, int most, int limit),
        (at, events, most, limit))
COUNTED(int, epoll_ctl, (int at, int op, int of, struct epoll_event *event), (at, op, of, event))
COUNTED(int, poll, (struct pollfd *all, nfds_t count, int limit), (all, count, limit))
COUNTED(ssize_t, read, (int from, void *to, size_t size), (from, to, size))
COUNTED(ssize_t, write, (int to, const void *from, size_t size), (to, from, size))
COUNTED(ssize_t, recv, (int from, void *to, size_t size, int flags), (from, to, size, flags))
COUNTED(ssize_t, recvmsg, (int from, struct msghdr *to, int flags), (from, to, flags))
COUNTED(ssize_t, readv, (int from, const struct iovec *to, int count), (from, to, count))
COUNTED(ssize_t, send, (int to, const void *from, size_t size, int flags), (to, from, size, flags))
COUNTED(ssize_t, sendmsg, (int to, const struct msghdr *from, int flags), (to, from, flags))
COUNTED(ssize_t, writev, (int to, const struct iovec *from, int count), (to, from, count))

/* Whatever number of arguments there is: all that a system call may have are passed on. */
long syscall(long number, ...) {
  static long (*real)(long, ...);
  long all[6];
  va_list arguments;
  va_start(arguments, number);
  for (int at = 0; at < 6; at++) {
    all[at] = va_arg(arguments, long);
  }
  va_end(arguments);
  if (real == NULL) {
    *(void **)&real = dlsym(RTLD_NEXT, "syscall");
  }
  if (counts && !is_of_device(__builtin_return_address(0))) {
    calls++;
  }
  return real(number, all[0], all[1], all[2], all[3], all[4], all[5]);
}

/* How often this rank's device was looked at; 0 without one. */
static unsigned long looks(void) {
  const char *file = getenv("GASPI_IBVERBS_LIB");
  void *mock = file == NULL ? NULL : dlopen(file, RTLD_NOW | RTLD_NOLOAD);
  if (mock == NULL) {
    return 0;
  }
  uint64_t (*counter)(uint32_t, uint32_t, const char *);
  *(void **)&counter = dlsym(mock, "mock_card_counter");
  CHECK(counter != NULL);
  /* A process has one device, whose number is one of these. */
  const unsigned long found = counter(0, 0, "polls") + counter(0, 1, "polls");
  dlclose(mock);
  return found;
}

/* Bytes that all TCP connections of this process have sent and acknowledged as received. */
static unsigned long bytes_by_tcp(void) {
  unsigned long all = 0;
  DIR *open = opendir("/proc/self/fd");
  CHECK(open != NULL);
  for (struct dirent *at = readdir(open); at != NULL; at = readdir(open)) {
    struct tcp_info info;
    socklen_t size = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(atoi(at->d_name), IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
      all += info.tcpi_bytes_acked + info.tcpi_bytes_received;
    }
  }
  closedir(open);
  return all;
}

/* A wait, and what ends it on the other rank. */
static void meet(int round) {
  (void)round;
  sync_all();
}

static void add_up(int round) {
  int sum = 0;
  CHECK_OK(gaspi_allreduce(&round, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_INT, GASPI_GROUP_ALL, LIMIT));
  CHECK(sum == 2 * round);
}

static void write_and_wait(int round) {
  (void)round;
  CHECK_OK(gaspi_write(DATA, 0, rank_after(1), DATA, 64, 8, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
}

static void take_turns(int round) {
  if ((round % 2 == 0) == (my_rank == 0)) {
    CHECK_OK(gaspi_notify(DATA, rank_after(1), PING, 1, 0, LIMIT));
    CHECK_OK(gaspi_wait(0, LIMIT));
  } else {
    (void)take(DATA, PING);
  }
}

static void wait_in_vain(int round) {
  gaspi_notification_id_t first;
  (void)round;
  CHECK_RC(gaspi_notify_waitsome(DATA, NEVER, 1, &first, 1), GASPI_TIMEOUT);
}

/* Goes about until a device carries all of it, which both ranks find out together, or for long. */
static void warm_up(void) {
  unsigned long changed, all = 1;
  for (int times = 0; times < 100 && all > 0; times++) {
    const unsigned long before = bytes_by_tcp();
    for (int round = 0; round < 100; round++) {
      write_and_wait(round);
      take_turns(round);
      meet(round);
    }
    changed = bytes_by_tcp() - before;
    CHECK_OK(gaspi_allreduce(&changed, &all, 1, GASPI_OP_MAX, GASPI_TYPE_ULONG, GASPI_GROUP_ALL,
                             LIMIT));
  }
}

/* Counts what waits of one kind cost: so many looks have made a system call at most. */
static void count(const char *kind, void (*wait)(int), int rounds, int is_by_device) {
  const unsigned long before = looks();
  calls = 0;
  for (int round = 0; round < rounds; round++) {
    counts = 1;
    wait(round);
    counts = 0;
  }
  const unsigned long looked = looks() - before;
  if (is_by_device && calls > looked / LOOKS_PER_CALL + CALLS_PER_WAIT * (unsigned long)rounds) {
    fprintf(stderr, "rank %d: %d %s: %lu system calls for %lu looks at the device\n",
            (int)my_rank, rounds, kind, calls, looked);
    CHECK(0);
  }
}

int main(void) {
  const char *messages = getenv("GASPI_IB_MESSAGES");
  const int is_by_device = getenv("GASPI_IBVERBS_LIB") != NULL &&
                           (messages == NULL || strcmp(messages, "tcp") != 0);
  job_start();
  CHECK(ranks == 2);
  (void)segment_on_all(DATA, 4096);
  if (is_by_device) {
    warm_up();
  }
  const unsigned long before = bytes_by_tcp();
  count("barriers", meet, ROUNDS, is_by_device);
  count("all-reduces", add_up, ROUNDS, is_by_device);
  if (is_by_device) {
    const unsigned long bytes = bytes_by_tcp() - before;
    CHECK(bytes <= BYTES_BESIDE);
  }
  count("writes", write_and_wait, ROUNDS, is_by_device);
  sync_all();
  count("notifications", take_turns, ROUNDS, is_by_device);
  sync_all();
  count("waits in vain", wait_in_vain, IN_VAIN, is_by_device);
  /* Each of these sleeps in the end. */
  CHECK(!is_by_device || calls > 0);
  job_end();
  return 0;
}
