/* A libpmix whose server does not answer PMIx_Init before there is a file that PMIX_STUB_ANSWERS
   names: a job of one rank. Only what the library calls. */

#define _POSIX_C_SOURCE 200809L

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  char nspace[256];
  uint32_t rank;
} pmix_proc_t;

typedef struct {
  uint16_t type;
  union {
    uint32_t number;
    uint64_t words[3];
  } data;
} pmix_value_t;

enum { PMIX_UINT32 = 14 };

int PMIx_Init(pmix_proc_t *proc, void *info, size_t count) {
  const char *file = getenv("PMIX_STUB_ANSWERS");
  const struct timespec pause = {0, 1000000};
  (void)info;
  (void)count;
  while (file == NULL || access(file, F_OK) != 0) {
    nanosleep(&pause, NULL);
  }
  snprintf(proc->nspace, sizeof proc->nspace, "stub-%ld", (long)getpid());
  proc->rank = 0;
  return 0;
}

int PMIx_Get(const pmix_proc_t *proc, const char *key, const void *info, size_t count,
             pmix_value_t **value) {
  (void)proc;
  (void)info;
  (void)count;
  *value = calloc(1, sizeof **value);
  (*value)->type = PMIX_UINT32;
  (*value)->data.number = strcmp(key, "pmix.lrank") == 0 ? 0 : 1;
  return 0;
}

int PMIx_Finalize(const void *info, size_t count) {
  (void)info;
  (void)count;
  return 0;
}

int PMIx_Put(uint8_t scope, const char *key, pmix_value_t *value) {
  (void)scope;
  (void)key;
  (void)value;
  return 0;
}

int PMIx_Commit(void) {
  return 0;
}

int PMIx_Fence(const pmix_proc_t *ranks, size_t count, const void *info, size_t infos) {
  (void)ranks;
  (void)count;
  (void)info;
  (void)infos;
  return 0;
}

const char *PMIx_Error_string(int status) {
  (void)status;
  return "stub";
}
