// kernel.h: what the files of the operators have in common: errors, inputs and outputs of a kernel,
// and how operators are declared to TensorFlow. Each file that includes it gets its own copy.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef TARANTELLA_KERNEL_H
#define TARANTELLA_KERNEL_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow_c_api.h"

#define TARANTELLA_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// ---- Errors ----

struct Status {
  TF_Status *inner = TF_NewStatus();
  ~Status() { TF_DeleteStatus(inner); }
  bool ok() const { return TF_GetCode(inner) == TF_OK; }
};

__attribute__((format(printf, 3, 4))) void fail(TF_OpKernelContext *context, TF_Code code,
                                                const char *format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Status status;
  TF_SetStatus(status.inner, code, text);
  TF_OpKernelContext_Failure(context, status.inner);
}

// ---- Inputs and outputs ----

struct Input {
  TF_Tensor *tensor = nullptr;
  Input(TF_OpKernelContext *context, int index) {
    Status status;
    TF_GetInput(context, index, &tensor, status.inner);
    if (!status.ok()) {
      TF_OpKernelContext_Failure(context, status.inner);
      tensor = nullptr;
    }
  }
  ~Input() {
    if (tensor != nullptr) TF_DeleteTensor(tensor);
  }
  template <typename Type>
  const Type *data() const {
    return static_cast<const Type *>(TF_TensorData(tensor));
  }
};

// An output of integers; false, with the context failed, if there is no memory for it.
bool put(TF_OpKernelContext *context, int index, const int64_t *dims, int num_dims,
         const int64_t *values) {
  size_t size = sizeof(int64_t);
  for (int at = 0; at < num_dims; at++) size *= static_cast<size_t>(dims[at]);
  Status status;
  TF_Tensor *output =
      TF_AllocateOutput(context, index, TF_INT64, dims, num_dims, size, status.inner);
  if (!status.ok()) {
    TF_OpKernelContext_Failure(context, status.inner);
    return false;
  }
  memcpy(TF_TensorData(output), values, size);
  TF_DeleteTensor(output);
  return true;
}

bool put_scalar(TF_OpKernelContext *context, int index, int64_t value) {
  return put(context, index, nullptr, 0, &value);
}

// ---- Registration ----

void unknown_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void define(const char *name, const char *const *attributes, const char *const *inputs,
            const char *const *outputs) {
  TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder(name);
  for (; *attributes != nullptr; attributes++) TF_OpDefinitionBuilderAddAttr(builder, *attributes);
  for (; *inputs != nullptr; inputs++) TF_OpDefinitionBuilderAddInput(builder, *inputs);
  for (; *outputs != nullptr; outputs++) TF_OpDefinitionBuilderAddOutput(builder, *outputs);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, unknown_shape);
  Status status;
  TF_RegisterOpDefinition(builder, status.inner);
}

// All arguments are in host memory; TensorFlow copies from and to other devices.
void provide(const char *name, const TF_DataType *types, const char *const *arguments,
             void *(*create_kernel)(TF_OpKernelConstruction *),
             void (*compute)(void *, TF_OpKernelContext *), void (*destroy)(void *)) {
  static const char *const devices[] = {"CPU", "GPU"};
  for (const char *device : devices) {
    const TF_DataType *type = types;
    do {
      TF_KernelBuilder *builder =
          TF_NewKernelBuilder(name, device, create_kernel, compute, destroy);
      Status status;
      if (type != nullptr) {
        TF_KernelBuilder_TypeConstraint(builder, "T", *type, status.inner);
      }
      for (const char *const *each = arguments; *each != nullptr; each++) {
        TF_KernelBuilder_HostMemory(builder, *each);
      }
      TF_RegisterKernelBuilder(name, builder, status.inner);
      if (type != nullptr) type++;
    } while (type != nullptr && *type != static_cast<TF_DataType>(0));
  }
}

}  // namespace

#endif
