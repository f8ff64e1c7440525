/*
 * gaspi_collectives.h: what this library offers beyond GASPI 17.1: collective operations on any
 * memory, of any length, waiting or not, and the causes of errors in words.
 *
 * What holds for all procedures is said at the head of GASPI.h. Nothing in here reuses a name or a
 * number of the standard. A program that is to build against other implementations too tests for
 * the macro below, which grows with every addition.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GASPI_COLLECTIVES_H
#define GASPI_COLLECTIVES_H

#include <stddef.h>
#include <stdint.h>

#include "GASPI_types.h"

/**
 * Version of this header: 1000 * major + minor.
 *
 * 1000: gaspi_error_detail
 * 1001: gaspi_coll_*
 * 1002: gaspi_fusion_*, gaspi_coll_broadcast_list, modes
 */
#define GASPI_COLLECTIVES_VERSION 1002

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Copies the cause of this thread's last failed call, in words: procedure, rank, object, reason
 * and, where there is one, the remedy. Each thread has its own; calls that succeed leave it.
 *
 * May be called at any time, before gaspi_proc_init and after gaspi_proc_term too.
 *
 * @param text  where to; a zero byte ends it; "" if no call of this thread has failed
 * @param size  bytes at `text`; a longer text is cut
 * @return GASPI_SUCCESS; GASPI_ERR_NULLPTR; GASPI_ERR_INV_SIZE if `size` is 0
 */
gaspi_return_t gaspi_error_detail(char *text, gaspi_size_t size);

/* ==== Types of the collective operations ==== */

/** An operation that was started or prepared. Never 0; its number is not used again. */
typedef uint64_t gaspi_coll_request_t;

/** No operation; gaspi_coll_wait_all skips it. */
#define GASPI_COLL_REQUEST_NULL ((gaspi_coll_request_t)0)

/** Type of an element. */
typedef enum {
  GASPI_COLL_TYPE_I8 = 16,
  GASPI_COLL_TYPE_U8 = 17, /**< also for bytes of any kind that are only moved */
  GASPI_COLL_TYPE_I16 = 18,
  GASPI_COLL_TYPE_U16 = 19,
  GASPI_COLL_TYPE_I32 = 20,
  GASPI_COLL_TYPE_U32 = 21,
  GASPI_COLL_TYPE_I64 = 22,
  GASPI_COLL_TYPE_U64 = 23,
  GASPI_COLL_TYPE_F16 = 32,  /**< IEEE 754 half precision */
  GASPI_COLL_TYPE_BF16 = 33, /**< the upper half of an F32 */
  GASPI_COLL_TYPE_F32 = 34,
  GASPI_COLL_TYPE_F64 = 35,
  GASPI_COLL_TYPE_USER = 64 /**< the elements of an operation made by gaspi_coll_op_create */
} gaspi_coll_datatype_t;

/** How elements are combined: a number below, or what gaspi_coll_op_create gave. */
typedef uint64_t gaspi_coll_op_t;

/** The operations on the types above. All ranks get the same bits. */
enum {
  GASPI_COLL_OP_SUM = 16, /**< integers wrap around; F16 and BF16 are summed as F32 */
  GASPI_COLL_OP_PRODUCT = 17,
  GASPI_COLL_OP_MIN = 18, /**< NaN if any element is NaN; so is the maximum */
  GASPI_COLL_OP_MAX = 19,
  GASPI_COLL_OP_AND = 20,    /**< bit by bit; this and the next two for integers only */
  GASPI_COLL_OP_OR = 21,
  GASPI_COLL_OP_XOR = 22,
  GASPI_COLL_OP_AVERAGE = 23 /**< the sum divided by the number of ranks */
};

/**
 * Stands for `send` or `receive` in an operation in place, where the contribution lies where the
 * result goes. See each operation.
 */
#define GASPI_COLL_IN_PLACE ((void *)-1)

/**
 * What the bits of the result of a reduction may depend on, besides the contributions. The same on
 * all ranks of the group; a difference is GASPI_ERROR, whose words name the ranks and their modes.
 * Operations that only move data have the same bits in all modes.
 */
enum {
  GASPI_COLL_MODE_DEFAULT = 0, /**< what GASPI_COLL_MODE says, fast or stable; else fast */
  GASPI_COLL_MODE_FAST = 1,    /**< on anything; all ranks of a call get the same bits */
  /**
   * Equal bits from run to run: they depend on the operation, type and count, for fused buffers on
   * the tensors of the bucket, on the number of ranks and which of them share a host, on algorithm
   * and version of this library. Not on where memory lies, in place or not; on cores and quotas; on
   * the transport; on who comes first; on whether the operation waits, is started, prepared or
   * fused; or on the floating-point environment of a thread. Two things are left to the program:
   * contributions to one tensor of a fused buffer are added in the order in which a rank submits
   * them, and functions of gaspi_coll_op_create are called with lengths, and by threads, of the
   * library's choice.
   */
  GASPI_COLL_MODE_STABLE = 2
};

/**
 * Options of an operation; NULL stands for the initial values. All but `background` are the same on
 * all ranks of the group. A later version of this header may append fields; the library takes the
 * shorter options of an earlier one.
 */
typedef struct gaspi_coll_options {
  size_t size;           /**< sizeof(gaspi_coll_options_t) */
  const char *algorithm; /**< a name of gaspi_coll_algorithms; NULL: the library chooses */
  gaspi_uint background; /**< 1: a thread of the library drives the operation too */
  gaspi_uint reserved;   /**< 0 */
  gaspi_uint mode;       /**< GASPI_COLL_MODE_DEFAULT, _FAST or _STABLE; since version 1002 */
  gaspi_uint reserved2;  /**< 0 */
} gaspi_coll_options_t;

/** The initial values: gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT; */
#define GASPI_COLL_OPTIONS_INIT \
  {sizeof(gaspi_coll_options_t), NULL, 0, 0, GASPI_COLL_MODE_DEFAULT, 0}

/**
 * A reduction of the program: result[i] = left[i] op right[i] for `count` elements. The three
 * buffers are aligned to 16 bytes and do not overlap. The function has to be associative. It is
 * called by threads that start, test or wait, at the same time for different operations. It must
 * not call this library. It returns GASPI_SUCCESS; any other value fails the operation on all
 * ranks. For the same elements it returns the same on all ranks.
 */
typedef gaspi_return_t (*gaspi_coll_reduce_function_t)(const void *left, const void *right,
                                                       void *result, uint64_t count,
                                                       gaspi_size_t element_size, void *state);

/** For gaspi_coll_op_create: not commutative; elements are combined in the order of the ranks. */
#define GASPI_COLL_OP_ORDERED 1u

/** For gaspi_coll_op_create: threads of the library may call the function. */
#define GASPI_COLL_OP_BACKGROUND 2u

/* ---- Collective operations ----
 *
 * All ranks of a group call the same operation with the same count, type, operation, root,
 * algorithm and mode. A difference is an error on all ranks that called, before data of one call
 * gets into the buffers of another; the error says what differs.
 *
 * Each operation has three forms, with the same arguments:
 *  - gaspi_coll_X carries it out and returns. After GASPI_TIMEOUT the same call continues it; until
 *    it has ended, another waiting operation of the group is GASPI_ERR_ACTIVE_COLL.
 *  - gaspi_coll_X_start starts it and gives a request, for gaspi_coll_test or gaspi_coll_wait. Many
 *    may be under way. Those of a group run in the order in which they were started, which has to
 *    be the same on all ranks.
 *  - gaspi_coll_X_init prepares it, which all ranks of the group do together, and gives a request.
 *    gaspi_coll_start starts that any number of times, until gaspi_coll_free. Prepared operations
 *    do not depend on each other: each rank may start and finish them in its own order.
 *
 * Counts and displacements are in elements. Blocks of ranks are in the order of the group's ranks.
 * A root is given by its rank in the job and has to be in the group. Buffers may have any address;
 * where they lie in segments that are registered with the other ranks, and all ranks share a host,
 * nothing is copied on the way. A buffer without elements may be NULL. `send` and `receive` may not
 * overlap, except in place: as each operation says, or by GASPI_COLL_IN_PLACE. Buffers belong to
 * the library until the operation has ended, after GASPI_TIMEOUT too; lists of counts only during
 * the call.
 *
 * Example, which waits:
 *
 * @code
 * double sum_over_all_ranks(double mine) {
 *   double sum = 0;
 *   gaspi_return_t code =
 *       gaspi_coll_allreduce(&mine, &sum, 1, GASPI_COLL_TYPE_F64, GASPI_COLL_OP_SUM,
 *                            GASPI_GROUP_ALL, NULL, GASPI_BLOCK);
 *   if (code != GASPI_SUCCESS) {
 *     char reason[1024];
 *     gaspi_error_detail(reason, sizeof reason);
 *     fprintf(stderr, "%s\n", reason);
 *     exit(1);
 *   }
 *   return sum;
 * }
 * @endcode
 *
 * Lists of codes leave out: GASPI_TIMEOUT; GASPI_ERR_INV_GROUP for a group that is not committed,
 * without the caller, or used up; GASPI_ERR_NULLPTR; GASPI_ERR_INV_NUM if all blocks have 2^63
 * bytes or more; GASPI_ERR_INV_SIZE for buffers that overlap or options of a wrong size;
 * GASPI_ERR_INV_RANK for a root; GASPI_ERROR for a type, operation or algorithm that does not exist
 * or does not fit, for ranks that differ, and for a rank that died or left. Ranks that differ use
 * up the group: from then on operations of this header need a new one, also instead of
 * GASPI_GROUP_ALL.
 */

/**
 * Combines the elements of all ranks; all get the result.
 * @param send      `count` elements
 * @param receive   `count` elements; in place: the same as `send`, or `send` is
 *                  GASPI_COLL_IN_PLACE
 * @param count     elements
 * @param datatype  their type
 * @param op        how they are combined
 * @param group     the ranks that take part
 * @param options   NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_allreduce(const void *send, void *receive, uint64_t count,
                                    gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                    gaspi_group_t group, const gaspi_coll_options_t *options,
                                    gaspi_timeout_t timeout);

/** Starts what gaspi_coll_allreduce does. @return as there */
gaspi_return_t gaspi_coll_allreduce_start(const void *send, void *receive, uint64_t count,
                                          gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                          gaspi_group_t group, const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_allreduce does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_allreduce_init(const void *send, void *receive, uint64_t count,
                                         gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                         gaspi_group_t group, const gaspi_coll_options_t *options,
                                         gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/**
 * Combines the elements of all ranks; the root gets the result.
 * @param send      `count` elements
 * @param receive   at the root `count` elements; in place there: the same as `send`, or `send` is
 *                  GASPI_COLL_IN_PLACE; not used at others
 * @param count     elements
 * @param datatype  their type
 * @param op        how they are combined
 * @param root      the rank that gets the result
 * @param group     the ranks that take part
 * @param options   NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_reduce(const void *send, void *receive, uint64_t count,
                                 gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                 gaspi_rank_t root, gaspi_group_t group,
                                 const gaspi_coll_options_t *options, gaspi_timeout_t timeout);

/** Starts what gaspi_coll_reduce does. @return as there */
gaspi_return_t gaspi_coll_reduce_start(const void *send, void *receive, uint64_t count,
                                       gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                       gaspi_rank_t root, gaspi_group_t group,
                                       const gaspi_coll_options_t *options,
                                       gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_reduce does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_reduce_init(const void *send, void *receive, uint64_t count,
                                      gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                      gaspi_rank_t root, gaspi_group_t group,
                                      const gaspi_coll_options_t *options,
                                      gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/**
 * Gives the elements of the root to all.
 * @param send      at the root `count` elements, or GASPI_COLL_IN_PLACE; not used at others
 * @param receive   `count` elements; in place at the root: the same as `send`
 * @param count     elements
 * @param datatype  their type
 * @param root      the rank that gives the elements
 * @param group     the ranks that take part
 * @param options   NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_broadcast(const void *send, void *receive, uint64_t count,
                                    gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                    gaspi_group_t group, const gaspi_coll_options_t *options,
                                    gaspi_timeout_t timeout);

/** Starts what gaspi_coll_broadcast does. @return as there */
gaspi_return_t gaspi_coll_broadcast_start(const void *send, void *receive, uint64_t count,
                                          gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                          gaspi_group_t group, const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_broadcast does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_broadcast_init(const void *send, void *receive, uint64_t count,
                                         gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                         gaspi_group_t group, const gaspi_coll_options_t *options,
                                         gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** A piece of gaspi_coll_broadcast_list. */
typedef struct gaspi_coll_piece {
  void *data;                     /**< read at the root, written at others; NULL without elements */
  uint64_t count;                 /**< elements, any number */
  gaspi_coll_datatype_t datatype; /**< their type, not GASPI_COLL_TYPE_USER */
  gaspi_uint reserved;            /**< 0 */
} gaspi_coll_piece_t;

/**
 * Gives many pieces of the root to all, such as the weights of a model. Small ones are packed,
 * large ones travel from and to where they lie. After GASPI_TIMEOUT the same call continues it.
 * @param pieces   `num` pieces, on all ranks as many, of the same counts and types; none share
 *                 memory
 * @param num      any
 * @param root     the rank that gives them
 * @param group    the ranks that take part
 * @param options  NULL: none; the algorithm is one of gaspi_coll_algorithms("broadcast")
 * @return GASPI_SUCCESS; GASPI_ERR_NULLPTR; GASPI_ERR_INV_NUM; GASPI_ERR_INV_SIZE if pieces share
 *         memory; GASPI_ERROR also if the ranks give different lists: the root may be told by its
 *         next operation
 */
gaspi_return_t gaspi_coll_broadcast_list(const gaspi_coll_piece_t *pieces, gaspi_size_t num,
                                         gaspi_rank_t root, gaspi_group_t group,
                                         const gaspi_coll_options_t *options,
                                         gaspi_timeout_t timeout);

/** Starts what gaspi_coll_broadcast_list does; `pieces` may go afterwards. @return as there */
gaspi_return_t gaspi_coll_broadcast_list_start(const gaspi_coll_piece_t *pieces, gaspi_size_t num,
                                               gaspi_rank_t root, gaspi_group_t group,
                                               const gaspi_coll_options_t *options,
                                               gaspi_coll_request_t *request,
                                               gaspi_timeout_t timeout);

/**
 * Combines the elements of all ranks; each gets one block of the result.
 * @param send      a block of `count` elements for each rank
 * @param receive   `count` elements; in place: this rank's block of `send`, or
 *                  GASPI_COLL_IN_PLACE
 * @param count     elements of a block
 * @param datatype  their type
 * @param op        how they are combined
 * @param group     the ranks that take part
 * @param options   NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_reduce_scatter(const void *send, void *receive, uint64_t count,
                                         gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                         gaspi_group_t group, const gaspi_coll_options_t *options,
                                         gaspi_timeout_t timeout);

/** Starts what gaspi_coll_reduce_scatter does. @return as there */
gaspi_return_t gaspi_coll_reduce_scatter_start(const void *send, void *receive, uint64_t count,
                                               gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                               gaspi_group_t group,
                                               const gaspi_coll_options_t *options,
                                               gaspi_coll_request_t *request,
                                               gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_reduce_scatter does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_reduce_scatter_init(const void *send, void *receive, uint64_t count,
                                              gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                              gaspi_group_t group,
                                              const gaspi_coll_options_t *options,
                                              gaspi_coll_request_t *request,
                                              gaspi_timeout_t timeout);

/**
 * Gives the elements of each rank to all.
 * @param send      `count` elements; in place: this rank's block of `receive`, or
 *                  GASPI_COLL_IN_PLACE
 * @param receive   a block of `count` elements for each rank
 * @param count     elements of a block
 * @param datatype  their type
 * @param group     the ranks that take part
 * @param options   NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_allgather(const void *send, void *receive, uint64_t count,
                                    gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                    const gaspi_coll_options_t *options, gaspi_timeout_t timeout);

/** Starts what gaspi_coll_allgather does. @return as there */
gaspi_return_t gaspi_coll_allgather_start(const void *send, void *receive, uint64_t count,
                                          gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                          const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_allgather does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_allgather_init(const void *send, void *receive, uint64_t count,
                                         gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                         const gaspi_coll_options_t *options,
                                         gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/**
 * Gives the elements of each rank to all, of each rank as many as it has.
 * @param send           this rank's elements; in place: this rank's block of `receive`, or
 *                       GASPI_COLL_IN_PLACE
 * @param receive        a block for each rank
 * @param counts         elements of each rank, the same on all ranks
 * @param displacements  where each block begins in `receive`, in elements; blocks may not overlap,
 *                       and one without elements may be anywhere; NULL: they follow each other
 * @param datatype       type of the elements
 * @param group          the ranks that take part
 * @param options        NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_allgatherv(const void *send, void *receive, const uint64_t *counts,
                                     const uint64_t *displacements, gaspi_coll_datatype_t datatype,
                                     gaspi_group_t group, const gaspi_coll_options_t *options,
                                     gaspi_timeout_t timeout);

/** Starts what gaspi_coll_allgatherv does. @return as there */
gaspi_return_t gaspi_coll_allgatherv_start(const void *send, void *receive, const uint64_t *counts,
                                           const uint64_t *displacements,
                                           gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                           const gaspi_coll_options_t *options,
                                           gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_allgatherv does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_allgatherv_init(const void *send, void *receive, const uint64_t *counts,
                                          const uint64_t *displacements,
                                          gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                          const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/**
 * Gives the elements of each rank to the root.
 * @param send      `count` elements; in place at the root: its block of `receive`, or
 *                  GASPI_COLL_IN_PLACE
 * @param receive   at the root a block of `count` elements for each rank; not used at others
 * @param count     elements of a block
 * @param datatype  their type
 * @param root      the rank that gets the elements
 * @param group     the ranks that take part
 * @param options   NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_gather(const void *send, void *receive, uint64_t count,
                                 gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                 gaspi_group_t group, const gaspi_coll_options_t *options,
                                 gaspi_timeout_t timeout);

/** Starts what gaspi_coll_gather does. @return as there */
gaspi_return_t gaspi_coll_gather_start(const void *send, void *receive, uint64_t count,
                                       gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                       gaspi_group_t group, const gaspi_coll_options_t *options,
                                       gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_gather does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_gather_init(const void *send, void *receive, uint64_t count,
                                      gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                      gaspi_group_t group, const gaspi_coll_options_t *options,
                                      gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/**
 * Gives each rank one block of the root's elements.
 * @param send      at the root a block of `count` elements for each rank; not used at others
 * @param receive   `count` elements; in place at the root: its block of `send`, or
 *                  GASPI_COLL_IN_PLACE
 * @param count     elements of a block
 * @param datatype  their type
 * @param root      the rank that gives the elements
 * @param group     the ranks that take part
 * @param options   NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_scatter(const void *send, void *receive, uint64_t count,
                                  gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                  gaspi_group_t group, const gaspi_coll_options_t *options,
                                  gaspi_timeout_t timeout);

/** Starts what gaspi_coll_scatter does. @return as there */
gaspi_return_t gaspi_coll_scatter_start(const void *send, void *receive, uint64_t count,
                                        gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                        gaspi_group_t group, const gaspi_coll_options_t *options,
                                        gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_scatter does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_scatter_init(const void *send, void *receive, uint64_t count,
                                       gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                       gaspi_group_t group, const gaspi_coll_options_t *options,
                                       gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/**
 * Gives each rank one block of the elements of each rank.
 * @param send      a block of `count` elements for each rank
 * @param receive   a block of `count` elements of each rank; in place: the same as `send`, or
 *                  `send` is GASPI_COLL_IN_PLACE
 * @param count     elements of a block
 * @param datatype  their type
 * @param group     the ranks that take part
 * @param options   NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_alltoall(const void *send, void *receive, uint64_t count,
                                   gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                   const gaspi_coll_options_t *options, gaspi_timeout_t timeout);

/** Starts what gaspi_coll_alltoall does. @return as there */
gaspi_return_t gaspi_coll_alltoall_start(const void *send, void *receive, uint64_t count,
                                         gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                         const gaspi_coll_options_t *options,
                                         gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_alltoall does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_alltoall_init(const void *send, void *receive, uint64_t count,
                                        gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                        const gaspi_coll_options_t *options,
                                        gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/**
 * Gives each rank one block of the elements of each rank, blocks of any lengths.
 * @param send                   a block for each rank
 * @param send_counts            elements of each; a rank's block for another has as many elements
 *                               as that one expects
 * @param send_displacements     where each begins in `send`, in elements; one without elements may
 *                               be anywhere; NULL: they follow each other
 * @param receive                a block of each rank; in place: the same as `send`, or `send` is
 *                               GASPI_COLL_IN_PLACE
 * @param receive_counts         elements of each
 * @param receive_displacements  where each begins in `receive`; blocks may not overlap, and one
 *                               without elements may be anywhere; NULL: they follow each other
 * @param datatype               type of the elements
 * @param group                  the ranks that take part
 * @param options                NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_alltoallv(const void *send, const uint64_t *send_counts,
                                    const uint64_t *send_displacements, void *receive,
                                    const uint64_t *receive_counts,
                                    const uint64_t *receive_displacements,
                                    gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                    const gaspi_coll_options_t *options, gaspi_timeout_t timeout);

/** Starts what gaspi_coll_alltoallv does. @return as there */
gaspi_return_t gaspi_coll_alltoallv_start(const void *send, const uint64_t *send_counts,
                                          const uint64_t *send_displacements, void *receive,
                                          const uint64_t *receive_counts,
                                          const uint64_t *receive_displacements,
                                          gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                          const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_alltoallv does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_alltoallv_init(const void *send, const uint64_t *send_counts,
                                         const uint64_t *send_displacements, void *receive,
                                         const uint64_t *receive_counts,
                                         const uint64_t *receive_displacements,
                                         gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                         const gaspi_coll_options_t *options,
                                         gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/**
 * Waits until all ranks of the group are there.
 * @param group    the ranks that take part
 * @param options  NULL: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_coll_barrier(gaspi_group_t group, const gaspi_coll_options_t *options,
                                  gaspi_timeout_t timeout);

/** Starts what gaspi_coll_barrier does. @return as there */
gaspi_return_t gaspi_coll_barrier_start(gaspi_group_t group, const gaspi_coll_options_t *options,
                                        gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/** Prepares what gaspi_coll_barrier does, for gaspi_coll_start. @return as there */
gaspi_return_t gaspi_coll_barrier_init(gaspi_group_t group, const gaspi_coll_options_t *options,
                                       gaspi_coll_request_t *request, gaspi_timeout_t timeout);

/* ---- Requests of collective operations ----
 *
 * A request of gaspi_coll_X_start exists until gaspi_coll_test sets `done`, gaspi_coll_wait
 * succeeds, or either returns an error other than GASPI_TIMEOUT. A request of gaspi_coll_X_init
 * exists until gaspi_coll_free. A request that does not exist is GASPI_ERROR. Any thread may use
 * any request; if several threads wait for the same one, one of them gets its end.
 *
 * All operations of a rank progress while one of its threads tests or waits for any of them. A
 * thread of the library drives those whose options say `background`.
 *
 * Example, with two operations that every rank starts in its own order:
 *
 * @code
 * gaspi_return_t sum_twice(float *weights, uint64_t many, float *bias, uint64_t few, int rounds) {
 *   gaspi_coll_request_t requests[2];
 *   gaspi_return_t code;
 *   code = gaspi_coll_allreduce_init(GASPI_COLL_IN_PLACE, weights, many, GASPI_COLL_TYPE_F32,
 *                                    GASPI_COLL_OP_AVERAGE, GASPI_GROUP_ALL, NULL, &requests[0],
 *                                    GASPI_BLOCK);
 *   if (code != GASPI_SUCCESS) return code;
 *   code = gaspi_coll_allreduce_init(GASPI_COLL_IN_PLACE, bias, few, GASPI_COLL_TYPE_F32,
 *                                    GASPI_COLL_OP_AVERAGE, GASPI_GROUP_ALL, NULL, &requests[1],
 *                                    GASPI_BLOCK);
 *   while (code == GASPI_SUCCESS && rounds-- > 0) {
 *     int first = rand() % 2;
 *     code = gaspi_coll_start(requests[first]);
 *     if (code == GASPI_SUCCESS) code = gaspi_coll_start(requests[1 - first]);
 *     if (code == GASPI_SUCCESS) code = gaspi_coll_wait_all(2, requests, GASPI_BLOCK);
 *   }
 *   if (code == GASPI_SUCCESS) code = gaspi_coll_free(requests[0]);
 *   if (code == GASPI_SUCCESS) code = gaspi_coll_free(requests[1]);
 *   return code;
 * }
 * @endcode
 */

/**
 * Starts an operation that gaspi_coll_X_init prepared and that is not under way. Local.
 * @param request  the operation
 * @return GASPI_SUCCESS; GASPI_ERROR if it is under way, was not prepared or does not exist
 */
gaspi_return_t gaspi_coll_start(gaspi_coll_request_t request);

/**
 * Drives all operations of this rank and tells whether one of them has ended. Does not wait. A
 * prepared operation that is not under way has ended.
 * @param request  the operation
 * @param done     out: 1 if it has ended, else 0
 * @return GASPI_SUCCESS; GASPI_ERROR if it failed, which ends it too
 */
gaspi_return_t gaspi_coll_test(gaspi_coll_request_t request, int *done);

/**
 * Waits for the end of an operation. After GASPI_TIMEOUT it is under way as before. A prepared
 * operation that is not under way has ended.
 * @param request  the operation
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERROR if it failed, which ends it too
 */
gaspi_return_t gaspi_coll_wait(gaspi_coll_request_t request, gaspi_timeout_t timeout);

/**
 * Waits until several operations have ended, also where one fails; the code is that of the first
 * that failed. Requests that end and were not prepared are set to GASPI_COLL_REQUEST_NULL, so that
 * the same call continues after GASPI_TIMEOUT.
 * @param num       number of requests
 * @param requests  the operations; GASPI_COLL_REQUEST_NULL is skipped
 * @return GASPI_SUCCESS; GASPI_TIMEOUT if some are still under way and none failed; GASPI_ERROR
 */
gaspi_return_t gaspi_coll_wait_all(gaspi_size_t num, gaspi_coll_request_t *requests,
                                   gaspi_timeout_t timeout);

/**
 * Frees a prepared operation. Local.
 * @param request  the operation
 * @return GASPI_SUCCESS; GASPI_ERROR if it is under way or does not exist
 */
gaspi_return_t gaspi_coll_free(gaspi_coll_request_t request);

/* ---- Reductions of the program ----
 *
 * Example, sums of complex numbers:
 *
 * @code
 * gaspi_return_t add_complex(const void *left, const void *right, void *result, uint64_t count,
 *                            gaspi_size_t element_size, void *state) {
 *   const double *one = (const double *)left, *two = (const double *)right;
 *   double *sum = (double *)result;
 *   (void)element_size;
 *   (void)state;
 *   for (uint64_t at = 0; at < 2 * count; at++) sum[at] = one[at] + two[at];
 *   return GASPI_SUCCESS;
 * }
 *
 * gaspi_return_t sum_complex(double *numbers, uint64_t count) {
 *   gaspi_coll_op_t op;
 *   gaspi_return_t code =
 *       gaspi_coll_op_create(add_complex, NULL, 2 * sizeof(double), 0, &op);
 *   if (code != GASPI_SUCCESS) return code;
 *   code = gaspi_coll_allreduce(GASPI_COLL_IN_PLACE, numbers, count, GASPI_COLL_TYPE_USER, op,
 *                               GASPI_GROUP_ALL, NULL, GASPI_BLOCK);
 *   gaspi_coll_op_free(op);
 *   return code;
 * }
 * @endcode
 */

/**
 * Makes an operation of a function. Local; every rank that takes part makes one, with the same size
 * and flags.
 * @param function      combines elements
 * @param state         handed to it; may be NULL
 * @param element_size  bytes of an element, at least 1
 * @param flags         0, or GASPI_COLL_OP_ORDERED, GASPI_COLL_OP_BACKGROUND or both
 * @param op            out: for elements of type GASPI_COLL_TYPE_USER
 * @return GASPI_SUCCESS; GASPI_ERR_INV_SIZE; GASPI_ERROR for other flags
 */
gaspi_return_t gaspi_coll_op_create(gaspi_coll_reduce_function_t function, void *state,
                                    gaspi_size_t element_size, gaspi_uint flags,
                                    gaspi_coll_op_t *op);

/**
 * Frees an operation that gaspi_coll_op_create made. Local. Collective operations that were started
 * or prepared with it still use its function and state.
 * @param op  the operation
 * @return GASPI_SUCCESS; GASPI_ERROR if it does not exist
 */
gaspi_return_t gaspi_coll_op_free(gaspi_coll_op_t op);

/* ---- Choice of algorithms ---- */

/**
 * Names of the algorithms of an operation, with commas between them, for gaspi_coll_options_t. Not
 * every algorithm serves every group, count and type; one that does not is GASPI_ERROR in the call
 * that asks for it. May be called at any time.
 * @param operation  the operation without gaspi_coll_, such as "allreduce"
 * @param names      where to; a zero byte ends it
 * @param size       bytes at `names`
 * @return GASPI_SUCCESS; GASPI_ERR_INV_SIZE if they do not fit; GASPI_ERROR if there is no such
 *         operation
 */
gaspi_return_t gaspi_coll_algorithms(const char *operation, char *names, gaspi_size_t size);

/* ---- Fused buffers ----
 *
 * Many tensors, handed over in any order and from any thread, are summed over all ranks of a group
 * in few all-reduces, while the program still computes the others: the gradients of a training
 * step.
 *
 * All ranks declare the same tensors once, together, with gaspi_fusion_create. They are laid out in
 * buckets: a bucket begins with a tensor and gets the next one of the same type while it has fewer
 * bytes than the threshold. In each step every rank submits each tensor. The last tensor of a
 * bucket starts its all-reduce. Of many long ones by messages some begin when others have ended, in
 * the order of their last tensors. Ranks may submit in different orders. Nothing but these
 * all-reduces is sent. A tensor may be submitted again when its bucket has ended.
 *
 * Data may lie anywhere and is copied once; tensors that are computed in their own place
 * (gaspi_fusion_tensor_ptr) are not. Sums are copied out (gaspi_fusion_wait), or lent where they
 * lie (gaspi_fusion_result) until they are released: if a tensor is submitted before, its bucket
 * works in other memory for that step.
 *
 * Where F32 travels as F16 or BF16, contributions of a rank are added up in F32, in memory of 4
 * bytes for each element, and their sum is rounded once.
 *
 * When a rank dies, what is pending ends with an error that names it. After any error that is not
 * GASPI_TIMEOUT and not about an argument, the fused buffer can only be freed; one on a new group
 * works. Tensors are numbered from 0 as they were declared, buckets from 0 as they were made.
 *
 * Example:
 *
 * @code
 * gaspi_return_t sum_gradients(float *weights, const uint64_t weights_num, float *bias,
 *                              const uint64_t bias_num, unsigned steps) {
 *   const gaspi_fusion_tensor_t tensors[] = {{weights_num, GASPI_COLL_TYPE_F32, 0},
 *                                            {bias_num, GASPI_COLL_TYPE_F32, 0}};
 *   gaspi_fusion_options_t options = GASPI_FUSION_OPTIONS_INIT;
 *   gaspi_fusion_t fusion = 0;
 *   gaspi_return_t code;
 *
 *   options.op = GASPI_COLL_OP_AVERAGE;
 *   options.order = GASPI_FUSION_REVERSE;
 *   code = gaspi_fusion_create(tensors, 2, GASPI_GROUP_ALL, &options, &fusion, GASPI_BLOCK);
 *   if (code != GASPI_SUCCESS) return code;
 *   while (code == GASPI_SUCCESS && steps-- > 0) {
 *     code = gaspi_fusion_submit(fusion, 1, bias, 1.0);
 *     if (code == GASPI_SUCCESS) code = gaspi_fusion_submit(fusion, 0, weights, 1.0);
 *     if (code == GASPI_SUCCESS) code = gaspi_fusion_wait(fusion, 0, weights, GASPI_BLOCK);
 *     if (code == GASPI_SUCCESS) code = gaspi_fusion_wait(fusion, 1, bias, GASPI_BLOCK);
 *   }
 *   return code == GASPI_SUCCESS ? gaspi_fusion_free(fusion) : code;
 * }
 * @endcode
 */

/** A fused buffer. Never 0; its number is not used again. */
typedef uint64_t gaspi_fusion_t;

/** A tensor of a fused buffer. */
typedef struct gaspi_fusion_tensor {
  uint64_t count;                 /**< elements; one without needs no submit and has no bucket */
  gaspi_coll_datatype_t datatype; /**< their type, not GASPI_COLL_TYPE_USER */
  gaspi_uint reserved;            /**< 0 */
} gaspi_fusion_tensor_t;

/** The order in which tensors are put into buckets. */
enum {
  GASPI_FUSION_DECLARED = 0, /**< as they are declared */
  GASPI_FUSION_REVERSE = 1   /**< the last one first, as gradients are computed */
};

/**
 * Options of a fused buffer; NULL stands for the initial values. All but `contributions` and
 * `background` are the same on all ranks. A later version of this header may append fields.
 */
typedef struct gaspi_fusion_options {
  size_t size;              /**< sizeof(gaspi_fusion_options_t) */
  gaspi_coll_op_t op;       /**< GASPI_COLL_OP_SUM, _AVERAGE (over the ranks), _MIN or _MAX */
  gaspi_size_t threshold;   /**< a bucket grows while it has fewer bytes; 0: a tensor for each */
  gaspi_size_t limit;       /**< most bytes of a bucket of several tensors; 0: any */
  const char *algorithm;    /**< a name of gaspi_coll_algorithms("allreduce"); NULL: chosen */
  gaspi_uint order;         /**< GASPI_FUSION_DECLARED or _REVERSE */
  gaspi_uint contributions; /**< how often this rank submits each tensor in a step, 1 to 32767 */
  gaspi_uint wire;          /**< GASPI_COLL_TYPE_F16 or _BF16: F32 travels so; 0: as it is */
  gaspi_uint background;    /**< 1: a thread of the library carries all-reduces on too */
  gaspi_uint mode;          /**< GASPI_COLL_MODE_DEFAULT, _FAST or _STABLE */
  gaspi_uint reserved;      /**< 0 */
} gaspi_fusion_options_t;

/** The initial values: gaspi_fusion_options_t options = GASPI_FUSION_OPTIONS_INIT; */
#define GASPI_FUSION_OPTIONS_INIT \
  {sizeof(gaspi_fusion_options_t), GASPI_COLL_OP_SUM, 32768, 0, NULL, GASPI_FUSION_DECLARED, 1, 0, \
   1, GASPI_COLL_MODE_DEFAULT, 0}

/**
 * Is told of a bucket that has ended, or failed: `outcome` is GASPI_SUCCESS or the code of the
 * error, whose words gaspi_error_detail gives. Called by whatever threads find out, several at a
 * time, one of the library among them. May submit, test and take results of what has ended. Other
 * procedures that wait at most a timeout, of any header, are GASPI_ERROR there at once and begin
 * nothing, unless the timeout is GASPI_TEST; so are gaspi_fusion_free and gaspi_proc_term.
 */
typedef void (*gaspi_fusion_function_t)(gaspi_fusion_t fusion, gaspi_size_t bucket,
                                        gaspi_return_t outcome, void *state);

/**
 * Makes a fused buffer, together with all ranks of the group. After GASPI_TIMEOUT the same call
 * continues it.
 * @param tensors  `num` tensors, the same on all ranks
 * @param num      at least 1
 * @param options  NULL for the initial values
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERR_NULLPTR; GASPI_ERR_INV_NUM if there are no
 *         tensors, or too many elements; GASPI_ERR_MEMALLOC if they do not fit; GASPI_ERROR, on
 *         all ranks, if they declare different tensors (the words name the first one) or options
 */
gaspi_return_t gaspi_fusion_create(const gaspi_fusion_tensor_t *tensors, gaspi_size_t num,
                                   gaspi_group_t group, const gaspi_fusion_options_t *options,
                                   gaspi_fusion_t *fusion, gaspi_timeout_t timeout);

/**
 * Writes `data` times `scale` to the place of a tensor, or adds it to what this rank has submitted
 * in this step before, if the options say so. The last tensor of a bucket starts its all-reduce,
 * or hands it over to begin when fewer bytes are under way.
 * Never waits for other ranks; any thread may call it.
 * @param data   as many elements as the tensor has, in its type; free again after the call. Not in
 *               the fused buffer, unless it is the place of this tensor
 * @param scale  for integers an integer; for F16, BF16 and F32 it is rounded to F32
 * @return GASPI_SUCCESS; GASPI_ERR_NULLPTR; GASPI_ERR_INV_NUM if there is no such tensor, or it was
 *         submitted in this step; GASPI_ERR_INV_SIZE if the data overlaps other places;
 *         GASPI_ERROR, also for a second contribution from the tensor's own place, which holds the
 *         first
 */
gaspi_return_t gaspi_fusion_submit(gaspi_fusion_t fusion, gaspi_size_t tensor, const void *data,
                                   double scale);

/**
 * Tells whether the step has ended in which a tensor was submitted last, and then copies its sum.
 * @param result  as for gaspi_fusion_wait
 * @param done    1 if it has ended, else 0
 * @return GASPI_SUCCESS; GASPI_ERR_NULLPTR; GASPI_ERR_INV_NUM; GASPI_ERR_INV_SIZE; GASPI_ERROR
 */
gaspi_return_t gaspi_fusion_test(gaspi_fusion_t fusion, gaspi_size_t tensor, void *result,
                                 int *done);

/**
 * Waits until the step has ended in which a tensor was submitted last, and copies its sum. If that
 * takes GASPI_STALL_WARNING seconds (60), the log says which ranks have not submitted which tensors
 * of its bucket.
 * @param result  where to; NULL: nothing is copied. Not in the fused buffer, unless it is the place
 *                of this tensor (gaspi_fusion_tensor_ptr)
 * @return GASPI_SUCCESS; GASPI_TIMEOUT, all goes on; GASPI_ERR_INV_NUM; GASPI_ERR_INV_SIZE at once,
 *         and nothing is written, if `result` overlaps other places; GASPI_ERROR
 */
gaspi_return_t gaspi_fusion_wait(gaspi_fusion_t fusion, gaspi_size_t tensor, void *result,
                                 gaspi_timeout_t timeout);

/**
 * Waits like gaspi_fusion_wait and lends the sum where it lies. It does not change until it is
 * released as often as it was lent.
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERR_NULLPTR; GASPI_ERR_INV_NUM; GASPI_ERROR
 */
gaspi_return_t gaspi_fusion_result(gaspi_fusion_t fusion, gaspi_size_t tensor, const void **result,
                                   gaspi_timeout_t timeout);

/**
 * Takes back what gaspi_fusion_result has lent.
 * @return GASPI_SUCCESS; GASPI_ERR_INV_NUM if nothing of the tensor is lent there
 */
gaspi_return_t gaspi_fusion_release(gaspi_fusion_t fusion, gaspi_size_t tensor,
                                    const void *result);

/**
 * The place of a tensor in the fused buffer, aligned to 64 bytes and always the same. The program
 * may write there from the end of a step until it submits the tensor again. Unless results of the
 * bucket are lent when a step begins, its sum comes there too; that of an F32 which travels as F16
 * or BF16 only where this is the result of gaspi_fusion_wait. A result that is lent there changes
 * if the program writes there.
 * @return GASPI_SUCCESS; GASPI_ERR_NULLPTR; GASPI_ERR_INV_NUM
 */
gaspi_return_t gaspi_fusion_tensor_ptr(gaspi_fusion_t fusion, gaspi_size_t tensor, void **pointer);

/**
 * Waits for a bucket that has ended and was not given here since: each once in a step.
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERR_NULLPTR; GASPI_ERROR, at once also if no tensor
 *         has elements: then there are no buckets
 */
gaspi_return_t gaspi_fusion_next(gaspi_fusion_t fusion, gaspi_size_t *bucket,
                                 gaspi_timeout_t timeout);

/**
 * Has a function told of each bucket that ends from now on, or that fails. A former function, and
 * its state, are not used any more when this returns: it waits for all threads that are in it.
 * Called from within a function that is told of ends it waits for all but the calling thread, and
 * but those that have come here before, from within one too, and still wait. So none waits for
 * ever that holds nothing which the function waits for, such as a lock of the program; of several
 * threads that take the same function away at once, the first one to come has the others out of it
 * when it returns.
 * @param function  NULL: none any more
 * @param state     for the function
 * @return GASPI_SUCCESS; GASPI_ERROR
 */
gaspi_return_t gaspi_fusion_on_end(gaspi_fusion_t fusion, gaspi_fusion_function_t function,
                                   void *state);

/**
 * A descriptor that is readable while gaspi_fusion_next has something to tell, for poll(2). It
 * belongs to the fused buffer: only poll it.
 * @return GASPI_SUCCESS; GASPI_ERR_NULLPTR; GASPI_ERR_EMFILE
 */
gaspi_return_t gaspi_fusion_fd(gaspi_fusion_t fusion, int *fd);

/** The number of buckets. @return GASPI_SUCCESS; GASPI_ERR_NULLPTR */
gaspi_return_t gaspi_fusion_buckets(gaspi_fusion_t fusion, gaspi_size_t *num);

/**
 * The bucket of a tensor.
 * @return GASPI_SUCCESS; GASPI_ERR_NULLPTR; GASPI_ERR_INV_NUM, also if it has no elements
 */
gaspi_return_t gaspi_fusion_bucket(gaspi_fusion_t fusion, gaspi_size_t tensor,
                                   gaspi_size_t *bucket);

/**
 * Frees a fused buffer, with all that is lent. What is under way is given up, which is an error on
 * the other ranks; so all free it between steps.
 * @return GASPI_SUCCESS; GASPI_ERROR if it was freed already
 */
gaspi_return_t gaspi_fusion_free(gaspi_fusion_t fusion);

/* ==== The same under their profiling names, as PGASPI.h for the procedures of GASPI.h ==== */
gaspi_return_t pgaspi_error_detail(char *text, gaspi_size_t size);
gaspi_return_t pgaspi_coll_allreduce(const void *send, void *receive, uint64_t count,
                                     gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                     gaspi_group_t group, const gaspi_coll_options_t *options,
                                     gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_allreduce_start(const void *send, void *receive, uint64_t count,
                                           gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                           gaspi_group_t group,
                                           const gaspi_coll_options_t *options,
                                           gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_allreduce_init(const void *send, void *receive, uint64_t count,
                                          gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                          gaspi_group_t group, const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_reduce(const void *send, void *receive, uint64_t count,
                                  gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                  gaspi_rank_t root, gaspi_group_t group,
                                  const gaspi_coll_options_t *options, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_reduce_start(const void *send, void *receive, uint64_t count,
                                        gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                        gaspi_rank_t root, gaspi_group_t group,
                                        const gaspi_coll_options_t *options,
                                        gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_reduce_init(const void *send, void *receive, uint64_t count,
                                       gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                       gaspi_rank_t root, gaspi_group_t group,
                                       const gaspi_coll_options_t *options,
                                       gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_broadcast(const void *send, void *receive, uint64_t count,
                                     gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                     gaspi_group_t group, const gaspi_coll_options_t *options,
                                     gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_broadcast_start(const void *send, void *receive, uint64_t count,
                                           gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                           gaspi_group_t group,
                                           const gaspi_coll_options_t *options,
                                           gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_broadcast_init(const void *send, void *receive, uint64_t count,
                                          gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                          gaspi_group_t group, const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_broadcast_list(const gaspi_coll_piece_t *pieces, gaspi_size_t num,
                                          gaspi_rank_t root, gaspi_group_t group,
                                          const gaspi_coll_options_t *options,
                                          gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_broadcast_list_start(const gaspi_coll_piece_t *pieces, gaspi_size_t num,
                                                gaspi_rank_t root, gaspi_group_t group,
                                                const gaspi_coll_options_t *options,
                                                gaspi_coll_request_t *request,
                                                gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_reduce_scatter(const void *send, void *receive, uint64_t count,
                                          gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                          gaspi_group_t group, const gaspi_coll_options_t *options,
                                          gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_reduce_scatter_start(const void *send, void *receive, uint64_t count,
                                                gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                                gaspi_group_t group,
                                                const gaspi_coll_options_t *options,
                                                gaspi_coll_request_t *request,
                                                gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_reduce_scatter_init(const void *send, void *receive, uint64_t count,
                                               gaspi_coll_datatype_t datatype, gaspi_coll_op_t op,
                                               gaspi_group_t group,
                                               const gaspi_coll_options_t *options,
                                               gaspi_coll_request_t *request,
                                               gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_allgather(const void *send, void *receive, uint64_t count,
                                     gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                     const gaspi_coll_options_t *options, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_allgather_start(const void *send, void *receive, uint64_t count,
                                           gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                           const gaspi_coll_options_t *options,
                                           gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_allgather_init(const void *send, void *receive, uint64_t count,
                                          gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                          const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_allgatherv(const void *send, void *receive, const uint64_t *counts,
                                      const uint64_t *displacements,
                                      gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                      const gaspi_coll_options_t *options,
                                      gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_allgatherv_start(const void *send, void *receive,
                                            const uint64_t *counts, const uint64_t *displacements,
                                            gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                            const gaspi_coll_options_t *options,
                                            gaspi_coll_request_t *request,
                                            gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_allgatherv_init(const void *send, void *receive, const uint64_t *counts,
                                           const uint64_t *displacements,
                                           gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                           const gaspi_coll_options_t *options,
                                           gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_gather(const void *send, void *receive, uint64_t count,
                                  gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                  gaspi_group_t group, const gaspi_coll_options_t *options,
                                  gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_gather_start(const void *send, void *receive, uint64_t count,
                                        gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                        gaspi_group_t group, const gaspi_coll_options_t *options,
                                        gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_gather_init(const void *send, void *receive, uint64_t count,
                                       gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                       gaspi_group_t group, const gaspi_coll_options_t *options,
                                       gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_scatter(const void *send, void *receive, uint64_t count,
                                   gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                   gaspi_group_t group, const gaspi_coll_options_t *options,
                                   gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_scatter_start(const void *send, void *receive, uint64_t count,
                                         gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                         gaspi_group_t group, const gaspi_coll_options_t *options,
                                         gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_scatter_init(const void *send, void *receive, uint64_t count,
                                        gaspi_coll_datatype_t datatype, gaspi_rank_t root,
                                        gaspi_group_t group, const gaspi_coll_options_t *options,
                                        gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_alltoall(const void *send, void *receive, uint64_t count,
                                    gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                    const gaspi_coll_options_t *options, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_alltoall_start(const void *send, void *receive, uint64_t count,
                                          gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                          const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_alltoall_init(const void *send, void *receive, uint64_t count,
                                         gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                         const gaspi_coll_options_t *options,
                                         gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_alltoallv(const void *send, const uint64_t *send_counts,
                                     const uint64_t *send_displacements, void *receive,
                                     const uint64_t *receive_counts,
                                     const uint64_t *receive_displacements,
                                     gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                     const gaspi_coll_options_t *options, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_alltoallv_start(const void *send, const uint64_t *send_counts,
                                           const uint64_t *send_displacements, void *receive,
                                           const uint64_t *receive_counts,
                                           const uint64_t *receive_displacements,
                                           gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                           const gaspi_coll_options_t *options,
                                           gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_alltoallv_init(const void *send, const uint64_t *send_counts,
                                          const uint64_t *send_displacements, void *receive,
                                          const uint64_t *receive_counts,
                                          const uint64_t *receive_displacements,
                                          gaspi_coll_datatype_t datatype, gaspi_group_t group,
                                          const gaspi_coll_options_t *options,
                                          gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_barrier(gaspi_group_t group, const gaspi_coll_options_t *options,
                                   gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_barrier_start(gaspi_group_t group, const gaspi_coll_options_t *options,
                                         gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_barrier_init(gaspi_group_t group, const gaspi_coll_options_t *options,
                                        gaspi_coll_request_t *request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_start(gaspi_coll_request_t request);
gaspi_return_t pgaspi_coll_test(gaspi_coll_request_t request, int *done);
gaspi_return_t pgaspi_coll_wait(gaspi_coll_request_t request, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_wait_all(gaspi_size_t num, gaspi_coll_request_t *requests,
                                    gaspi_timeout_t timeout);
gaspi_return_t pgaspi_coll_free(gaspi_coll_request_t request);
gaspi_return_t pgaspi_coll_op_create(gaspi_coll_reduce_function_t function, void *state,
                                     gaspi_size_t element_size, gaspi_uint flags,
                                     gaspi_coll_op_t *op);
gaspi_return_t pgaspi_coll_op_free(gaspi_coll_op_t op);
gaspi_return_t pgaspi_coll_algorithms(const char *operation, char *names, gaspi_size_t size);
gaspi_return_t pgaspi_fusion_create(const gaspi_fusion_tensor_t *tensors, gaspi_size_t num,
                                    gaspi_group_t group, const gaspi_fusion_options_t *options,
                                    gaspi_fusion_t *fusion, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_fusion_submit(gaspi_fusion_t fusion, gaspi_size_t tensor, const void *data,
                                    double scale);
gaspi_return_t pgaspi_fusion_test(gaspi_fusion_t fusion, gaspi_size_t tensor, void *result,
                                  int *done);
gaspi_return_t pgaspi_fusion_wait(gaspi_fusion_t fusion, gaspi_size_t tensor, void *result,
                                  gaspi_timeout_t timeout);
gaspi_return_t pgaspi_fusion_result(gaspi_fusion_t fusion, gaspi_size_t tensor,
                                    const void **result, gaspi_timeout_t timeout);
gaspi_return_t pgaspi_fusion_release(gaspi_fusion_t fusion, gaspi_size_t tensor,
                                     const void *result);
gaspi_return_t pgaspi_fusion_tensor_ptr(gaspi_fusion_t fusion, gaspi_size_t tensor,
                                        void **pointer);
gaspi_return_t pgaspi_fusion_next(gaspi_fusion_t fusion, gaspi_size_t *bucket,
                                  gaspi_timeout_t timeout);
gaspi_return_t pgaspi_fusion_on_end(gaspi_fusion_t fusion, gaspi_fusion_function_t function,
                                    void *state);
gaspi_return_t pgaspi_fusion_fd(gaspi_fusion_t fusion, int *fd);
gaspi_return_t pgaspi_fusion_buckets(gaspi_fusion_t fusion, gaspi_size_t *num);
gaspi_return_t pgaspi_fusion_bucket(gaspi_fusion_t fusion, gaspi_size_t tensor,
                                    gaspi_size_t *bucket);
gaspi_return_t pgaspi_fusion_free(gaspi_fusion_t fusion);

#ifdef __cplusplus
}
#endif

#endif /* GASPI_COLLECTIVES_H */
