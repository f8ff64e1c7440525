/*
 * tensorflow_c_numbers.h: the numbers of TensorFlow's C API that the operators use; part of
 * tensorflow_c_api.h, in a file of its own so that the test can compare them.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */

typedef enum TF_DataType {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_INT64 = 9,
  TF_BFLOAT16 = 14,
  TF_HALF = 19
} TF_DataType;

typedef enum TF_Code {
  TF_OK = 0,
  TF_CANCELLED = 1,
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_FAILED_PRECONDITION = 9,
  TF_ABORTED = 10
} TF_Code;
