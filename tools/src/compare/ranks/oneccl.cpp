/* The part for oneCCL, on the CPU: blocking calls are a start and a wait. */
#include "library.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "oneapi/ccl.hpp"

namespace {

constexpr size_t PAGE = 4096;

std::shared_ptr<ccl::kvs> store;
std::unique_ptr<ccl::communicator> world;

/* Rank 0 makes the store where all meet, and tells the others where it is. */
void meet_at_store(unsigned rank, struct page *page) {
  ccl::kvs::address_type address;
  static_assert(sizeof address <= sizeof page->bytes, "an address fits into the page");
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
    std::memcpy(page->bytes, &address, sizeof address);
    __atomic_store_n(&page->set, 1u, __ATOMIC_RELEASE);
    return;
  }
  while (__atomic_load_n(&page->set, __ATOMIC_ACQUIRE) == 0) sched_yield();
  std::memcpy(&address, page->bytes, sizeof address);
  store = ccl::create_kvs(address);
}

template <typename Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "oneCCL: %s\n", error.what());
    return 1;
  }
}

void run(const struct shape *shape, const float *send, float *receive) {
  constexpr auto type = ccl::datatype::float32;
  constexpr auto sum = ccl::reduction::sum;
  const float *from = shape->in_place ? receive : send;
  switch (shape->what) {
    case BARRIER:
      ccl::barrier(*world).wait();
      return;
    case ALLREDUCE:
      ccl::allreduce(from, receive, shape->count, type, sum, *world).wait();
      return;
    case REDUCE:
      ccl::reduce(from, receive, shape->count, type, sum, 0, *world).wait();
      return;
    case BROADCAST:
      ccl::broadcast(receive, shape->count, type, 0, *world).wait();
      return;
    case REDUCE_SCATTER:
      ccl::reduce_scatter(send, receive, shape->block, type, sum, *world).wait();
      return;
    case ALLGATHER: {
      const float *own = shape->in_place ? receive + shape->rank * shape->block : send;
      std::vector<size_t> blocks(shape->ranks, shape->block);
      ccl::allgatherv(own, shape->block, receive, blocks, type, *world).wait();
      return;
    }
    case ALLTOALL:
      ccl::alltoall(send, receive, shape->block, type, *world).wait();
      return;
    default:
      throw std::runtime_error("it has no such operation");
  }
}

}  // namespace

extern "C" {

int library_start(unsigned rank, unsigned ranks, struct page *page) {
  return guarded([&] {
    ccl::init();
    meet_at_store(rank, page);
    world = std::make_unique<ccl::communicator>(
        ccl::create_communicator(static_cast<int>(ranks), static_cast<int>(rank), store));
  });
}

int library_stop(void) {
  return guarded([] {
    world.reset();
    store.reset();
  });
}

int library_buffers(enum memory, size_t bytes, float **send, float **receive) {
  const size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
  std::free(*send);
  std::free(*receive);
  *send = static_cast<float *>(std::aligned_alloc(PAGE, whole));
  *receive = static_cast<float *>(std::aligned_alloc(PAGE, whole));
  return *send == nullptr || *receive == nullptr;
}

int library_offers(const struct shape *shape) {
  return shape->what != GATHER && shape->what != SCATTER;
}

int library_call(const struct shape *shape, const float *send, float *receive) {
  return guarded([&] { run(shape, send, receive); });
}

int library_barrier(void) {
  return guarded([] { ccl::barrier(*world).wait(); });
}

/* The library has threads for it. */
void library_progress(void) {}
}
