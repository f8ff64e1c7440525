/* ranks: 1 2 3 */
/* language: c++ */
/*
 * Fused buffers as three kinds of programs use them: a framework whose operators submit, and hand
 * results out as tensors that release them when they die; one whose gradients lie in the fused
 * buffer and whose futures complete when a bucket ends; an event loop that polls a descriptor.
 */
#include "check.h"

#include <poll.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr unsigned TENSORS = 40, STEPS = 12;

void ok(gaspi_return_t code) {
  if (code == GASPI_SUCCESS) return;
  char reason[1024] = "";
  gaspi_error_detail(reason, sizeof reason);
  throw std::runtime_error(reason);
}

std::uint64_t count_of(unsigned tensor) { return 1 + tensor * 397 % 4000; }

float value(unsigned rank, unsigned tensor, unsigned step, std::uint64_t at) {
  return static_cast<float>((rank * 5 + tensor * 3 + step + at) % 17);
}

void fill(float *to, unsigned tensor, unsigned step) {
  for (std::uint64_t at = 0; at < count_of(tensor); at++) to[at] = value(my_rank, tensor, step, at);
}

void check(const float *found, unsigned tensor, unsigned step) {
  for (std::uint64_t at = 0; at < count_of(tensor); at++) {
    float expected = 0;
    for (unsigned rank = 0; rank < ranks; rank++) expected += value(rank, tensor, step, at);
    CHECK(found[at] == expected);
  }
}

/* A fused buffer of all tensors, with an order of its own on each rank. */
class Fused {
 public:
  Fused() {
    std::vector<gaspi_fusion_tensor_t> tensors;
    for (unsigned at = 0; at < TENSORS; at++) tensors.push_back({count_of(at), GASPI_COLL_TYPE_F32, 0});
    gaspi_fusion_options_t options = GASPI_FUSION_OPTIONS_INIT;
    options.order = GASPI_FUSION_REVERSE;
    ok(gaspi_fusion_create(tensors.data(), tensors.size(), GASPI_GROUP_ALL, &options, &fusion_,
                           LIMIT));
    random_.seed(my_rank + 1);
  }
  ~Fused() { CHECK_OK(gaspi_fusion_free(fusion_)); }

  gaspi_fusion_t get() const { return fusion_; }

  std::vector<unsigned> order() {
    std::vector<unsigned> all;
    for (unsigned at = 0; at < TENSORS; at++) all.push_back(at);
    for (unsigned last = TENSORS - 1; last > 0; last--) std::swap(all[last], all[random_() % (last + 1)]);
    return all;
  }

 private:
  gaspi_fusion_t fusion_ = 0;
  std::minstd_rand random_;
};

/* A tensor that a framework hands to its next operator: lent, released when nobody needs it. */
std::shared_ptr<const float> lent(gaspi_fusion_t fusion, unsigned tensor) {
  const void *sum = nullptr;
  ok(gaspi_fusion_result(fusion, tensor, &sum, LIMIT));
  return {static_cast<const float *>(sum),
          [=](const float *of) { CHECK_OK(gaspi_fusion_release(fusion, tensor, of)); }};
}

void operators_of_a_framework() {
  Fused fused;
  std::vector<std::shared_ptr<const float>> kept;
  for (unsigned step = 0; step < STEPS; step++) {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<unsigned> submitted;
    std::thread waiting([&] {
      for (unsigned seen = 0; seen < TENSORS; seen++) {
        unsigned tensor;
        {
          std::unique_lock<std::mutex> lock(mutex);
          changed.wait(lock, [&] { return !submitted.empty(); });
          tensor = submitted.front();
          submitted.pop_front();
        }
        std::shared_ptr<const float> sum = lent(fused.get(), tensor);
        check(sum.get(), tensor, step);
        /* The optimizer keeps some until a later step. */
        if (tensor % 3 == 0) kept.push_back(sum);
      }
    });
    for (unsigned tensor : fused.order()) {
      std::vector<float> gradient(count_of(tensor));
      fill(gradient.data(), tensor, step);
      ok(gaspi_fusion_submit(fused.get(), tensor, gradient.data(), 1.0));
      std::lock_guard<std::mutex> lock(mutex);
      submitted.push_back(tensor);
      changed.notify_one();
    }
    waiting.join();
    if (step % 3 == 2) kept.clear();
  }
  kept.clear();
}

/* Futures of the buckets of a step. */
struct Futures {
  std::mutex mutex;
  std::vector<std::promise<void>> buckets;

  static void ended(gaspi_fusion_t, gaspi_size_t bucket, gaspi_return_t outcome, void *state) {
    Futures *all = static_cast<Futures *>(state);
    std::lock_guard<std::mutex> lock(all->mutex);
    CHECK(outcome == GASPI_SUCCESS);
    all->buckets[bucket].set_value();
  }
};

void hooks_over_gradients_in_place() {
  Fused fused;
  gaspi_size_t buckets = 0;
  ok(gaspi_fusion_buckets(fused.get(), &buckets));
  std::vector<float *> gradients;
  for (unsigned tensor = 0; tensor < TENSORS; tensor++) {
    void *place = nullptr;
    ok(gaspi_fusion_tensor_ptr(fused.get(), tensor, &place));
    gradients.push_back(static_cast<float *>(place));
  }
  Futures futures;
  ok(gaspi_fusion_on_end(fused.get(), Futures::ended, &futures));
  for (unsigned step = 0; step < STEPS; step++) {
    std::vector<std::future<void>> pending;
    {
      std::lock_guard<std::mutex> lock(futures.mutex);
      futures.buckets = std::vector<std::promise<void>>(buckets);
      for (auto &bucket : futures.buckets) pending.push_back(bucket.get_future());
    }
    for (unsigned tensor : fused.order()) {
      fill(gradients[tensor], tensor, step);
      ok(gaspi_fusion_submit(fused.get(), tensor, gradients[tensor], 1.0));
    }
    for (auto &future : pending) future.get();
    for (unsigned tensor = 0; tensor < TENSORS; tensor++) check(gradients[tensor], tensor, step);
  }
  ok(gaspi_fusion_on_end(fused.get(), nullptr, nullptr));
}

void event_loop() {
  Fused fused;
  gaspi_size_t buckets = 0;
  int fd = -1;
  ok(gaspi_fusion_buckets(fused.get(), &buckets));
  ok(gaspi_fusion_fd(fused.get(), &fd));
  for (unsigned step = 0; step < STEPS; step++) {
    for (unsigned tensor : fused.order()) {
      std::vector<float> gradient(count_of(tensor));
      fill(gradient.data(), tensor, step);
      ok(gaspi_fusion_submit(fused.get(), tensor, gradient.data(), 1.0));
    }
    for (gaspi_size_t ended = 0; ended < buckets; ended++) {
      pollfd entry = {fd, POLLIN, 0};
      CHECK(poll(&entry, 1, static_cast<int>(LIMIT)) == 1);
      gaspi_size_t bucket = 0;
      ok(gaspi_fusion_next(fused.get(), &bucket, GASPI_TEST));
      for (unsigned tensor = 0; tensor < TENSORS; tensor++) {
        gaspi_size_t of_tensor = 0;
        int done = 0;
        ok(gaspi_fusion_bucket(fused.get(), tensor, &of_tensor));
        if (of_tensor != bucket) continue;
        std::vector<float> sum(count_of(tensor));
        ok(gaspi_fusion_test(fused.get(), tensor, sum.data(), &done));
        CHECK(done == 1);
        check(sum.data(), tensor, step);
      }
    }
  }
}

}  // namespace

int main() {
  job_start();
  try {
    operators_of_a_framework();
    hooks_over_gradients_in_place();
    event_loop();
  } catch (const std::exception &error) {
    std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(my_rank), error.what());
    return 1;
  }
  job_end();
  return 0;
}
