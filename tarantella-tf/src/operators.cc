// operators.cc: the operators for TensorFlow that sum gradients over the ranks of a job.
//
// Start hands the gradients of a bucket to a fused buffer of libgaspi and returns at once; Finish
// waits for their sums and lends them to TensorFlow where they lie. Graphs name a fused buffer by
// the number of a slot, so a graph stays valid when a buffer is made anew on another group of
// ranks.
//
// Built without exceptions, RTTI and the C++ library, and against TensorFlow's C API only: one
// binary serves TensorFlow 2.10 to 2.21.
//
// The operators are not declared stateful: tf.function would chain them in program order, and a
// Start would wait for a Finish that needs it. What keeps them from being folded are inputs from
// the data.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "GASPI.h"
#include "gaspi_collectives.h"
#include "kernel.h"

namespace {

constexpr gaspi_timeout_t kSliceMs = 100;
constexpr uint64_t kLookoutAfterMs = 1000;
constexpr int kMaxDims = 16;
constexpr int kControlValues = 4;
constexpr int kControlElements = 1 + 2 * kControlValues;

struct Shape {
  int64_t dims[kMaxDims];
  int num_dims;
  uint64_t count;
};

// A fused buffer that is freed when its slot has let go of it and no tensor of TensorFlow views it.
struct Buffer {
  gaspi_fusion_t fusion;
  Shape *shapes;
  int64_t num;
  int64_t references;
};

struct Slot {
  Buffer *buffer;
  gaspi_group_t group;
  int wish;          // this rank wants to stop
  int stop;          // any rank wanted to stop in a step that has ended
  int64_t differs;   // number of the control value in which ranks differed, -1 for none
  int64_t last[kControlValues];  // the control values of this rank in its last step
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
Slot *slots = nullptr;
int64_t slots_num = 0;
int interrupted = 0;
uint64_t limit_ms = 0;
uint64_t warning_ms = 0;

struct Guard {
  Guard() { pthread_mutex_lock(&lock); }
  ~Guard() { pthread_mutex_unlock(&lock); }
};

void let_go(Buffer *buffer) {
  {
    Guard guard;
    if (--buffer->references > 0) return;
  }
  gaspi_fusion_free(buffer->fusion);
  free(buffer->shapes);
  free(buffer);
}

Buffer *hold(int64_t slot) {
  Guard guard;
  if (slot < 0 || slot >= slots_num || slots[slot].buffer == nullptr) return nullptr;
  slots[slot].buffer->references++;
  return slots[slot].buffer;
}

uint64_t now_ms() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000 + static_cast<uint64_t>(time.tv_nsec) / 1000000;
}

// ---- Errors of the library ----

void fail_by_library(TF_OpKernelContext *context, const char *what) {
  char reason[3072];
  gaspi_error_detail(reason, sizeof reason);
  // Not TF_UNAVAILABLE, which TensorFlow replaces in operators that it does not know to
  // communicate.
  fail(context, TF_ABORTED, "tarantella: %s: %s", what, reason);
}

void fail_without_buffer(TF_OpKernelContext *context) {
  fail(context, TF_FAILED_PRECONDITION,
       "tarantella: the buffer of these gradients does not exist any more; compile the model "
       "again");
}

// A wait in slices is too short for the library to tell of it. While this lives, its thread looks
// for buckets that do not end, as for programs that do not wait, and says which ranks are missing.
struct Lookout {
  gaspi_fusion_t fusion;
  bool looks = false;
  explicit Lookout(gaspi_fusion_t of) : fusion(of) {}
  void begin() {
    const auto nothing = [](gaspi_fusion_t, gaspi_size_t, gaspi_return_t, void *) {};
    if (fusion == 0 || looks) return;
    looks = gaspi_fusion_on_end(fusion, nothing, nullptr) == GASPI_SUCCESS;
  }
  ~Lookout() {
    if (looks) gaspi_fusion_on_end(fusion, nullptr, nullptr);
  }
};

// Waits for others in slices. Returns false, with the context failed, unless `attempt` succeeded.
// `fusion` is the buffer whose bucket is waited for, 0 for none.
template <typename Attempt>
bool wait_for(TF_OpKernelContext *context, const char *what, gaspi_fusion_t fusion,
              Attempt attempt) {
  Lookout lookout(fusion);
  const uint64_t limit = __atomic_load_n(&limit_ms, __ATOMIC_RELAXED);
  uint64_t warn_after = __atomic_load_n(&warning_ms, __ATOMIC_RELAXED);
  uint64_t begin = 0;
  for (;;) {
    const gaspi_return_t code = attempt(kSliceMs);
    if (code == GASPI_SUCCESS) return true;
    if (code != GASPI_TIMEOUT) {
      fail_by_library(context, what);
      return false;
    }
    if (__atomic_load_n(&interrupted, __ATOMIC_RELAXED) != 0) {
      fail(context, TF_CANCELLED, "tarantella: interrupted while waiting for other ranks");
      return false;
    }
    const uint64_t now = now_ms();
    if (begin == 0) begin = now;
    if (warn_after != 0 && now - begin >= kLookoutAfterMs) lookout.begin();
    if (warn_after != 0 && now - begin > warn_after) {
      fprintf(stderr,
              "[TNT_LIB] WARNING: %s for %llu s; kill -USR1 on the launcher (gaspi_run) shows "
              "which ranks are late\n",
              what, static_cast<unsigned long long>((now - begin) / 1000));
      warn_after *= 2;
    }
    if (limit != 0 && now - begin > limit) {
      fail(context, TF_DEADLINE_EXCEEDED,
           "tarantella: %s: other ranks did not answer for %llu s; raise TNT_TIMEOUT (seconds, 0: "
           "no limit) if a step may take as long",
           what, static_cast<unsigned long long>(limit / 1000));
      return false;
    }
  }
}

// ---- Attributes ----

struct Kernel {
  TF_DataType type;
  int64_t slot;
  int64_t *tensors;
  int32_t tensors_num;
};

enum Attributes { kType = 1, kTensors = 2 };

template <int attributes>
void *create(TF_OpKernelConstruction *construction) {
  Kernel *kernel = static_cast<Kernel *>(calloc(1, sizeof(Kernel)));
  Status status;
  TF_OpKernelConstruction_GetAttrInt64(construction, "slot", &kernel->slot, status.inner);
  if (status.ok() && (attributes & kType) != 0) {
    TF_OpKernelConstruction_GetAttrType(construction, "T", &kernel->type, status.inner);
  }
  if (status.ok() && (attributes & kTensors) != 0) {
    int32_t unused;
    TF_OpKernelConstruction_GetAttrSize(construction, "tensors", &kernel->tensors_num, &unused,
                                        status.inner);
    if (status.ok()) {
      const size_t num = static_cast<size_t>(kernel->tensors_num);
      kernel->tensors = static_cast<int64_t *>(calloc(num + 1, sizeof(int64_t)));
      TF_OpKernelConstruction_GetAttrInt64List(construction, "tensors", kernel->tensors,
                                               kernel->tensors_num, status.inner);
    }
  }
  if (!status.ok()) TF_OpKernelConstruction_Failure(construction, status.inner);
  return kernel;
}

void destroy(void *kernel) {
  if (kernel == nullptr) return;
  free(static_cast<Kernel *>(kernel)->tensors);
  free(kernel);
}

// ---- Start: the gradients of a bucket ----

// Hands over one gradient; false, with the context failed, if that is not possible.
bool hand_over(TF_OpKernelContext *context, Buffer *buffer, int64_t number, const Input &gradient,
               double factor) {
  const uint64_t count = static_cast<uint64_t>(TF_TensorElementCount(gradient.tensor));
  if (number >= buffer->num || buffer->shapes[number].count != count) {
    fail(context, TF_INVALID_ARGUMENT,
         "tarantella: gradient %lld has %llu elements, and its variable has not; it cannot be "
         "summed",
         static_cast<long long>(number), static_cast<unsigned long long>(count));
    return false;
  }
  const gaspi_size_t tensor = static_cast<gaspi_size_t>(number);
  gaspi_return_t code;
  if (factor == 0.0) {
    // A rank without samples contributes exactly 0, whatever its gradient is: NaN times 0 is not.
    void *zeros = calloc(1, TF_TensorByteSize(gradient.tensor) + 1);
    code = gaspi_fusion_submit(buffer->fusion, tensor, zeros, 1.0);
    free(zeros);
  } else {
    code = gaspi_fusion_submit(buffer->fusion, tensor, gradient.data<void>(), factor);
  }
  if (code != GASPI_SUCCESS) fail_by_library(context, "a gradient cannot be handed over");
  return code == GASPI_SUCCESS;
}

void start(void *state, TF_OpKernelContext *context) {
  const Kernel *kernel = static_cast<Kernel *>(state);
  const Input scale(context, kernel->tensors_num);
  if (scale.tensor == nullptr) return;
  Buffer *buffer = hold(kernel->slot);
  if (buffer == nullptr) return fail_without_buffer(context);
  const double factor = *scale.data<double>();
  bool done = true;
  for (int32_t index = 0; done && index < kernel->tensors_num; index++) {
    const Input gradient(context, index);
    done = gradient.tensor != nullptr &&
           hand_over(context, buffer, kernel->tensors[index], gradient, factor);
  }
  if (done) put_scalar(context, 0, 0);
  let_go(buffer);
}

// ---- Finish: the sums of a bucket, lent to TensorFlow ----

struct View {
  Buffer *buffer;
  gaspi_size_t tensor;
};

void end_view(void *data, size_t, void *argument) {
  View *view = static_cast<View *>(argument);
  gaspi_fusion_release(view->buffer->fusion, view->tensor, data);
  let_go(view->buffer);
  free(view);
}

bool lend(TF_OpKernelContext *context, Buffer *buffer, int64_t number, TF_DataType type,
          size_t element_size, int index) {
  const gaspi_size_t tensor = static_cast<gaspi_size_t>(number);
  const void *sum = nullptr;
  const auto result = [&](gaspi_timeout_t timeout) {
    return gaspi_fusion_result(buffer->fusion, tensor, &sum, timeout);
  };
  if (!wait_for(context, "waiting for the sum of gradients", buffer->fusion, result)) {
    return false;
  }
  View *view = static_cast<View *>(malloc(sizeof(View)));
  view->buffer = buffer;
  view->tensor = tensor;
  {
    Guard guard;
    buffer->references++;
  }
  const Shape &shape = buffer->shapes[number];
  TF_Tensor *output = TF_NewTensor(type, shape.dims, shape.num_dims, const_cast<void *>(sum),
                                   shape.count * element_size, end_view, view);
  if (output == nullptr) {
    fail(context, TF_RESOURCE_EXHAUSTED, "tarantella: no memory for a view of a sum");
    return false;
  }
  Status status;
  TF_SetOutput(context, index, output, status.inner);
  TF_DeleteTensor(output);
  if (!status.ok()) TF_OpKernelContext_Failure(context, status.inner);
  return status.ok();
}

size_t size_of(TF_DataType type) {
  switch (type) {
    case TF_DOUBLE:
    case TF_INT64:
      return 8;
    case TF_FLOAT:
      return 4;
    default:
      return 2;
  }
}

void finish(void *state, TF_OpKernelContext *context) {
  const Kernel *kernel = static_cast<Kernel *>(state);
  Buffer *buffer = hold(kernel->slot);
  if (buffer == nullptr) return fail_without_buffer(context);
  for (int32_t index = 0; index < kernel->tensors_num; index++) {
    const int64_t tensor = kernel->tensors[index];
    if (!lend(context, buffer, tensor, kernel->type, size_of(kernel->type), index)) {
      break;
    }
  }
  let_go(buffer);
}

// ---- Control line: a few numbers that have to agree, and the wish to stop ----
//
// The buffer takes the maximum. Each number is sent with its complement, so the maximum of that is
// the complement of the minimum.

void control_start(void *state, TF_OpKernelContext *context) {
  const Kernel *kernel = static_cast<Kernel *>(state);
  const Input values(context, 0);
  if (values.tensor == nullptr) return;
  Buffer *buffer = hold(kernel->slot);
  if (buffer == nullptr) return fail_without_buffer(context);
  int64_t line[kControlElements];
  const int64_t num = TF_TensorElementCount(values.tensor);
  for (int64_t at = 0; at < kControlValues; at++) {
    const int64_t value = at < num ? values.data<int64_t>()[at] : 0;
    line[1 + 2 * at] = value;
    line[2 + 2 * at] = ~value;
  }
  {
    Guard guard;
    line[0] = slots[kernel->slot].wish;
    for (int at = 0; at < kControlValues; at++) slots[kernel->slot].last[at] = line[1 + 2 * at];
  }
  if (gaspi_fusion_submit(buffer->fusion, 0, line, 1.0) != GASPI_SUCCESS) {
    fail_by_library(context, "the control line of a step cannot be sent");
  } else {
    put_scalar(context, 0, 0);
  }
  let_go(buffer);
}

void control_finish(void *state, TF_OpKernelContext *context) {
  const Kernel *kernel = static_cast<Kernel *>(state);
  Buffer *buffer = hold(kernel->slot);
  if (buffer == nullptr) return fail_without_buffer(context);
  int64_t line[kControlElements];
  const auto ended = [&](gaspi_timeout_t timeout) {
    return gaspi_fusion_wait(buffer->fusion, 0, line, timeout);
  };
  const bool done =
      wait_for(context, "waiting for the control line of a step", buffer->fusion, ended);
  let_go(buffer);
  if (!done) return;
  int64_t differs = -1;
  for (int64_t at = kControlValues - 1; at >= 0; at--) {
    if (line[1 + 2 * at] != ~line[2 + 2 * at]) differs = at;
  }
  {
    Guard guard;
    if (line[0] != 0) slots[kernel->slot].stop = 1;
    slots[kernel->slot].differs = differs;
  }
  if (differs >= 0) {
    fail(context, TF_FAILED_PRECONDITION, "tarantella: ranks differ in control value %lld",
         static_cast<long long>(differs));
    return;
  }
  // The caller adds it to its count of steps: an operator whose output is not used may be left out.
  put_scalar(context, 0, 1);
}

// ---- Gather: rows of a sparse gradient from all ranks ----

gaspi_coll_datatype_t library_type(TF_DataType type) {
  switch (type) {
    case TF_DOUBLE:
      return GASPI_COLL_TYPE_F64;
    case TF_HALF:
      return GASPI_COLL_TYPE_F16;
    case TF_BFLOAT16:
      return GASPI_COLL_TYPE_BF16;
    case TF_INT64:
      return GASPI_COLL_TYPE_I64;
    default:
      return GASPI_COLL_TYPE_F32;
  }
}

// The place of this rank in a group; -1 if it has none.
int64_t place_in(gaspi_group_t group) {
  gaspi_rank_t own;
  gaspi_number_t size;
  if (gaspi_proc_rank(&own) != GASPI_SUCCESS || gaspi_group_size(group, &size) != GASPI_SUCCESS) {
    return -1;
  }
  gaspi_rank_t *members = static_cast<gaspi_rank_t *>(calloc(size + 1, sizeof(gaspi_rank_t)));
  int64_t place = -1;
  if (gaspi_group_ranks(group, members) == GASPI_SUCCESS) {
    for (gaspi_number_t at = 0; at < size; at++) {
      if (members[at] == own) place = static_cast<int64_t>(at);
    }
  }
  free(members);
  return place;
}

// Tells all ranks how many elements each has. The fused buffer of the slot has a number for each
// rank; by it a wait knows which ranks have not come.
bool exchange_counts(TF_OpKernelContext *context, Buffer *buffer, gaspi_group_t group,
                     int64_t own, int64_t *counts) {
  const int64_t place = place_in(group);
  const uint64_t size = buffer->shapes[0].count;
  if (place < 0 || static_cast<uint64_t>(place) >= size) {
    fail_without_buffer(context);
    return false;
  }
  memset(counts, 0, size * sizeof(int64_t));
  counts[place] = own;
  if (gaspi_fusion_submit(buffer->fusion, 0, counts, 1.0) != GASPI_SUCCESS) {
    fail_by_library(context, "the rows of a sparse gradient cannot be counted");
    return false;
  }
  return wait_for(context, "gathering a sparse gradient", buffer->fusion,
                  [&](gaspi_timeout_t timeout) {
                    return gaspi_fusion_wait(buffer->fusion, 0, counts, timeout);
                  });
}

void gather(void *state, TF_OpKernelContext *context) {
  const Kernel *kernel = static_cast<Kernel *>(state);
  const Input rows(context, 0), own_num(context, 1);
  if (rows.tensor == nullptr || own_num.tensor == nullptr) return;
  Buffer *buffer = hold(kernel->slot);
  if (buffer == nullptr) return fail_without_buffer(context);
  gaspi_group_t group;
  {
    Guard guard;
    group = slots[kernel->slot].group;
  }
  Shape shape{};
  shape.num_dims = TF_NumDims(rows.tensor);
  int64_t width = 1;
  for (int at = 1; at < shape.num_dims; at++) {
    shape.dims[at] = TF_Dim(rows.tensor, at);
    width *= shape.dims[at];
  }
  const size_t size = buffer->shapes[0].count;
  int64_t *counts = static_cast<int64_t *>(calloc(size + 1, sizeof(int64_t)));
  if (exchange_counts(context, buffer, group, *own_num.data<int64_t>() * width, counts)) {
    uint64_t *lengths = reinterpret_cast<uint64_t *>(counts);
    uint64_t total = 0;
    for (size_t rank = 0; rank < size; rank++) total += lengths[rank];
    shape.dims[0] = width == 0 ? 0 : static_cast<int64_t>(total) / width;
    Status status;
    TF_Tensor *output = TF_AllocateOutput(context, 0, kernel->type, shape.dims, shape.num_dims,
                                          total * size_of(kernel->type), status.inner);
    if (status.ok()) {
      void *all = TF_TensorData(output);
      wait_for(context, "gathering a sparse gradient", 0, [&](gaspi_timeout_t timeout) {
        return gaspi_coll_allgatherv(rows.data<void>(), all, lengths, nullptr,
                                     library_type(kernel->type), group, nullptr, timeout);
      });
      TF_DeleteTensor(output);
    } else {
      TF_OpKernelContext_Failure(context, status.inner);
    }
  }
  free(counts);
  let_go(buffer);
}

// ---- Registration ----

__attribute__((constructor)) void register_operators() {
  static const TF_DataType floats[] = {TF_FLOAT, TF_DOUBLE, TF_HALF, TF_BFLOAT16,
                                       static_cast<TF_DataType>(0)};
  static const TF_DataType rows[] = {TF_FLOAT, TF_DOUBLE, TF_HALF, TF_BFLOAT16, TF_INT64,
                                     static_cast<TF_DataType>(0)};
  static const char *const bucket_attributes[] = {"T: {float, double, half, bfloat16}",
                                                  "N: int >= 1", "slot: int", "tensors: list(int)",
                                                  nullptr};
  static const char *const start_inputs[] = {"gradients: N * T", "scale: double", "step: int64",
                                             nullptr};
  static const char *const start_arguments[] = {"gradients", "scale", "step", "token", nullptr};
  static const char *const token_output[] = {"token: int64", nullptr};
  define("TarantellaStart", bucket_attributes, start_inputs, token_output);
  provide("TarantellaStart", floats, start_arguments, create<kType | kTensors>, start,
          destroy);

  static const char *const finish_inputs[] = {"token: int64", nullptr};
  static const char *const finish_arguments[] = {"token", "sums", nullptr};
  static const char *const finish_outputs[] = {"sums: N * T", nullptr};
  define("TarantellaFinish", bucket_attributes, finish_inputs, finish_outputs);
  provide("TarantellaFinish", floats, finish_arguments, create<kType | kTensors>, finish,
          destroy);

  static const char *const slot_attribute[] = {"slot: int", nullptr};
  static const char *const control_start_inputs[] = {"values: int64", nullptr};
  static const char *const control_start_arguments[] = {"values", "token", nullptr};
  define("TarantellaControlStart", slot_attribute, control_start_inputs, token_output);
  provide("TarantellaControlStart", nullptr, control_start_arguments, create<0>, control_start,
          destroy);

  static const char *const control_finish_inputs[] = {"token: int64", nullptr};
  static const char *const control_finish_arguments[] = {"token", "advance", nullptr};
  static const char *const control_finish_outputs[] = {"advance: int64", nullptr};
  define("TarantellaControlFinish", slot_attribute, control_finish_inputs, control_finish_outputs);
  provide("TarantellaControlFinish", nullptr, control_finish_arguments, create<0>, control_finish,
          destroy);

  static const char *const gather_attributes[] = {"T: {float, double, half, bfloat16, int64}",
                                                  "slot: int", nullptr};
  static const char *const gather_inputs[] = {"rows: T", "own: int64", nullptr};
  static const char *const gather_arguments[] = {"rows", "own", "all", nullptr};
  static const char *const gather_outputs[] = {"all: T", nullptr};
  define("TarantellaGather", gather_attributes, gather_inputs, gather_outputs);
  provide("TarantellaGather", rows, gather_arguments, create<kType>, gather,
          destroy);
}

}  // namespace

// ---- For the Python package, by ctypes ----

// A new slot, without a buffer. Its number is never used again.
TARANTELLA_EXPORT int64_t tarantella_tf_slot(void) {
  Guard guard;
  Slot *more =
      static_cast<Slot *>(realloc(slots, sizeof(Slot) * static_cast<size_t>(slots_num + 1)));
  if (more == nullptr) return -1;
  slots = more;
  slots[slots_num] = Slot{};
  slots[slots_num].differs = -1;
  return slots_num++;
}

// Gives a slot a fused buffer, or none (fusion 0), and the group of its gathers. The slot owns the
// buffer. `shapes` holds for each of `num` tensors its number of dimensions, then these.
TARANTELLA_EXPORT int tarantella_tf_assign(int64_t slot, uint64_t fusion, uint8_t group,
                                           int64_t num, const int64_t *shapes) {
  Buffer *buffer = nullptr;
  if (fusion != 0) {
    buffer = static_cast<Buffer *>(calloc(1, sizeof(Buffer)));
    buffer->fusion = fusion;
    buffer->num = num;
    buffer->references = 1;
    buffer->shapes = static_cast<Shape *>(calloc(static_cast<size_t>(num) + 1, sizeof(Shape)));
    for (int64_t tensor = 0; tensor < num; tensor++) {
      Shape &shape = buffer->shapes[tensor];
      shape.num_dims = static_cast<int>(*shapes++);
      if (shape.num_dims > kMaxDims) return -1;
      shape.count = 1;
      for (int at = 0; at < shape.num_dims; at++) {
        shape.dims[at] = *shapes++;
        shape.count *= static_cast<uint64_t>(shape.dims[at]);
      }
    }
  }
  Buffer *former;
  {
    Guard guard;
    if (slot < 0 || slot >= slots_num) return -1;
    former = slots[slot].buffer;
    slots[slot].buffer = buffer;
    slots[slot].group = group;
    slots[slot].wish = 0;
    slots[slot].differs = -1;
  }
  if (former != nullptr) let_go(former);
  return 0;
}

// This rank wishes to stop after a step; the next control line tells the others.
TARANTELLA_EXPORT void tarantella_tf_wish(int64_t slot, int wish) {
  Guard guard;
  slots[slot].wish = wish;
}

// Whether a control line that has ended held a wish to stop; forgets it.
TARANTELLA_EXPORT int tarantella_tf_stop(int64_t slot) {
  Guard guard;
  const int stop = slots[slot].stop;
  slots[slot].stop = 0;
  return stop;
}

// The number of the control value in which ranks differed in the last step, -1 for none.
TARANTELLA_EXPORT int64_t tarantella_tf_differs(int64_t slot) {
  Guard guard;
  return slots[slot].differs;
}

// The control values of this rank in its last step: four numbers.
TARANTELLA_EXPORT void tarantella_tf_last(int64_t slot, int64_t *values) {
  Guard guard;
  memcpy(values, slots[slot].last, sizeof slots[slot].last);
}

// 1: operators that wait end with an error; 0: they wait again.
TARANTELLA_EXPORT void tarantella_tf_interrupt(int value) {
  __atomic_store_n(&interrupted, value, __ATOMIC_RELAXED);
}

// How long operators wait for other ranks, in milliseconds; 0: for ever.
TARANTELLA_EXPORT void tarantella_tf_limit(uint64_t limit) {
  __atomic_store_n(&limit_ms, limit, __ATOMIC_RELAXED);
}

// After how long a wait says so on standard error, in milliseconds; 0: never.
TARANTELLA_EXPORT void tarantella_tf_warn(uint64_t after) {
  __atomic_store_n(&warning_ms, after, __ATOMIC_RELAXED);
}

// The number of dimensions that a tensor may have.
TARANTELLA_EXPORT int tarantella_tf_max_dims(void) { return kMaxDims; }
