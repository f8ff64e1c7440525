/*
 * tensorflow_c_api.h: the part of TensorFlow's C API that the operators use, declared here, so that
 * building them needs no TensorFlow.
 *
 * The API is stable: names, numbers and signatures are the same from TensorFlow 2.10 to 2.21. A
 * test compiles this file together with TensorFlow's own headers; a difference is an error of the
 * compiler.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef TARANTELLA_TENSORFLOW_C_API_H
#define TARANTELLA_TENSORFLOW_C_API_H

#include <stddef.h>
#include <stdint.h>

#ifndef TARANTELLA_WITH_TENSORFLOW_HEADERS
#include "tensorflow_c_numbers.h"
#endif

extern "C" {

#ifndef TARANTELLA_WITH_TENSORFLOW_HEADERS
typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
#endif

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *);
void TF_SetStatus(TF_Status *status, TF_Code code, const char *message);
TF_Code TF_GetCode(const TF_Status *status);

TF_Tensor *TF_NewTensor(TF_DataType, const int64_t *dims, int num_dims, void *data, size_t len,
                        void (*deallocator)(void *data, size_t len, void *arg),
                        void *deallocator_arg);
void TF_DeleteTensor(TF_Tensor *);
int TF_NumDims(const TF_Tensor *);
int64_t TF_Dim(const TF_Tensor *tensor, int dim_index);
int64_t TF_TensorElementCount(const TF_Tensor *tensor);
size_t TF_TensorByteSize(const TF_Tensor *);
void *TF_TensorData(const TF_Tensor *);

TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *op_name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *builder, const char *attr_spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *builder, const char *input_spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *builder, const char *output_spec);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder *builder,
    void (*shape_inference_func)(TF_ShapeInferenceContext *ctx, TF_Status *status));
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext *ctx, TF_Status *status);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *builder, TF_Status *status);

TF_KernelBuilder *TF_NewKernelBuilder(const char *op_name, const char *device_name,
                                      void *(*create_func)(TF_OpKernelConstruction *),
                                      void (*compute_func)(void *, TF_OpKernelContext *),
                                      void (*delete_func)(void *));
void TF_KernelBuilder_TypeConstraint(TF_KernelBuilder *kernel_builder, const char *attr_name,
                                     const TF_DataType type, TF_Status *status);
void TF_KernelBuilder_HostMemory(TF_KernelBuilder *kernel_builder, const char *arg_name);
void TF_RegisterKernelBuilder(const char *kernel_name, TF_KernelBuilder *builder,
                              TF_Status *status);

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *ctx, TF_Status *status);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction *ctx, const char *attr_name,
                                         int32_t *list_size, int32_t *total_size,
                                         TF_Status *status);
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction *ctx, const char *attr_name,
                                         TF_DataType *val, TF_Status *status);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction *ctx, const char *attr_name,
                                          int64_t *val, TF_Status *status);
void TF_OpKernelConstruction_GetAttrInt64List(TF_OpKernelConstruction *ctx, const char *attr_name,
                                              int64_t *vals, int max_vals, TF_Status *status);

void TF_OpKernelContext_Failure(TF_OpKernelContext *ctx, TF_Status *status);
int TF_NumInputs(TF_OpKernelContext *ctx);
void TF_GetInput(TF_OpKernelContext *ctx, int i, TF_Tensor **tensor, TF_Status *status);
TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *context, int index, TF_DataType dtype,
                             const int64_t *dims, int num_dims, size_t len, TF_Status *status);
void TF_SetOutput(TF_OpKernelContext *ctx, int i, const TF_Tensor *tensor, TF_Status *status);

}  // extern "C"

#endif
