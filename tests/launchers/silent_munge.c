/* A libmunge whose daemon is stopped: nothing that is asked is answered. */

#define _POSIX_C_SOURCE 200809L

#include <stddef.h>
#include <unistd.h>

void *munge_ctx_create(void) {
  /* Any place: nothing looks at it. */
  static char context;
  return &context;
}

void munge_ctx_destroy(void *context) { (void)context; }

int munge_ctx_set(void *context, int option, ...) {
  (void)context;
  (void)option;
  return 0;
}

static int wait_for_ever(void) {
  for (;;) {
    pause();
  }
  return 1;
}

int munge_encode(char **credential, void *context, const void *data, int length) {
  (void)credential;
  (void)context;
  (void)data;
  (void)length;
  return wait_for_ever();
}

int munge_decode(const char *credential, void *context, void **data, int *length, unsigned *uid,
                 unsigned *gid) {
  (void)credential;
  (void)context;
  (void)data;
  (void)length;
  (void)uid;
  (void)gid;
  return wait_for_ever();
}

const char *munge_strerror(int status) {
  (void)status;
  return NULL;
}
