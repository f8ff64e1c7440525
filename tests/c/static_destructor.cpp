/* ranks: 1 2 5 */
/* language: c++ */
/*
 * The library is used by constructors before main and by destructors after it.
 */
#include "check.h"

namespace {

struct Session {
  Session() {
    job_start();
    (void)segment_on_all(0, 64);
  }
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  ~Session() {
    gaspi_notification_t value;

    CHECK_OK(gaspi_notify(0, rank_after(1), 3, my_rank + 1u, 0, LIMIT));
    value = take(0, 3);
    CHECK(value == rank_before(1) + 1u);
    CHECK_OK(gaspi_wait(0, LIMIT));
    job_end();
  }
};

Session session;

/* GASPI_BLOCK and GASPI_TEST have a type and an address, so overloads and references work. */
int kind(gaspi_timeout_t) { return 1; }
int kind(int) { return 2; }

}  // namespace

int main() {
  const gaspi_timeout_t &block = GASPI_BLOCK;

  CHECK(kind(GASPI_BLOCK) == 1 && kind(GASPI_TEST) == 1 && kind(0) == 2);
  CHECK(block == 0xffffffffffffffffUL && &GASPI_TEST != nullptr);
  sync_all();
  return 0;
}
