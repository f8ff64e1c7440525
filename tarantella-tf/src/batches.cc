// batches.cc: the operators for TensorFlow that say which part of a batch is this rank's, and what
// tells batches and weights of ranks apart.
//
// Datasets run Cut in place of some forty operators of TensorFlow: an iterator, of which there are
// one or two in each epoch, takes half a millisecond for each operator that it has.
//
// Cut is not declared stateful: what it is given of the last batch keeps it from being folded.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#include "kernel.h"

namespace {

// ---- Numbers that tell bytes apart ----

// Four lanes that are multiplied and rotated, as in xxHash: 10 GB/s. Equal bytes give equal numbers
// on all ranks, which have processors of one byte order.
constexpr uint64_t kOdd[] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9};
constexpr size_t kLanes = 4;

uint64_t rotated(uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

uint64_t mixed(uint64_t state, uint64_t word) {
  return rotated(state + word * kOdd[1], 31) * kOdd[0];
}

uint64_t spread(uint64_t state) {
  state = (state ^ (state >> 33)) * kOdd[1];
  state = (state ^ (state >> 29)) * kOdd[2];
  return state ^ (state >> 32);
}

uint64_t digest(const void *data, size_t length, uint64_t seed) {
  const unsigned char *at = static_cast<const unsigned char *>(data);
  uint64_t lanes[kLanes] = {seed + kOdd[0], seed ^ kOdd[1], seed, seed - kOdd[0]};
  uint64_t words[kLanes];
  size_t left = length;
  for (; left >= sizeof words; left -= sizeof words, at += sizeof words) {
    memcpy(words, at, sizeof words);
    for (size_t lane = 0; lane < kLanes; lane++) lanes[lane] = mixed(lanes[lane], words[lane]);
  }
  memset(words, 0, sizeof words);
  if (left > 0) memcpy(words, at, left);
  uint64_t all = length;
  for (size_t lane = 0; lane < kLanes; lane++) all = mixed(all, mixed(lanes[lane], words[lane]));
  return spread(all);
}

// ---- Cut: the part of a batch that is this rank's ----

constexpr int64_t kElements = 8;  // of a tensor, that its fingerprint is made of
constexpr int64_t kPrints = 2;

enum Compare { kNever = 0, kEachStep = 1, kFirstStep = 2 };

// Called for the first batch of an iteration, and for each that has another size, with the number
// of who watches; not 0 refuses. One for the process, which is never freed: threads of TensorFlow
// may read ahead until their iterator is gone.
typedef int (*Seen)(int64_t watch, int64_t index, int64_t batch);

Seen seen = nullptr;

struct Cut {
  int64_t ranks;
  int64_t rank;
  int64_t compare;
  int64_t watch;  // -1 for none
  int32_t parts;
  int32_t compared;
};

void *create_cut(TF_OpKernelConstruction *construction) {
  Cut *cut = static_cast<Cut *>(calloc(1, sizeof(Cut)));
  Status status;
  int32_t unused;
  const struct {
    const char *name;
    int64_t *value;
  } numbers[] = {{"ranks", &cut->ranks},
                 {"rank", &cut->rank},
                 {"compare", &cut->compare},
                 {"watch", &cut->watch}};
  for (const auto &number : numbers) {
    if (!status.ok()) break;
    TF_OpKernelConstruction_GetAttrInt64(construction, number.name, number.value, status.inner);
  }
  if (status.ok()) {
    TF_OpKernelConstruction_GetAttrSize(construction, "T", &cut->parts, &unused, status.inner);
  }
  if (status.ok()) {
    TF_OpKernelConstruction_GetAttrSize(construction, "C", &cut->compared, &unused, status.inner);
  }
  if (!status.ok()) TF_OpKernelConstruction_Failure(construction, status.inner);
  return cut;
}

// Samples of the batch; -1, with the context failed, if its parts have different numbers.
int64_t samples(TF_OpKernelContext *context, const Cut *cut) {
  int64_t batch = -1;
  for (int32_t index = 0; index < cut->parts; index++) {
    const Input part(context, index);
    if (part.tensor == nullptr) return -1;
    const int64_t rows = TF_NumDims(part.tensor) == 0 ? -1 : TF_Dim(part.tensor, 0);
    if (index == 0) batch = rows;
    if (rows < 0 || rows != batch) {
      fail(context, TF_INVALID_ARGUMENT,
           "the parts of a batch have different numbers of samples: %lld and %lld",
           static_cast<long long>(batch), static_cast<long long>(rows));
      return -1;
    }
  }
  return batch;
}

// False, with the context failed, if the size of a batch is refused.
bool is_taken(TF_OpKernelContext *context, const Cut *cut, int64_t index, int64_t batch) {
  const Seen tell = __atomic_load_n(&seen, __ATOMIC_ACQUIRE);
  if (cut->watch < 0 || tell == nullptr || tell(cut->watch, index, batch) == 0) return true;
  fail(context, TF_INVALID_ARGUMENT, "tarantella: batch %lld of %lld samples is refused",
       static_cast<long long>(index), static_cast<long long>(batch));
  return false;
}

// Numbers of a few elements of each tensor, and of their number; false with the context failed.
bool fingerprint(TF_OpKernelContext *context, const Cut *cut, int64_t batch, int64_t *prints) {
  uint64_t states[kPrints] = {digest(&batch, sizeof batch, 0), digest(&batch, sizeof batch, 1)};
  for (int32_t index = 0; index < cut->compared; index++) {
    const Input input(context, cut->parts + index);
    if (input.tensor == nullptr) return false;
    const int64_t num = TF_TensorElementCount(input.tensor);
    if (num == 0) continue;
    const size_t width = TF_TensorByteSize(input.tensor) / static_cast<size_t>(num);
    const int64_t taken = num < kElements ? num : kElements;
    for (int64_t at = 0; at < taken; at++) {
      const int64_t place = taken < kElements ? at : at * (num - 1) / (kElements - 1);
      const char *element = input.data<char>() + static_cast<size_t>(place) * width;
      for (uint64_t &state : states) state = digest(element, width, state);
    }
  }
  for (int64_t at = 0; at < kPrints; at++) prints[at] = static_cast<int64_t>(states[at]);
  return true;
}

// begin, end: of this rank's part, which is the first sample for a rank that has none. local: its
// samples. batch: those of all. next, known: index and size for the next batch.
void cut(void *state, TF_OpKernelContext *context) {
  const Cut *cut = static_cast<Cut *>(state);
  const Input last_index(context, cut->parts + cut->compared);
  const Input first_batch(context, cut->parts + cut->compared + 1);
  if (last_index.tensor == nullptr || first_batch.tensor == nullptr) return;
  const int64_t batch = samples(context, cut);
  if (batch < 0) return;
  const int64_t index = *last_index.data<int64_t>(), first = *first_batch.data<int64_t>();
  if (batch != first && !is_taken(context, cut, index, batch)) return;
  int64_t prints[kPrints] = {0, 0};
  const bool compares = cut->compare == kEachStep || (cut->compare == kFirstStep && index == 0);
  if (compares && !fingerprint(context, cut, batch, prints)) return;
  const int64_t each = batch / cut->ranks, more = batch % cut->ranks;
  const int64_t local = each + (cut->rank < more ? 1 : 0);
  const int64_t before = each * cut->rank + (cut->rank < more ? cut->rank : more);
  const int64_t begin = local > 0 ? before : 0;
  const int64_t end = begin + (local > 0 || batch == 0 ? local : 1);
  const int64_t one[] = {1}, num_prints[] = {kPrints};
  put(context, 0, one, 1, &begin) && put(context, 1, one, 1, &end) &&
      put_scalar(context, 2, local) && put_scalar(context, 3, batch) &&
      put_scalar(context, 4, index + 1) && put_scalar(context, 5, first < 0 ? batch : first) &&
      put(context, 6, num_prints, 1, prints);
}

// ---- Digest: a number for all bytes of each tensor ----

void *create_digest(TF_OpKernelConstruction *) { return nullptr; }

void digests(void *, TF_OpKernelContext *context) {
  const int64_t num = TF_NumInputs(context);
  int64_t *all = static_cast<int64_t *>(calloc(static_cast<size_t>(num) + 1, sizeof(int64_t)));
  bool done = true;
  for (int64_t index = 0; done && index < num; index++) {
    const Input value(context, static_cast<int>(index));
    done = value.tensor != nullptr;
    if (!done) break;
    const size_t size = TF_TensorByteSize(value.tensor);
    all[index] = static_cast<int64_t>(digest(value.data<void>(), size, 0));
  }
  if (done) put(context, 0, &num, 1, all);
  free(all);
}

void destroy(void *kernel) { free(kernel); }

__attribute__((constructor)) void register_operators() {
  static const char *const cut_attributes[] = {"T: list(type) >= 1", "C: list(type) >= 0",
                                               "ranks: int >= 1",    "rank: int >= 0",
                                               "compare: int",       "watch: int",
                                               nullptr};
  static const char *const cut_inputs[] = {"parts: T", "compared: C", "index: int64",
                                           "first: int64", nullptr};
  static const char *const cut_outputs[] = {"begin: int64", "end: int64",   "local: int64",
                                            "batch: int64", "next: int64", "known: int64",
                                            "fingerprint: int64", nullptr};
  static const char *const cut_arguments[] = {"parts", "compared", "index", "first",
                                              "begin", "end",      "local", "batch",
                                              "next",  "known",    "fingerprint", nullptr};
  define("TarantellaCut", cut_attributes, cut_inputs, cut_outputs);
  provide("TarantellaCut", nullptr, cut_arguments, create_cut, cut, destroy);

  static const char *const digest_attributes[] = {"T: list(type) >= 1", nullptr};
  static const char *const digest_inputs[] = {"values: T", nullptr};
  static const char *const digest_outputs[] = {"digests: int64", nullptr};
  static const char *const digest_arguments[] = {"values", "digests", nullptr};
  define("TarantellaDigest", digest_attributes, digest_inputs, digest_outputs);
  provide("TarantellaDigest", nullptr, digest_arguments, create_digest, digests, destroy);
}

}  // namespace

// ---- For the Python package, by ctypes ----

// Has Cut tell of the sizes of batches. Once, before an operator runs.
TARANTELLA_EXPORT void tarantella_tf_tell_sizes(Seen tell) {
  __atomic_store_n(&seen, tell, __ATOMIC_RELEASE);
}
