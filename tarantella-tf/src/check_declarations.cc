// check_declarations.cc: our declarations of TensorFlow's C API beside its own. Only compiled, by
// check_declarations.sh: a function with C linkage that differs in a type is an error, and so is a
// number that differs.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

// Types come from TensorFlow; functions are declared a second time.
#define TARANTELLA_WITH_TENSORFLOW_HEADERS
#include "tensorflow_c_api.h"

namespace numbers {
#include "tensorflow_c_numbers.h"
}

#define SAME(name) \
  static_assert(static_cast<int>(::name) == static_cast<int>(numbers::name), \
                "the number of " #name " differs")
SAME(TF_FLOAT);
SAME(TF_DOUBLE);
SAME(TF_INT32);
SAME(TF_INT64);
SAME(TF_BFLOAT16);
SAME(TF_HALF);
SAME(TF_OK);
SAME(TF_CANCELLED);
SAME(TF_INVALID_ARGUMENT);
SAME(TF_DEADLINE_EXCEEDED);
SAME(TF_RESOURCE_EXHAUSTED);
SAME(TF_FAILED_PRECONDITION);
SAME(TF_ABORTED);
