/* ranks: 1 2 5 */
/*
 * Environment: version, clocks, error texts, printing, affinity, limits by default.
 */
#define _GNU_SOURCE
#include "check.h"

#include <GPI2_VERSION.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/time.h>

#if GASPI_MAJOR_VERSION != 1 || GASPI_MINOR_VERSION != 6 || GASPI_REVISION != 0
#error "GPI2_VERSION.h does not give 1.6.0"
#endif

enum { LOGGER_PORT = 17825, LOGGER_BYTES = 1024 };

static const struct {
  int code;
  const char *text;
} texts[] = {
    {-2, "unknown"},
    {-1, "general error"},
    {0, "success"},
    {1, "timeout"},
    {2, "too many open files"},
    {3, "incorrect environment vars"},
    {4, "Invalid/In use internal port"},
    {5, "Invalid parameter in configuration (gaspi_config_t)"},
    {6, "Invalid function before initialization"},
    {7, "Invalid function after initialization"},
    {8, "NULL pointer reference"},
    {9, "Invalid segment size"},
    {10, "Invalid segment"},
    {11, "Invalid group"},
    {12, "Invalid rank"},
    {13, "Invalid queue"},
    {14, "Invalid local offset"},
    {15, "Invalid remote offset"},
    {16, "Invalid size for communication"},
    {17, "Invalid notification value (must be > 0)"},
    {18, "Invalid notification id"},
    {19, "Invalid number count"},
    {20, "Invalid size"},
    {21, "Too many segments"},
    {22, "Too many groups"},
    {23, "Queue is full"},
    {24, "Unaligned (8 bytes) offset"},
    {25, "Other collective is still active"},
    {26, "Device operation error"},
    {27, "SN operation failed"},
    {28, "Memory allocation failed"},
    {29, "unknown"},
    {1000, "unknown"},
};

static void error_texts(void) {
  for (size_t at = 0; at < sizeof texts / sizeof *texts; at++) {
    gaspi_string_t copy = NULL;
    CHECK(strcmp(gaspi_error_str((gaspi_return_t)texts[at].code), texts[at].text) == 0);
    CHECK_OK(gaspi_print_error((gaspi_return_t)texts[at].code, &copy));
    CHECK(copy != NULL && strcmp(copy, texts[at].text) == 0);
    free(copy);
  }
  CHECK_ERR(gaspi_print_error(GASPI_ERROR, NULL), GASPI_ERR_NULLPTR);
}

static void error_detail(void) {
  char text[8];

  CHECK_RC(gaspi_error_detail(NULL, 8), GASPI_ERR_NULLPTR);
  CHECK_RC(gaspi_error_detail(text, 0), GASPI_ERR_INV_SIZE);
  CHECK_RC(gaspi_version(NULL), GASPI_ERR_NULLPTR);
  memset(text, 'x', sizeof text);
  CHECK_OK(gaspi_error_detail(text, sizeof text - 1));
  CHECK(strlen(text) == sizeof text - 2);
  CHECK(text[sizeof text - 1] == 'x');
  CHECK_OK(gaspi_error_detail(text, 1));
  CHECK(text[0] == '\0');
}

static void version(void) {
  float number = 0;

  CHECK_OK(gaspi_version(&number));
  CHECK(number > 1.599f && number < 1.601f);
}

/* Before a job there is no logger: the text goes to standard output, its format read once. */
static void print_before_init(void) {
  FILE *file = tmpfile();
  char text[256] = "";
  int saved;

  CHECK(file != NULL);
  fflush(stdout);
  saved = dup(1);
  CHECK(saved >= 0 && dup2(fileno(file), 1) == 1);
  gaspi_printf("%s %d\n", "100%d %s", 42);
  fflush(stdout);
  CHECK(dup2(saved, 1) == 1);
  close(saved);
  rewind(file);
  CHECK(fread(text, 1, sizeof text - 1, file) > 0);
  fclose(file);
  CHECK(strstr(text, "100%d %s 42\n") != NULL);
}

static void clocks(void) {
  gaspi_time_t early = -1;
  gaspi_time_t late = -1;
  gaspi_cycles_t first = 0;
  gaspi_cycles_t second = 0;
  gaspi_float mhz = 0;

  /* The ticks are read outside of the times: a process may lose its core between the two. */
  CHECK_OK(gaspi_time_ticks(&first));
  CHECK_OK(gaspi_time_get(&early));
  do {
    gaspi_delay();
    CHECK_OK(gaspi_time_get(&late));
    CHECK(late >= early);
  } while (late < early + 5);
  CHECK_OK(gaspi_time_ticks(&second));
  CHECK(second > first);
  CHECK_OK(gaspi_cpu_frequency(&mhz));
  CHECK(mhz > 1 && mhz < 100000);
  /* At least 5 ms of ticks passed at that frequency; other processes may have run meanwhile. */
  CHECK((double)(second - first) > 4.0 * 1000.0 * mhz);
  CHECK(early >= 0 && early < 1000.0f * WATCHDOG_S);
}

static void defaults(void) {
  gaspi_number_t number = 0;
  gaspi_size_t size = 0;
  const char *const transport = getenv("GASPI_TRANSPORT");
  gaspi_network_t network = GASPI_OFI;
  gaspi_config_t config;

  CHECK_OK(gaspi_group_max(&number));
  CHECK(number == 32);
  CHECK_OK(gaspi_segment_max(&number));
  CHECK(number == 255);
  CHECK_OK(gaspi_queue_num(&number));
  CHECK(number == 8);
  CHECK_OK(gaspi_queue_size_max(&number));
  CHECK(number == 1024);
  CHECK_OK(gaspi_notification_num(&number));
  CHECK(number == 65536);
  CHECK_OK(gaspi_notifications_space_size(&number));
  CHECK(number >= 65536 * 4);
  CHECK_OK(gaspi_transfer_size_max(&size));
  CHECK(size == 1ul << 30);
  CHECK_OK(gaspi_transfer_size_min(&size));
  CHECK(size <= 1);
  CHECK_OK(gaspi_passive_transfer_size_max(&size));
  CHECK(size == 65535);
  CHECK_OK(gaspi_passive_transfer_size_min(&size));
  CHECK(size <= 1);
  CHECK_OK(gaspi_allreduce_elem_max(&number));
  CHECK(number == 255);
  CHECK_OK(gaspi_allreduce_buf_size(&size));
  CHECK(size == 2040);
  CHECK_OK(gaspi_rw_list_elem_max(&number));
  CHECK(number == 255);
  CHECK_OK(gaspi_build_infrastructure(&number));
  CHECK(number == GASPI_TOPOLOGY_STATIC);
  CHECK_OK(gaspi_network_type(&network));
  if (transport != NULL && strcmp(transport, "verbs") == 0 && ranks > 1) {
    CHECK(network == GASPI_IB || network == GASPI_ROCE);
  } else {
    CHECK(network == GASPI_ETHERNET || network == GASPI_IB || network == GASPI_ROCE);
  }
  CHECK_OK(gaspi_config_get(&config));
  CHECK(config.network == network && config.dev_config.network_type == network);
  CHECK(config.user_net == 0);
}

static void affinity(void) {
  cpu_set_t before;
  cpu_set_t after;
  gaspi_uchar node = 255;
  gaspi_return_t known;

  CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
  known = gaspi_numa_socket(&node);
  CHECK(known == GASPI_SUCCESS || known == GASPI_ERROR);
  CHECK_RC(gaspi_set_socket_affinity(255), GASPI_ERROR);
  CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
  if (gaspi_set_socket_affinity(0) == GASPI_SUCCESS) {
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    CHECK(CPU_COUNT(&after) >= 1);
  }
  CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
  gaspi_print_affinity_mask();
}

/* A logger of our own; -1 if a real one has the port. */
static int open_logger(void) {
  const int receiver = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int both = 0;
  struct timeval patience = {10, 0};
  struct sockaddr_in6 any;

  if (receiver < 0) {
    return -1;
  }
  memset(&any, 0, sizeof any);
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_any;
  any.sin6_port = htons(LOGGER_PORT);
  (void)setsockopt(receiver, IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
  CHECK(setsockopt(receiver, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
  if (bind(receiver, (struct sockaddr *)&any, sizeof any) != 0) {
    close(receiver);
    return -1;
  }
  return receiver;
}

/* Receives one line and takes its prefix off: "[host:rank:local_rank] ". */
static void receive_line(int receiver, char *text, unsigned *rank, unsigned *local_rank) {
  char packet[LOGGER_BYTES + 1];
  char host[256] = "";
  char again[512];
  int used = 0;
  const ssize_t bytes = recv(receiver, packet, sizeof packet, 0);

  CHECK(bytes > 0 && bytes <= LOGGER_BYTES);
  packet[bytes] = '\0';
  CHECK(sscanf(packet, "[%255[^:]:%u:%u] %n", host, rank, local_rank, &used) == 3 && used > 0);
  snprintf(again, sizeof again, "[%s:%4u:%u] ", host, *rank, *local_rank);
  CHECK(strncmp(packet, again, strlen(again)) == 0);
  strcpy(text, packet + strlen(again));
}

static void logger(void) {
  gaspi_rank_t local_num = 0;
  gaspi_rank_t local_rank = 0;
  int receiver = -1;
  static char lengthy[5000];

  CHECK_OK(gaspi_proc_local_num(&local_num));
  CHECK_OK(gaspi_proc_local_rank(&local_rank));
  if (my_rank == 0) {
    receiver = open_logger();
    if (receiver < 0) {
      printf("environment: port %d is in use: what gaspi_printf sends was not checked\n",
             LOGGER_PORT);
    }
  }
  sync_all();
  gaspi_printf("rank %d says %s\n", (int)my_rank, "100%d");
  if (receiver >= 0) {
    for (gaspi_rank_t left = ranks; left > 0; left--) {
      char text[LOGGER_BYTES + 1];
      char expected[64];
      unsigned rank = 0;
      unsigned local = 0;
      receive_line(receiver, text, &rank, &local);
      CHECK(rank < ranks && local < local_num);
      CHECK(rank != my_rank || local == local_rank);
      snprintf(expected, sizeof expected, "rank %u says 100%%d\n", rank);
      CHECK(strcmp(text, expected) == 0);
    }
  }
  sync_all();
  if (my_rank == ranks - 1) {
    memset(lengthy, 'z', sizeof lengthy - 1);
    gaspi_printf_to(0, "%s", lengthy);
  }
  if (receiver >= 0) {
    char text[LOGGER_BYTES + 1];
    unsigned rank = 0;
    unsigned local = 0;
    receive_line(receiver, text, &rank, &local);
    CHECK(rank == ranks - 1u);
    CHECK(strlen(text) > 500 && strspn(text, "z\n") == strlen(text));
    close(receiver);
  }
  sync_all();
}

int main(void) {
  version();
  error_texts();
  error_detail();
  print_before_init();
  job_start();
  version();
  clocks();
  defaults();
  logger();
  affinity();
  error_texts();
  job_end();
  error_texts();
  version();
  return 0;
}
