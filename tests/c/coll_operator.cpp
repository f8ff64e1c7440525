/* ranks: 1 2 3 4 */
/* language: c++ */
/*
 * What the operator of a training framework does: a prepared all-reduce for each tensor, started by
 * whichever thread has a gradient ready and ended by another one, in an order that chance gives
 * each rank; tensors in segments and in memory of the program, many steps, every result checked.
 */
#include "check.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr unsigned TENSORS = 32, STEPS = 25, STARTERS = 3, FINISHERS = 2;
constexpr gaspi_segment_id_t SEGMENT = 7;

/* Turns a return code into an exception, as C++ programs like it. */
void ok(gaspi_return_t code) {
  if (code == GASPI_SUCCESS) return;
  char reason[1024] = "";
  gaspi_error_detail(reason, sizeof reason);
  throw std::runtime_error(reason);
}

/* The mean of a tensor over all ranks: prepared once, started again and again. */
class AllReduce {
 public:
  AllReduce(const float *gradient, float *mean, std::uint64_t count, bool in_background) {
    gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;
    options.background = in_background ? 1 : 0;
    ok(gaspi_coll_allreduce_init(gradient, mean, count, GASPI_COLL_TYPE_F32, GASPI_COLL_OP_AVERAGE,
                                 GASPI_GROUP_ALL, &options, &request_, LIMIT));
  }
  ~AllReduce() { CHECK_OK(gaspi_coll_free(request_)); }
  AllReduce(const AllReduce &) = delete;
  AllReduce &operator=(const AllReduce &) = delete;

  void start() { ok(gaspi_coll_start(request_)); }
  void wait() { ok(gaspi_coll_wait(request_, LIMIT)); }
  bool test() {
    int done = 0;
    ok(gaspi_coll_test(request_, &done));
    return done != 0;
  }

 private:
  gaspi_coll_request_t request_ = GASPI_COLL_REQUEST_NULL;
};

/* Small numbers, which every order of summing gives exactly. */
float gradient_of(unsigned rank, unsigned tensor, unsigned step, std::uint64_t at) {
  return static_cast<float>((rank * 131 + tensor * 31 + step * 7 + at) % 64);
}

/* Gradient and mean, in the segment or in memory of the program. */
struct Tensor {
  std::uint64_t count = 0;
  std::vector<float> own;
  float *gradient = nullptr;
  float *mean = nullptr;
  std::unique_ptr<AllReduce> reduction;

  void fill(unsigned number, unsigned step) {
    for (std::uint64_t at = 0; at < count; at++) {
      gradient[at] = gradient_of(my_rank, number, step, at);
      if (mean != gradient) mean[at] = -1;
    }
  }

  void check(unsigned number, unsigned step) const {
    for (std::uint64_t at = 0; at < count; at++) {
      float sum = 0;
      for (unsigned rank = 0; rank < ranks; rank++) sum += gradient_of(rank, number, step, at);
      CHECK(mean[at] == sum / static_cast<float>(ranks));
    }
  }
};

/* Tensors under way, handed from those who start to those who finish. */
class UnderWay {
 public:
  void push(unsigned tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    tensors_.push_back(tensor);
    changed_.notify_one();
  }

  /* Any of them, by chance; false when the step is over. */
  bool take(std::mt19937 &chance, unsigned &tensor) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !tensors_.empty() || taken_ == TENSORS; });
    if (tensors_.empty()) return false;
    const auto at = tensors_.begin() + static_cast<std::ptrdiff_t>(chance() % tensors_.size());
    tensor = *at;
    tensors_.erase(at);
    if (++taken_ == TENSORS) changed_.notify_all();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<unsigned> tensors_;
  unsigned taken_ = 0;
};

void finish(UnderWay &under_way, std::vector<Tensor> &tensors, unsigned seed, unsigned step) {
  std::mt19937 chance(seed);
  unsigned number = 0;
  while (under_way.take(chance, number)) {
    Tensor &tensor = tensors[number];
    if (chance() % 2 == 0) {
      while (!tensor.reduction->test()) {
      }
    } else {
      tensor.reduction->wait();
    }
    tensor.check(number, step);
  }
}

/* All gradients of a step, in an order of this rank's own. */
void step(std::vector<Tensor> &tensors, std::mt19937 &chance, unsigned number) {
  std::vector<unsigned> order(TENSORS);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), chance);
  UnderWay under_way;
  std::atomic<unsigned> next(0);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < STARTERS; i++) {
    threads.emplace_back([&] {
      for (unsigned at = next++; at < TENSORS; at = next++) {
        tensors[order[at]].fill(order[at], number);
        tensors[order[at]].reduction->start();
        under_way.push(order[at]);
      }
    });
  }
  for (unsigned i = 0; i < FINISHERS; i++) {
    const unsigned seed = static_cast<unsigned>(chance());
    threads.emplace_back([&, seed] { finish(under_way, tensors, seed, number); });
  }
  for (std::thread &thread : threads) thread.join();
}

/* Tensors of lengths that the same seed gives on all ranks. */
std::vector<Tensor> make_tensors() {
  std::mt19937 shape(20260101);
  std::vector<Tensor> tensors(TENSORS);
  std::uint64_t in_segment = 0;
  for (unsigned i = 0; i < TENSORS; i++) {
    const std::uint64_t limit = i % 8 == 0 ? 60000 : 700;
    tensors[i].count = 1 + shape() % limit;
    if (i % 2 == 0) in_segment += 2 * tensors[i].count;
  }
  float *room = reinterpret_cast<float *>(segment_on_all(SEGMENT, in_segment * sizeof *room));
  for (unsigned i = 0; i < TENSORS; i++) {
    Tensor &tensor = tensors[i];
    if (i % 2 == 0) {
      tensor.gradient = room;
      room += 2 * tensor.count;
    } else {
      tensor.own.resize(2 * tensor.count);
      tensor.gradient = tensor.own.data();
    }
    tensor.mean = i % 3 == 0 ? tensor.gradient : tensor.gradient + tensor.count;
    tensor.reduction.reset(
        new AllReduce(tensor.gradient, tensor.mean, tensor.count, i % 4 < 2));
  }
  return tensors;
}

}  // namespace

int main() {
  job_start();
  try {
    std::mt19937 chance(my_rank + 1u);
    std::vector<Tensor> tensors = make_tensors();
    for (unsigned i = 0; i < STEPS; i++) step(tensors, chance, i);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "coll_operator.cpp: rank %d: %s\n", static_cast<int>(my_rank),
                 error.what());
    _exit(1);
  }
  job_end();
  return 0;
}
