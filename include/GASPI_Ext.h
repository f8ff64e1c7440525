/*
 * GASPI_Ext.h: procedures that existing programs use although the standard does not have them.
 *
 * The conventions on return codes at the head of GASPI.h hold here too.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GASPI_EXT_H
#define GASPI_EXT_H

#include "GASPI_types.h"

#if defined(__GNUC__)
#define GASPI_PRINTF_FORMAT(text, first) __attribute__((format(printf, text, first)))
#else
#define GASPI_PRINTF_FORMAT(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Tells whether this process is between gaspi_proc_init and gaspi_proc_term.
 * @param initialized  out: 1 or 0
 * @return GASPI_SUCCESS, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_initialized(gaspi_number_t *initialized);

/**
 * Number of this rank among those of its host, from 0 in the order of ranks.
 * @param local_rank  out
 * @return GASPI_SUCCESS, GASPI_ERR_NOINIT, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_proc_local_rank(gaspi_rank_t *local_rank);

/**
 * Number of ranks of the job that run on this rank's host.
 * @param local_num  out
 * @return GASPI_SUCCESS, GASPI_ERR_NOINIT, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_proc_local_num(gaspi_rank_t *local_num);

/**
 * Frequency of the clock that gaspi_time_ticks counts.
 * @param cpu_mhz  out: MHz
 * @return GASPI_SUCCESS, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_cpu_frequency(gaspi_float *cpu_mhz);

/**
 * printf to the gaspi_logger that runs on the host of rank 0: one datagram of at most 1024 bytes
 * that opens with "[host:rank:local_rank] ". Before gaspi_proc_init it goes to standard output.
 * Nothing is sent if gaspi_config_t.logger is 0.
 */
void gaspi_printf(const char *fmt, ...) GASPI_PRINTF_FORMAT(1, 2);

/** gaspi_printf to the gaspi_logger that runs on the host of `rank`. */
void gaspi_printf_to(gaspi_rank_t rank, const char *fmt, ...) GASPI_PRINTF_FORMAT(2, 3);

/** Prints the cores that the calling thread may run on, by gaspi_printf. */
void gaspi_print_affinity_mask(void);

/**
 * NUMA node that this rank was started for (GASPI_SOCKET).
 * @param socket  out: number of the node
 * @return GASPI_SUCCESS; GASPI_ERROR if the job was started without binding to nodes;
 *         GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_numa_socket(gaspi_uchar *socket);

/**
 * Binds the calling thread, and threads that it starts later, to the cores of a NUMA node.
 * @param socket  number of the node
 * @return GASPI_SUCCESS; GASPI_ERROR if there is no such node or none of its cores may be used
 */
gaspi_return_t gaspi_set_socket_affinity(gaspi_uchar socket);

/**
 * Text of a return code.
 * @param error_code  any value
 * @return a constant text, "unknown" for a value that is no return code; never NULL, not to be
 *         freed
 */
gaspi_string_t gaspi_error_str(gaspi_return_t error_code);

/**
 * Asks the library of another rank for a sign of life, without any call by its program. A stopped
 * process does not answer.
 * @param rank     the other rank; oneself is answered at once
 * @param timeout  milliseconds, GASPI_BLOCK or GASPI_TEST
 * @return GASPI_SUCCESS; GASPI_TIMEOUT; GASPI_ERROR if the rank died or has left;
 *         GASPI_ERR_INV_RANK, GASPI_ERR_NOINIT
 */
gaspi_return_t gaspi_proc_ping(gaspi_rank_t rank, gaspi_timeout_t timeout);

/**
 * Lowest segment id that this rank does not use.
 * @param segment_id  out
 * @return GASPI_SUCCESS; GASPI_ERR_MANY_SEG if segment_max segments exist; GASPI_ERR_NOINIT,
 *         GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_segment_avail_local(gaspi_segment_id_t *segment_id);

/**
 * Size of an own segment, or of one that `rank` has made known to this rank.
 * @param segment_id  the segment
 * @param rank        its owner
 * @param size        out: bytes
 * @return GASPI_SUCCESS, GASPI_ERR_INV_SEG, GASPI_ERR_INV_RANK, GASPI_ERR_NOINIT,
 *         GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_segment_size(gaspi_segment_id_t segment_id, gaspi_rank_t rank,
                                  gaspi_size_t *size);

/**
 * Largest number of entries of a list call (gaspi_write_list and its kin).
 * @param elem_max  out: entries
 * @return GASPI_SUCCESS, GASPI_ERR_NOINIT, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_rw_list_elem_max(gaspi_number_t *elem_max);

/**
 * Bytes that the notifications of one segment take.
 * @param size  out: bytes
 * @return GASPI_SUCCESS, GASPI_ERR_NOINIT, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_notifications_space_size(gaspi_number_t *size);

/**
 * gaspi_statistic_counter_get as a floating point number.
 * @param counter   the counter
 * @param argument  a rank, where gaspi_statistic_counter_info says so
 * @param value     out
 * @return GASPI_SUCCESS; GASPI_ERROR if there is no such counter; GASPI_ERR_INV_RANK,
 *         GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_statistic_counter_get_f(gaspi_statistic_counter_t counter,
                                             gaspi_number_t argument, gaspi_float *value);

/** Tells the processor that the caller spins: one pause instruction. */
void gaspi_delay(void);

#ifdef __cplusplus
}
#endif

#endif /* GASPI_EXT_H */
