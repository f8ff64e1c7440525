/*
 * GASPI.h: the procedures of the Global Address Space Programming Interface.
 *
 * "GASPI 17.1" is the standard (https://gaspi-forum.github.io); its sections are cited by title.
 *
 * What holds for every procedure here and is not repeated:
 *  - Timeouts are milliseconds. GASPI_TEST makes one attempt and never waits, GASPI_BLOCK waits as
 *    long as it takes. No call outlives its timeout, whatever other ranks do. A call that needs a
 *    rank which has died or left ends with GASPI_ERROR.
 *  - Sizes and offsets are bytes; an offset counts from the start of its segment.
 *  - Any thread may call any procedure at any time, but no signal handler may: set a flag there, or
 *    send the signal to a thread that waits for it (sigwait).
 *  - Arguments are checked. A NULL pointer is GASPI_ERR_NULLPTR. A group, rank, segment, queue or
 *    notification that does not exist is GASPI_ERR_INV_GROUP, _RANK, _SEG, _QUEUE or _NOTIF_ID. A
 *    call before gaspi_proc_init, after gaspi_proc_term or in a forked child is GASPI_ERR_NOINIT;
 *    configuration, version, texts of errors, clocks and statistics need no job. Lists of codes
 *    name these only where there is more to say.
 *  - GASPI_TIMEOUT and GASPI_QUEUE_FULL are ordinary results. After any other code than
 *    GASPI_SUCCESS, gaspi_error_detail (gaspi_collectives.h) tells the cause in words.
 *  - A procedure that does not succeed leaves its out-arguments as they were.
 *  - Every procedure exists as pgaspi_* too (PGASPI.h), for profilers that replace gaspi_*.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GASPI_H
#define GASPI_H

#include "GASPI_types.h"

#include "GASPI_Ext.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configuration and process management (GASPI 17.1, Execution model) ---- */

/**
 * Reads the configuration. After gaspi_proc_init that is the one in use, before it what
 * gaspi_config_set set, else the defaults.
 * @param config  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_config_get(gaspi_config_t *config);

/**
 * Sets the configuration for the next gaspi_proc_init. Start from gaspi_config_get.
 * @param config  fields and their limits: GASPI_types.h
 * @return GASPI_SUCCESS; GASPI_ERR_CONFIG if a field is not accepted (nothing is changed);
 *         GASPI_ERR_INITED after gaspi_proc_init
 */
gaspi_return_t gaspi_config_set(gaspi_config_t config);

/**
 * Version of the interface, 1.6.
 * @param version  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_version(float *version);

/**
 * Joins the job that the environment describes; without one, becomes a job of one rank. Collective
 * over all ranks of the job.
 * @param timeout  after GASPI_TIMEOUT the same call continues
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERR_INITED if joined already; GASPI_ERR_ENV if the
 *         environment variables of the job are incomplete or contradict each other;
 *         GASPI_ERR_CONFIG if the ranks' configurations differ; GASPI_ERROR if a rank ended before
 *         it joined
 */
gaspi_return_t gaspi_proc_init(gaspi_timeout_t timeout);

/**
 * Leaves the job: completes what was posted, frees segments, groups and connections. Local; other
 * ranks keep working. gaspi_proc_init may be called again afterwards. A gaspi_proc_init that has
 * timed out is given up.
 * @return GASPI_SUCCESS, GASPI_TIMEOUT
 */
gaspi_return_t gaspi_proc_term(gaspi_timeout_t timeout);

/**
 * Rank of this process.
 * @param rank  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_proc_rank(gaspi_rank_t *rank);

/**
 * Number of ranks of the job.
 * @param proc_num  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_proc_num(gaspi_rank_t *proc_num);

/**
 * Ends another rank's process at once, with status 255.
 * @param rank  not oneself
 * @return GASPI_SUCCESS once it has ended; GASPI_TIMEOUT; GASPI_ERR_INV_RANK; GASPI_ERROR
 */
gaspi_return_t gaspi_proc_kill(gaspi_rank_t rank, gaspi_timeout_t timeout);

/**
 * Connects to another rank; the call of one side is enough. Where the ranks are connected already,
 * it succeeds. It sets the rank's state to GASPI_STATE_HEALTHY again after a broken path works.
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_ERROR
 */
gaspi_return_t gaspi_connect(gaspi_rank_t rank, gaspi_timeout_t timeout);

/**
 * Gives up the connection to another rank and frees what it uses. Succeeds where there is none.
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_ERROR
 */
gaspi_return_t gaspi_disconnect(gaspi_rank_t rank, gaspi_timeout_t timeout);

/**
 * This rank's view of all ranks: GASPI_STATE_CORRUPT for those to which a request failed or whose
 * process died.
 * @param state_vector  out: one gaspi_state_t per rank of the job
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_state_vec_get(gaspi_state_vector_t state_vector);

/**
 * When ranks connect, as set by the configuration.
 * @param build_infrastructure  out: a gaspi_topology_t
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_build_infrastructure(gaspi_number_t *build_infrastructure);

/* ---- Groups (GASPI 17.1, Groups) ---- */

/**
 * Creates an empty group. Local.
 * @param group  out: the lowest free id
 * @return GASPI_SUCCESS; GASPI_ERR_MANY_GRP if group_max groups exist
 */
gaspi_return_t gaspi_group_create(gaspi_group_t *group);

/**
 * Deletes a group; its id may be used again. Local.
 * @return GASPI_SUCCESS; GASPI_ERR_INV_GROUP, for GASPI_GROUP_ALL too
 */
gaspi_return_t gaspi_group_delete(gaspi_group_t group);

/**
 * Adds a rank to a group, before its commit. Local.
 * @return GASPI_SUCCESS; GASPI_ERR_INV_RANK, for a rank that is in the group too;
 *         GASPI_ERR_INV_GROUP; GASPI_ERR_ACTIVE_COLL while another thread commits the group
 */
gaspi_return_t gaspi_group_add(gaspi_group_t group, gaspi_rank_t rank);

/**
 * Makes a group ready for collectives. Collective over its members, which must have added the same
 * ranks to the same id: gaspi_group_create gives the lowest free one, so members create and delete
 * groups in the same order. Lists are compared while ranks wait: one that names no others ends at
 * once.
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERR_INV_GROUP if this rank is no member; GASPI_ERROR,
 *         on all members that wait, if their lists differ
 */
gaspi_return_t gaspi_group_commit(gaspi_group_t group, gaspi_timeout_t timeout);

/**
 * Number of groups of this rank, GASPI_GROUP_ALL included.
 * @param group_num  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_group_num(gaspi_number_t *group_num);

/**
 * Number of ranks in a group.
 * @param group_size  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_group_size(gaspi_group_t group, gaspi_number_t *group_size);

/**
 * Ranks in a group, ascending.
 * @param group_ranks  out: room for gaspi_group_size ranks
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_group_ranks(gaspi_group_t group, gaspi_rank_t *group_ranks);

/**
 * Largest number of groups.
 * @param group_max  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_group_max(gaspi_number_t *group_max);

/* ---- Segments (GASPI 17.1, GASPI segments) ---- */

/**
 * Allocates a segment, page aligned, with all its notifications at 0. Local: other ranks reach it
 * after gaspi_segment_register.
 * @param segment_id    a free id below segment_max
 * @param size          bytes, not 0
 * @param alloc_policy  whether the memory is zeroed
 * @return GASPI_SUCCESS; GASPI_ERR_INV_SEG if the id is in use or out of range;
 *         GASPI_ERR_INV_SEGSIZE; GASPI_ERR_MANY_SEG; GASPI_ERR_MEMALLOC
 */
gaspi_return_t gaspi_segment_alloc(gaspi_segment_id_t segment_id, gaspi_size_t size,
                                   gaspi_alloc_t alloc_policy);

/**
 * Deletes a segment of this rank. Local; the id may be used again. Requests of other ranks that
 * arrive later fail at their initiator.
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_segment_delete(gaspi_segment_id_t segment_id);

/**
 * Makes a segment of this rank accessible to another rank. May be repeated.
 * @param segment_id  a segment of this rank
 * @param rank        the rank that may access it from now on
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_ERROR
 */
gaspi_return_t gaspi_segment_register(gaspi_segment_id_t segment_id, gaspi_rank_t rank,
                                      gaspi_timeout_t timeout);

/**
 * gaspi_segment_alloc, gaspi_segment_register with all members of the group, and a barrier.
 * Collective over the group; sizes may differ between ranks.
 * @return as gaspi_segment_alloc, and GASPI_TIMEOUT, GASPI_ERROR, GASPI_ERR_INV_GROUP
 */
gaspi_return_t gaspi_segment_create(gaspi_segment_id_t segment_id, gaspi_size_t size,
                                    gaspi_group_t group, gaspi_timeout_t timeout,
                                    gaspi_alloc_t alloc_policy);

/**
 * gaspi_segment_alloc on memory of the program, which has to outlive the segment. Segments may
 * share memory.
 * @param pointer             start of the memory
 * @param size                bytes, not 0
 * @param memory_description  ignored
 * @return as gaspi_segment_alloc; GASPI_ERR_INV_SEGSIZE also if not all of it is mapped memory
 */
gaspi_return_t gaspi_segment_bind(gaspi_segment_id_t segment_id, gaspi_pointer_t pointer,
                                  gaspi_size_t size,
                                  gaspi_memory_description_t memory_description);

/**
 * gaspi_segment_create on memory of the program, as gaspi_segment_bind.
 * @return as gaspi_segment_create
 */
gaspi_return_t gaspi_segment_use(gaspi_segment_id_t segment_id, gaspi_pointer_t pointer,
                                 gaspi_size_t size, gaspi_group_t group, gaspi_timeout_t timeout,
                                 gaspi_memory_description_t memory_description);

/**
 * Number of segments of this rank.
 * @param segment_num  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_segment_num(gaspi_number_t *segment_num);

/**
 * Ids of this rank's segments, ascending.
 * @param num              gaspi_segment_num
 * @param segment_id_list  out: room for `num` ids
 * @return GASPI_SUCCESS; GASPI_ERROR if `num` is not the number of segments
 */
gaspi_return_t gaspi_segment_list(gaspi_number_t num, gaspi_segment_id_t *segment_id_list);

/**
 * Address of a segment of this rank.
 * @param pointer  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_segment_ptr(gaspi_segment_id_t segment_id, gaspi_pointer_t *pointer);

/**
 * Largest number of segments; ids are below it.
 * @param segment_max  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_segment_max(gaspi_number_t *segment_max);

/* ---- One-sided communication (GASPI 17.1, One-sided communication) ----
 *
 * Common arguments and codes of the requests (write*, read*, notify):
 *   segment_id_local, offset_local    where the data is on this rank
 *   rank                              the other rank; oneself is allowed
 *   segment_id_remote, offset_remote  where the data is there
 *   size                              bytes, at most transfer_size_max; 0 transfers nothing
 *   queue                             the queue; the request takes one slot until gaspi_wait
 *   GASPI_ERR_INV_LOC_OFF, _REM_OFF   an offset is at or behind the end of its segment
 *   GASPI_ERR_INV_COMMSIZE            the range leaves a segment or exceeds transfer_size_max
 *   GASPI_QUEUE_FULL                  no slot is free; returned at once: gaspi_wait, then post
 *                                     again
 * Requests are complete, and their buffers free, when gaspi_wait of their queue succeeds. They make
 * progress without further calls.
 */

/**
 * Posts a write of local data to another rank.
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_QUEUE_FULL, GASPI_ERROR, GASPI_ERR_INV_*
 */
gaspi_return_t gaspi_write(gaspi_segment_id_t segment_id_local, gaspi_offset_t offset_local,
                           gaspi_rank_t rank, gaspi_segment_id_t segment_id_remote,
                           gaspi_offset_t offset_remote, gaspi_size_t size, gaspi_queue_id_t queue,
                           gaspi_timeout_t timeout);

/**
 * Posts a read of another rank's data.
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_QUEUE_FULL, GASPI_ERROR, GASPI_ERR_INV_*
 */
gaspi_return_t gaspi_read(gaspi_segment_id_t segment_id_local, gaspi_offset_t offset_local,
                          gaspi_rank_t rank, gaspi_segment_id_t segment_id_remote,
                          gaspi_offset_t offset_remote, gaspi_size_t size, gaspi_queue_id_t queue,
                          gaspi_timeout_t timeout);

/**
 * Posts several writes to one rank; each entry that is not empty takes a slot.
 * @param num  entries of each array, 1 to rw_list_elem_max
 * @return as gaspi_write; GASPI_ERR_INV_NUM
 */
gaspi_return_t gaspi_write_list(gaspi_number_t num, gaspi_segment_id_t *segment_id_local,
                                gaspi_offset_t *offset_local, gaspi_rank_t rank,
                                gaspi_segment_id_t *segment_id_remote,
                                gaspi_offset_t *offset_remote, gaspi_size_t *size,
                                gaspi_queue_id_t queue, gaspi_timeout_t timeout);

/**
 * Posts several reads from one rank; each entry that is not empty takes a slot.
 * @param num  entries of each array, 1 to rw_list_elem_max
 * @return as gaspi_read; GASPI_ERR_INV_NUM
 */
gaspi_return_t gaspi_read_list(gaspi_number_t num, gaspi_segment_id_t *segment_id_local,
                               gaspi_offset_t *offset_local, gaspi_rank_t rank,
                               gaspi_segment_id_t *segment_id_remote,
                               gaspi_offset_t *offset_remote, gaspi_size_t *size,
                               gaspi_queue_id_t queue, gaspi_timeout_t timeout);

/**
 * Waits until all requests posted to a queue are complete: local buffers may be used again, reads
 * have arrived, writes are visible at their targets.
 * An error reports all requests that have failed so far, and takes them off the queue. Repeat the
 * call until it succeeds, or call gaspi_queue_purge.
 * @return GASPI_SUCCESS; GASPI_TIMEOUT (the rest stays pending); GASPI_ERROR if a request failed
 *         (gaspi_state_vec_get shows to which rank)
 */
gaspi_return_t gaspi_wait(gaspi_queue_id_t queue, gaspi_timeout_t timeout);

/**
 * Posts a notification. It becomes visible after all data posted before to the same rank and queue.
 * @param segment_id_remote   segment of the target whose notification is set
 * @param notification_id     below notification_num
 * @param notification_value  not 0
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_QUEUE_FULL; GASPI_ERROR; GASPI_ERR_INV_NOTIF_VAL;
 *         GASPI_ERR_INV_NOTIF_ID
 */
gaspi_return_t gaspi_notify(gaspi_segment_id_t segment_id_remote, gaspi_rank_t rank,
                            gaspi_notification_id_t notification_id,
                            gaspi_notification_t notification_value, gaspi_queue_id_t queue,
                            gaspi_timeout_t timeout);

/**
 * Waits until one of a range of notifications of an own segment is set. It stays set.
 * @param notification_begin  first id of the range
 * @param notification_num    ids in the range; 0 succeeds at once
 * @param first_id            out: the lowest id that is set
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERR_INV_NOTIF_ID if the range leaves the segment's
 *         notifications
 */
gaspi_return_t gaspi_notify_waitsome(gaspi_segment_id_t segment_id_local,
                                     gaspi_notification_id_t notification_begin,
                                     gaspi_number_t notification_num,
                                     gaspi_notification_id_t *first_id, gaspi_timeout_t timeout);

/**
 * Exchanges a notification of an own segment with 0, atomically. If several threads do so, one of
 * them gets the value.
 * @param old_notification_val  out: the value, 0 if it was not set; may be NULL
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_notify_reset(gaspi_segment_id_t segment_id_local,
                                  gaspi_notification_id_t notification_id,
                                  gaspi_notification_t *old_notification_val);

/**
 * Posts a write and a notification. The notification becomes visible after the data, and after all
 * data posted before to the same rank and queue. Takes one slot. With size 0 it notifies only.
 * @return as gaspi_write and gaspi_notify
 */
gaspi_return_t gaspi_write_notify(gaspi_segment_id_t segment_id_local, gaspi_offset_t offset_local,
                                  gaspi_rank_t rank, gaspi_segment_id_t segment_id_remote,
                                  gaspi_offset_t offset_remote, gaspi_size_t size,
                                  gaspi_notification_id_t notification_id,
                                  gaspi_notification_t notification_value, gaspi_queue_id_t queue,
                                  gaspi_timeout_t timeout);

/**
 * Posts a read; when its data has arrived, notification `notification_id` of the local segment is
 * set to 1. Takes one slot. With size 0 it notifies only.
 * @return as gaspi_read; GASPI_ERR_INV_NOTIF_ID
 */
gaspi_return_t gaspi_read_notify(gaspi_segment_id_t segment_id_local, gaspi_offset_t offset_local,
                                 gaspi_rank_t rank, gaspi_segment_id_t segment_id_remote,
                                 gaspi_offset_t offset_remote, gaspi_size_t size,
                                 gaspi_notification_id_t notification_id, gaspi_queue_id_t queue,
                                 gaspi_timeout_t timeout);

/**
 * gaspi_write_list, and a notification that follows its data and takes one more slot.
 * @param segment_id_notification  segment of the target whose notification is set
 * @return as gaspi_write_list and gaspi_notify
 */
gaspi_return_t gaspi_write_list_notify(
    gaspi_number_t num, gaspi_segment_id_t *segment_id_local, gaspi_offset_t *offset_local,
    gaspi_rank_t rank, gaspi_segment_id_t *segment_id_remote, gaspi_offset_t *offset_remote,
    gaspi_size_t *size, gaspi_segment_id_t segment_id_notification,
    gaspi_notification_id_t notification_id, gaspi_notification_t notification_value,
    gaspi_queue_id_t queue, gaspi_timeout_t timeout);

/**
 * gaspi_read_list; when its data has arrived, a local notification is set to 1. It takes one more
 * slot.
 * @param segment_id_notification  own segment whose notification is set
 * @return as gaspi_read_list; GASPI_ERR_INV_NOTIF_ID
 */
gaspi_return_t gaspi_read_list_notify(
    gaspi_number_t num, gaspi_segment_id_t *segment_id_local, gaspi_offset_t *offset_local,
    gaspi_rank_t rank, gaspi_segment_id_t *segment_id_remote, gaspi_offset_t *offset_remote,
    gaspi_size_t *size, gaspi_segment_id_t segment_id_notification,
    gaspi_notification_id_t notification_id, gaspi_queue_id_t queue, gaspi_timeout_t timeout);

/* ---- Queues (GASPI 17.1, One-sided communication: Communication utilities) ---- */

/**
 * Creates a queue in addition to those of the configuration.
 * @param queue  out: its id
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERROR if gaspi_queue_max queues exist
 */
gaspi_return_t gaspi_queue_create(gaspi_queue_id_t *queue, gaspi_timeout_t timeout);

/**
 * Deletes a queue; its id may be used again. Local.
 * @return GASPI_SUCCESS, GASPI_ERR_INV_QUEUE
 */
gaspi_return_t gaspi_queue_delete(gaspi_queue_id_t queue);

/**
 * Number of requests that were posted and not yet waited for.
 * @param queue_size  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_queue_size(gaspi_queue_id_t queue, gaspi_number_t *queue_size);

/**
 * Number of queues that exist.
 * @param queue_num  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_queue_num(gaspi_number_t *queue_num);

/**
 * Number of requests that fit into a queue.
 * @param queue_size_max  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_queue_size_max(gaspi_number_t *queue_size_max);

/**
 * Largest number of queues.
 * @param queue_max  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_queue_max(gaspi_number_t *queue_max);

/**
 * Empties a queue after a request failed. Whether its requests took effect is unknown.
 * @return GASPI_SUCCESS, GASPI_TIMEOUT
 */
gaspi_return_t gaspi_queue_purge(gaspi_queue_id_t queue, gaspi_timeout_t timeout);

/* ---- Passive communication (GASPI 17.1, Passive communication) ---- */

/**
 * Sends a message and waits until the receiver took it.
 * @param size  bytes, 1 to passive_transfer_size_max
 * @return GASPI_SUCCESS; GASPI_TIMEOUT (the same call continues); GASPI_ERR_INV_COMMSIZE;
 *         GASPI_ERR_INV_LOC_OFF; GASPI_ERROR
 */
gaspi_return_t gaspi_passive_send(gaspi_segment_id_t segment_id_local, gaspi_offset_t offset_local,
                                  gaspi_rank_t rank, gaspi_size_t size, gaspi_timeout_t timeout);

/**
 * Receives a message from any rank. Messages larger than `size` are left for a larger receive.
 * @param rank  out: the rank that sent it
 * @param size  bytes of room
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERR_INV_COMMSIZE; GASPI_ERR_INV_LOC_OFF; GASPI_ERROR
 */
gaspi_return_t gaspi_passive_receive(gaspi_segment_id_t segment_id_local,
                                     gaspi_offset_t offset_local, gaspi_rank_t *rank,
                                     gaspi_size_t size, gaspi_timeout_t timeout);

/**
 * Gives up sends that timed out.
 * @return GASPI_SUCCESS, GASPI_TIMEOUT
 */
gaspi_return_t gaspi_passive_queue_purge(gaspi_timeout_t timeout);

/* ---- Global atomics (GASPI 17.1, Global atomics) ----
 *
 * The value has 8 bytes at a multiple of 8 inside a segment, else GASPI_ERR_UNALIGN_OFF or
 * GASPI_ERR_INV_REM_OFF. Atomic against all other gaspi_atomic_* calls on it. After GASPI_TIMEOUT
 * the operation is under way: the same call continues it, any other one is another operation.
 */

/**
 * Adds to a value of any rank.
 * @param value_add  what to add, modulo 2^64
 * @param value_old  out: the value before
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_ERROR, GASPI_ERR_UNALIGN_OFF, GASPI_ERR_INV_REM_OFF
 */
gaspi_return_t gaspi_atomic_fetch_add(gaspi_segment_id_t segment_id, gaspi_offset_t offset,
                                      gaspi_rank_t rank, gaspi_atomic_value_t value_add,
                                      gaspi_atomic_value_t *value_old, gaspi_timeout_t timeout);

/**
 * Replaces a value of any rank if it equals a comparator.
 * @param comparator  what the value is compared with
 * @param value_new   what it becomes if equal
 * @param value_old   out: the value before
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_ERROR, GASPI_ERR_UNALIGN_OFF, GASPI_ERR_INV_REM_OFF
 */
gaspi_return_t gaspi_atomic_compare_swap(gaspi_segment_id_t segment_id, gaspi_offset_t offset,
                                         gaspi_rank_t rank, gaspi_atomic_value_t comparator,
                                         gaspi_atomic_value_t value_new,
                                         gaspi_atomic_value_t *value_old, gaspi_timeout_t timeout);

/**
 * Largest value that atomics work with.
 * @param max_value  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_atomic_max(gaspi_atomic_value_t *max_value);

/* ---- Collective communication (GASPI 17.1, Collective communication) ----
 *
 * Each group runs one collective at a time. After GASPI_TIMEOUT the same call with the same
 * arguments continues it; another collective of that group is GASPI_ERR_ACTIVE_COLL until then. If
 * the members' calls do not fit together, all of them get GASPI_ERROR.
 */

/**
 * Waits until all members of the group called it.
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_ERR_ACTIVE_COLL, GASPI_ERROR
 */
gaspi_return_t gaspi_barrier(gaspi_group_t group, gaspi_timeout_t timeout);

/**
 * Combines `num` elements of all members, element by element; bitwise the same result everywhere.
 * @param buffer_send     input, anywhere in memory
 * @param buffer_receive  out: result, anywhere in memory; may be `buffer_send`
 * @param num             elements, 1 to allreduce_elem_max
 * @param operation       minimum, maximum or sum
 * @param datatype        element type
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_ERR_INV_NUM, GASPI_ERR_ACTIVE_COLL, GASPI_ERROR
 */
gaspi_return_t gaspi_allreduce(gaspi_pointer_t buffer_send, gaspi_pointer_t buffer_receive,
                               gaspi_number_t num, gaspi_operation_t operation,
                               gaspi_datatype_t datatype, gaspi_group_t group,
                               gaspi_timeout_t timeout);

/**
 * gaspi_allreduce with an operation and elements of the program.
 * @param num               elements
 * @param element_size      bytes of one, at most 16384; `num` of them at most
 *                          gaspi_allreduce_buf_size
 * @param reduce_operation  called in this thread
 * @param reduce_state      handed to it; may be NULL
 * @return as gaspi_allreduce; GASPI_ERR_INV_SIZE; GASPI_ERROR if the operation of a member failed
 */
gaspi_return_t gaspi_allreduce_user(gaspi_pointer_t buffer_send, gaspi_pointer_t buffer_receive,
                                    gaspi_number_t num, gaspi_size_t element_size,
                                    gaspi_reduce_operation_t reduce_operation,
                                    gaspi_reduce_state_t reduce_state, gaspi_group_t group,
                                    gaspi_timeout_t timeout);

/* ---- Limits (GASPI 17.1, GASPI getter functions); the one on lists is in GASPI_Ext.h ---- */

/** Smallest size of a request in bytes. @return GASPI_SUCCESS */
gaspi_return_t gaspi_transfer_size_min(gaspi_size_t *transfer_size_min);

/** Largest size of a request in bytes. @return GASPI_SUCCESS */
gaspi_return_t gaspi_transfer_size_max(gaspi_size_t *transfer_size_max);

/** Number of notifications of a segment. @return GASPI_SUCCESS */
gaspi_return_t gaspi_notification_num(gaspi_number_t *notification_num);

/** Smallest size of a passive message in bytes. @return GASPI_SUCCESS */
gaspi_return_t gaspi_passive_transfer_size_min(gaspi_size_t *passive_transfer_size_min);

/** Largest size of a passive message in bytes. @return GASPI_SUCCESS */
gaspi_return_t gaspi_passive_transfer_size_max(gaspi_size_t *passive_transfer_size_max);

/** Largest input of gaspi_allreduce_user in bytes. @return GASPI_SUCCESS */
gaspi_return_t gaspi_allreduce_buf_size(gaspi_size_t *buf_size);

/** Largest number of elements of gaspi_allreduce. @return GASPI_SUCCESS */
gaspi_return_t gaspi_allreduce_elem_max(gaspi_number_t *elem_max);

/** Network between hosts; GASPI_ETHERNET unless verbs is in use. @return GASPI_SUCCESS */
gaspi_return_t gaspi_network_type(gaspi_network_t *network_type);

/* ---- Environment (GASPI 17.1, GASPI Environmental Management) ---- */

/**
 * Reads the processor's time stamp counter; gaspi_cpu_frequency tells its rate.
 * @param ticks  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_time_ticks(gaspi_cycles_t *ticks);

/**
 * Milliseconds since gaspi_proc_init of this rank; clocks of ranks are not synchronised.
 * @param wtime  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_time_get(gaspi_time_t *wtime);

/**
 * Text of a return code in memory that the caller frees with free(); see gaspi_error_str for one
 * that needs no freeing.
 * @param error_code     any value
 * @param error_message  out
 * @return GASPI_SUCCESS, GASPI_ERR_MEMALLOC
 */
gaspi_return_t gaspi_print_error(gaspi_return_t error_code, gaspi_string_t *error_message);

/* ---- Profiling (GASPI 17.1, Profiling Interface) ---- */

/**
 * Does nothing: a way for programs to talk to a profiler that replaces it.
 * @param argument  anything, NULL too
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_pcontrol(gaspi_pointer_t argument);

/**
 * Sets which counters gaspi_statistic_print_counters shows: those whose verbosity level is at most
 * this one. All counters count at any level.
 * @param verbosity_level  0: none
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_statistic_verbosity_level(gaspi_number_t verbosity_level);

/**
 * Number of counters; they are numbered from 0.
 * @param counter_max  out
 * @return GASPI_SUCCESS
 */
gaspi_return_t gaspi_statistic_counter_max(gaspi_number_t *counter_max);

/**
 * Describes a counter. The texts are constant and not to be freed.
 * @param counter              the counter
 * @param counter_argument     out: what its argument means
 * @param counter_name         out: its name
 * @param counter_description  out: what it counts
 * @param verbosity_level      out: the level from which on it is shown, at least 1
 * @return GASPI_SUCCESS; GASPI_ERROR if there is no such counter
 */
gaspi_return_t gaspi_statistic_counter_info(gaspi_statistic_counter_t counter,
                                            gaspi_statistic_argument_t *counter_argument,
                                            gaspi_string_t *counter_name,
                                            gaspi_string_t *counter_description,
                                            gaspi_number_t *verbosity_level);

/**
 * Reads a counter of this rank.
 * @param argument  a rank, where gaspi_statistic_counter_info says so; else ignored
 * @param value     out
 * @return GASPI_SUCCESS; GASPI_ERROR if there is no such counter; GASPI_ERR_INV_RANK
 */
gaspi_return_t gaspi_statistic_counter_get(gaspi_statistic_counter_t counter,
                                           gaspi_number_t argument, gaspi_ulong *value);

/**
 * Sets a counter of this rank to 0.
 * @return GASPI_SUCCESS; GASPI_ERROR if there is no such counter
 */
gaspi_return_t gaspi_statistic_counter_reset(gaspi_statistic_counter_t counter);

/** Prints all counters of this rank, by gaspi_printf. */
void gaspi_statistic_print_counters(void);

#ifdef __cplusplus
}
#endif

#endif /* GASPI_H */
