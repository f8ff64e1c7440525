/*
 * A rank that measures in short bursts when it is told to, and sleeps otherwise.
 *
 * The same file is compiled for every library: with -DUSE_GASPI for libgaspi, else for MPI. Each rank
 * connects to the driver by an abstract Unix socket (argv[1]) and binds itself to one of the cores
 * argv[2] ("0,1"), its rank modulo their number, before the library starts. Then it reads commands;
 * between them it sits in read(), so that the jobs of other libraries have the cores for themselves.
 *
 * A burst is a meeting and `batches` batches of `calls` calls each; its answer is one time per batch
 * and the number of wrong results. Buffers are written before every call, inside of the time, the same
 * way for all libraries.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef USE_GASPI
/* The binary interface, so that no installed headers are needed. */
enum { OP_SUM = 2, TYPE_DOUBLE = 3, GROUP_ALL = 0 };
#define BLOCK UINT64_MAX
int gaspi_proc_init(unsigned long timeout);
int gaspi_proc_term(unsigned long timeout);
int gaspi_barrier(unsigned char group, unsigned long timeout);
int gaspi_allreduce(const void *send, void *receive, unsigned count, int operation, int type,
                    unsigned char group, unsigned long timeout);
static int start(void) { return gaspi_proc_init(BLOCK); }
static int stop(void) { return gaspi_proc_term(BLOCK); }
static inline int barrier(void) { return gaspi_barrier(GROUP_ALL, BLOCK); }
static inline int allreduce(const double *send, double *receive, unsigned count) {
  return gaspi_allreduce(send, receive, count, OP_SUM, TYPE_DOUBLE, GROUP_ALL, BLOCK);
}
#else
#include <mpi.h>
static int start(void) { return MPI_Init(NULL, NULL); }
static int stop(void) { return MPI_Finalize(); }
static inline int barrier(void) { return MPI_Barrier(MPI_COMM_WORLD); }
static inline int allreduce(const double *send, double *receive, unsigned count) {
  return MPI_Allreduce(send, receive, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}
#endif

enum { STOP = 0, BARRIER = 1, ALLREDUCE = 2, BATCHES_MAX = 64, COUNT_MAX = 65536 };
/* Nobody waits longer for a burst: a rank whose driver is gone does not spin for ever. */
enum { LIMIT_SECONDS = 120 };

struct command {
  uint32_t what, count, calls, batches;
};

struct answer {
  uint64_t wrong;
  double us[BATCHES_MAX];
};

static double send_buffer[COUNT_MAX] __attribute__((aligned(64)));
static double receive_buffer[COUNT_MAX] __attribute__((aligned(64)));

static void fail(const char *what) {
  fprintf(stderr, "burst: %s\n", what);
  exit(1);
}

/* What the launchers call a rank, known before the library starts. */
static unsigned number(const char *kind) {
  static const char *const ranks[] = {"GASPI_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL};
  static const char *const sizes[] = {"GASPI_NRANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
  const char *const *name = strcmp(kind, "rank") == 0 ? ranks : sizes;
  for (; *name != NULL; name++) {
    const char *text = getenv(*name);
    if (text != NULL) return (unsigned)strtoul(text, NULL, 10);
  }
  fail("the launcher does not say which rank this is");
  return 0;
}

static void bind_to(const char *cores, unsigned rank) {
  unsigned count = 1, core = 0, n;
  const char *at;
  cpu_set_t set;
  for (at = cores; *at != '\0'; at++) count += *at == ',';
  for (at = cores, n = rank % count; n > 0; n--) at = strchr(at, ',') + 1;
  core = (unsigned)strtoul(at, NULL, 10);
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("cannot bind to a core");
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

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

/* Small integers: every sum of them is exact, in whatever order. */
static inline void rewrite(unsigned count, unsigned rank, unsigned call) {
  double first = (double)(rank + (call & 1023));
  for (unsigned i = 0; i < count; i++) send_buffer[i] = first + (double)i;
}

static uint64_t wrong_after(unsigned count, unsigned ranks, unsigned call) {
  uint64_t wrong = 0;
  for (unsigned i = 0; i < count; i++) {
    double each = (double)(call & 1023) + (double)i;
    double expected = (double)ranks * each + (double)ranks * (double)(ranks - 1) / 2;
    wrong += receive_buffer[i] != expected;
  }
  return wrong;
}

static void batch(const struct command *command, unsigned rank, unsigned calls) {
  for (unsigned call = 0; call < calls; call++) {
    int failed;
    if (command->what == BARRIER) {
      failed = barrier();
    } else {
      rewrite(command->count, rank, call);
      failed = allreduce(send_buffer, receive_buffer, command->count);
    }
    if (failed) fail("a call failed");
  }
}

/* Every result is looked at, outside of the time. */
static uint64_t check(const struct command *command, unsigned rank, unsigned ranks, unsigned calls) {
  uint64_t wrong = 0;
  if (command->what != ALLREDUCE) return 0;
  for (unsigned call = 0; call < calls; call++) {
    rewrite(command->count, rank, call);
    memset(receive_buffer, 0xff, command->count * sizeof *receive_buffer);
    if (allreduce(send_buffer, receive_buffer, command->count)) fail("a call failed");
    wrong += wrong_after(command->count, ranks, call);
  }
  return wrong;
}

static void burst(int fd, const struct command *command, unsigned rank, unsigned ranks) {
  struct answer answer = {0};
  unsigned few = command->calls < 16 ? command->calls : 16;
  if (command->batches > BATCHES_MAX || command->count > COUNT_MAX) fail("the command is too large");
  answer.wrong = check(command, rank, ranks, few);
  /* What the bursts of others left in caches is gone after this. */
  batch(command, rank, few);
  for (unsigned n = 0; n < command->batches; n++) {
    double begin;
    if (barrier()) fail("a call failed");
    begin = now_us();
    batch(command, rank, command->calls);
    answer.us[n] = now_us() - begin;
    if (command->what == ALLREDUCE && command->calls > 0) {
      answer.wrong += wrong_after(command->count, ranks, command->calls - 1);
    }
  }
  move(fd, &answer, sizeof answer, 1);
}

int main(int argc, char **argv) {
  struct command command;
  uint32_t hello[2];
  int fd;
  if (argc != 3) fail("usage: burst SOCKET CORES");
  hello[0] = number("rank");
  hello[1] = number("size");
  bind_to(argv[2], hello[0]);
  alarm(LIMIT_SECONDS);
  if (start() != 0) fail("the library does not start");
  fd = connect_to(argv[1]);
  move(fd, hello, sizeof hello, 1);
  for (;;) {
    alarm(0);
    move(fd, &command, sizeof command, 0);
    alarm(LIMIT_SECONDS);
    if (command.what == STOP) break;
    burst(fd, &command, hello[0], hello[1]);
  }
  if (stop() != 0) fail("the library does not stop");
  return 0;
}
