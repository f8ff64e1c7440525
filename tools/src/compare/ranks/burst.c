/*
 * A rank that measures in short bursts when it is told to, and sleeps otherwise.
 *
 * The same file is linked with the part for each library (library.h). Each rank connects to the
 * driver by an abstract Unix socket (argv[1]) and binds itself to one of the cores argv[2] ("0,1"),
 * its rank modulo their number. The driver hands it memory that the ranks of this job map. Then the
 * library starts, the rank says so, and reads commands. Between them it sits in read(), so that the
 * jobs of other libraries have the cores for themselves.
 *
 * A burst is some calls. Before each, every rank writes its input anew. Then all meet outside of
 * the library, and begin at an agreed moment of the clock that they share; what counts is the time
 * from that moment until the last rank has returned. So writing costs nothing in the time, and
 * nobody's time holds the lateness of another. Where ranks share cores the agreed moment is that of
 * the last arrival.
 *
 * No call begins when the time of a burst is over: the rank that arrives last decides it for all.
 */
#define _GNU_SOURCE
#include "library.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CALLS_MAX = 512, WARM_MAX = 16, LINE = 64 };
/* The longest wait for a burst: a rank whose driver is gone does not spin for ever. */
enum { LIMIT_SECONDS = 120 };
/* From the last arrival to the agreed moment: all have seen it by then. */
enum { LEAD_NS = 400 };
/* A rank that waits so long outside gives its library a chance to go on. */
enum { PROGRESS_NS = 5000000 };

struct command {
  uint32_t what, in_place, memory, calls;
  uint64_t count, limit_ns;
};

struct answer {
  uint64_t offered, wrong, calls;
  double us[CALLS_MAX];
};

/* The memory of the driver, which begins with zeroes. */
struct meeting {
  _Alignas(LINE) _Atomic unsigned arrived;
  _Alignas(LINE) _Atomic unsigned generation;
  uint64_t begin_ns;
  int late;
  _Alignas(LINE) struct page page;
};

static struct meeting *meeting;
static unsigned rank, ranks;
static int crowded;
static float *send_buffer, *receive_buffer;
static size_t capacity;
static uint32_t memory_kind;

static void fail(const char *what) {
  fprintf(stderr, "burst: rank %u: %s\n", rank, what);
  exit(1);
}

/* What the launchers call a rank, known before the library starts. */
static unsigned number(const char *const *names) {
  for (; *names != NULL; names++) {
    const char *text = getenv(*names);
    if (text != NULL) return (unsigned)strtoul(text, NULL, 10);
  }
  fail("the launcher does not say which rank this is");
  return 0;
}

static void bind_to(const char *cores) {
  unsigned count = 1, n;
  const char *at;
  cpu_set_t set;
  for (at = cores; *at != '\0'; at++) count += *at == ',';
  for (at = cores, n = rank % count; n > 0; n--) at = strchr(at, ',') + 1;
  CPU_ZERO(&set);
  CPU_SET(strtoul(at, NULL, 10), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("cannot bind to a core");
  crowded = ranks > count;
}

/* Takes the memory of the meeting, which comes with a byte. */
static void map_meeting(int from) {
  char byte;
  struct iovec vector = {&byte, 1};
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message = {.msg_iov = &vector,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control};
  struct cmsghdr *found;
  int fd;
  if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1) _exit(1);
  found = CMSG_FIRSTHDR(&message);
  if (found == NULL || found->cmsg_type != SCM_RIGHTS) fail("no memory of the meeting came");
  memcpy(&fd, CMSG_DATA(found), sizeof fd);
  meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (meeting == MAP_FAILED) fail("cannot map the memory of the meeting");
  close(fd);
}

static int connect_to(const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (strlen(name) + 1 > sizeof address.sun_path) fail("the name of the socket is too long");
  memcpy(address.sun_path + 1, name, strlen(name));
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) != 0) fail("no driver listens");
  return fd;
}

static void move(int fd, void *bytes, size_t left, int out) {
  char *at = bytes;
  while (left > 0) {
    ssize_t done = out ? send(fd, at, left, MSG_NOSIGNAL) : read(fd, at, left);
    /* The driver has ended, and so does this: without the library, whose peers may be gone. */
    if (done <= 0) _exit(1);
    at += done;
    left -= (size_t)done;
  }
}

static inline uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Waits for all ranks; returns the agreed moment when it has come, 0 if that is after until_ns. */
static uint64_t meet(uint64_t until_ns) {
  unsigned now = atomic_load_explicit(&meeting->generation, memory_order_acquire);
  uint64_t begin;
  if (atomic_fetch_add_explicit(&meeting->arrived, 1, memory_order_acq_rel) + 1 == ranks) {
    atomic_store_explicit(&meeting->arrived, 0, memory_order_relaxed);
    meeting->begin_ns = now_ns() + (crowded ? 0 : LEAD_NS);
    meeting->late = meeting->begin_ns > until_ns;
    atomic_store_explicit(&meeting->generation, now + 1, memory_order_release);
  } else {
    uint64_t patience = now_ns() + PROGRESS_NS;
    unsigned looks = 0;
    while (atomic_load_explicit(&meeting->generation, memory_order_acquire) == now) {
      if (crowded) {
        sched_yield();
      } else {
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
      }
      if (++looks % 1024 == 0 && now_ns() > patience) {
        library_progress();
        patience = now_ns() + PROGRESS_NS;
      }
    }
  }
  if (meeting->late) return 0;
  begin = meeting->begin_ns;
  while (now_ns() < begin) {
  }
  return begin;
}

/* Small integers: every sum of them is exact in a float, in whatever order. */
static inline float value(unsigned of, size_t index, unsigned call) {
  return (float)(int)((index & 255) + (call & 63) + of);
}

static inline float sum(size_t index, unsigned call) {
  unsigned each = (unsigned)(index & 255) + (call & 63);
  return (float)(int)(ranks * each + ranks * (ranks - 1) / 2);
}

static void write_values(float *to, size_t count, size_t first, unsigned call) {
  for (size_t i = 0; i < count; i++) to[i] = value(rank, first + i, call);
}

/* Whether input and output are one buffer: a broadcast has only one, and some never share. */
static int placed(enum what what, int asked) {
  if (what == BROADCAST) return 1;
  return asked && (what == ALLREDUCE || what == REDUCE || what == ALLGATHER);
}

/* This rank's input: where it lies, how many elements it has. */
static float *input(const struct shape *shape, size_t *count) {
  size_t at = 0;
  *count = shape->count;
  switch (shape->what) {
    case ALLGATHER:
      at = shape->in_place ? rank * shape->block : 0;
      *count = shape->block;
      break;
    case GATHER:
      *count = shape->block;
      break;
    case BROADCAST:
    case SCATTER:
      if (rank != 0) *count = 0;
      break;
    default:
      break;
  }
  return (shape->in_place ? receive_buffer : send_buffer) + at;
}

static void rewrite(const struct shape *shape, unsigned call) {
  size_t count;
  float *to = input(shape, &count);
  write_values(to, count, 0, call);
}

/* Elements of the result that are not what they have to be. */
static uint64_t wrong_after(const struct shape *shape, unsigned call) {
  size_t block = shape->block, from;
  uint64_t wrong = 0;
  switch (shape->what) {
    case ALLREDUCE:
    case REDUCE:
      if (shape->what == REDUCE && rank != 0) return 0;
      for (size_t i = 0; i < shape->count; i++) wrong += receive_buffer[i] != sum(i, call);
      return wrong;
    case BROADCAST:
      for (size_t i = 0; i < shape->count; i++) wrong += receive_buffer[i] != value(0, i, call);
      return wrong;
    case REDUCE_SCATTER:
      for (size_t i = 0; i < block; i++) wrong += receive_buffer[i] != sum(rank * block + i, call);
      return wrong;
    case SCATTER:
      for (size_t i = 0; i < block; i++) {
        wrong += receive_buffer[i] != value(0, rank * block + i, call);
      }
      return wrong;
    case GATHER:
      if (rank != 0) return 0;
      break;
    case ALLGATHER:
    case ALLTOALL:
      break;
    default:
      return 0;
  }
  /* A block of each rank. */
  from = shape->what == ALLTOALL ? rank * block : 0;
  for (unsigned other = 0; other < ranks; other++) {
    const float *at = receive_buffer + other * block;
    for (size_t i = 0; i < block; i++) wrong += at[i] != value(other, from + i, call);
  }
  return wrong;
}

/* One call; stores microseconds from the agreed moment. 0 if that would be after until_ns. */
static int timed(const struct shape *shape, unsigned call, uint64_t until_ns, double *us) {
  uint64_t begin, end;
  rewrite(shape, call);
  begin = meet(until_ns);
  if (begin == 0) return 0;
  if (library_call(shape, send_buffer, receive_buffer) != 0) fail("a call failed");
  end = now_ns();
  /* By the library, since a rank that has returned may still have something to send. */
  if (library_barrier() != 0) fail("a barrier failed");
  *us = (double)(end - begin) * 1e-3;
  return 1;
}

/* The same with all of the result compared. */
static uint64_t checked(const struct shape *shape, unsigned call, double *us) {
  memset(receive_buffer, 0xff, capacity);
  timed(shape, call, UINT64_MAX, us);
  return wrong_after(shape, call);
}

static void provide(const struct command *command, size_t bytes) {
  if (bytes <= capacity && bytes >= capacity / 2 && command->memory == memory_kind) return;
  capacity = bytes;
  memory_kind = command->memory;
  if (library_buffers(memory_kind, bytes, &send_buffer, &receive_buffer) != 0) {
    fail("no memory for the buffers");
  }
  memset(send_buffer, 0, bytes);
  memset(receive_buffer, 0, bytes);
}

static void burst(int fd, const struct command *command) {
  struct shape shape = {command->what, (int)command->in_place, rank, ranks, command->count, 0};
  unsigned warm = command->calls / 4;
  struct answer answer = {0};
  uint64_t until_ns;
  double first = 0, ignored;
  int in_time = 1;
  if (command->calls - 1 >= CALLS_MAX) fail("no such number of calls");
  shape.block = shape.count / ranks;
  shape.in_place = placed(shape.what, shape.in_place);
  if (!library_offers(&shape)) {
    move(fd, &answer, sizeof answer, 1);
    return;
  }
  answer.offered = 1;
  provide(command, shape.count * sizeof(float) > 4096 ? shape.count * sizeof(float) : 4096);
  until_ns = now_ns() + command->limit_ns;
  answer.wrong = checked(&shape, 0, &first);
  /* What the bursts of others left in caches is gone after this. */
  if (warm > WARM_MAX) warm = WARM_MAX;
  for (unsigned call = 0; in_time && call < warm; call++) {
    in_time = timed(&shape, call, until_ns, &ignored);
  }
  for (unsigned call = 0; in_time && call < command->calls; call++) {
    in_time = timed(&shape, call, until_ns, &answer.us[call]);
    answer.calls += (uint64_t)in_time;
  }
  /* A call that did not begin any more has had its input written, maybe over the last result. */
  if (in_time) answer.wrong += wrong_after(&shape, command->calls - 1);
  /* Where there was time for no other, the first call has to do. */
  if (answer.calls == 0) {
    answer.us[0] = first;
    answer.calls = 1;
  }
  move(fd, &answer, sizeof answer, 1);
}

int main(int argc, char **argv) {
  static const char *const rank_names[] = {"GASPI_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL};
  static const char *const size_names[] = {"GASPI_NRANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                           NULL};
  struct command command;
  uint32_t hello[2], ready = 1;
  int fd;
  if (argc != 3) fail("usage: burst SOCKET CORES");
  hello[0] = rank = number(rank_names);
  hello[1] = ranks = number(size_names);
  bind_to(argv[2]);
  alarm(LIMIT_SECONDS);
  fd = connect_to(argv[1]);
  move(fd, hello, sizeof hello, 1);
  map_meeting(fd);
  if (library_start(rank, ranks, &meeting->page) != 0) fail("the library does not start");
  move(fd, &ready, sizeof ready, 1);
  for (;;) {
    alarm(0);
    move(fd, &command, sizeof command, 0);
    alarm(LIMIT_SECONDS);
    if (command.what == STOP) break;
    burst(fd, &command);
  }
  if (library_stop() != 0) fail("the library does not stop");
  return 0;
}
