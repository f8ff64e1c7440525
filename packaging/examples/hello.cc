// Each rank greets the next one, in C++.
#include <GASPI.h>
#include <gaspi_collectives.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>

namespace {

constexpr gaspi_offset_t kGreeting = 2048;

void must(gaspi_return_t code) {
  if (code == GASPI_SUCCESS) return;
  char reason[512];
  gaspi_error_detail(reason, sizeof reason);
  throw std::runtime_error(reason);
}

// A job lasts as long as this object.
class Job {
 public:
  Job() { must(gaspi_proc_init(GASPI_BLOCK)); }
  ~Job() { gaspi_proc_term(GASPI_BLOCK); }
  Job(const Job &) = delete;
  Job &operator=(const Job &) = delete;

  gaspi_rank_t rank() const {
    gaspi_rank_t rank;
    must(gaspi_proc_rank(&rank));
    return rank;
  }

  gaspi_rank_t size() const {
    gaspi_rank_t size;
    must(gaspi_proc_num(&size));
    return size;
  }
};

std::string greet(const Job &job) {
  must(gaspi_segment_create(0, 4096, GASPI_GROUP_ALL, GASPI_BLOCK, GASPI_MEM_INITIALIZED));
  gaspi_pointer_t memory;
  must(gaspi_segment_ptr(0, &memory));
  char *text = static_cast<char *>(memory);
  std::snprintf(text, 64, "greetings from rank %d", job.rank());

  const gaspi_rank_t next = static_cast<gaspi_rank_t>((job.rank() + 1) % job.size());
  must(gaspi_write_notify(0, 0, next, 0, kGreeting, 64, 0, 1, 0, GASPI_BLOCK));

  gaspi_notification_id_t first;
  must(gaspi_notify_waitsome(0, 0, 1, &first, GASPI_BLOCK));
  gaspi_notification_t value;
  must(gaspi_notify_reset(0, first, &value));
  must(gaspi_wait(0, GASPI_BLOCK));
  return text + kGreeting;
}

}  // namespace

int main() {
  try {
    const Job job;
    const std::string greeting = greet(job);
    const int before = (job.rank() + job.size() - 1) % job.size();
    std::cout << "rank " + std::to_string(job.rank()) + ": " + greeting + "\n";
    return greeting == "greetings from rank " + std::to_string(before) ? 0 : 1;
  } catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
