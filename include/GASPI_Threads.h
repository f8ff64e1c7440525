/*
 * GASPI_Threads.h: a small pool of threads.
 *
 * Deprecated: kept because existing programs use it. New programs use the threads of their
 * language; every GASPI procedure may be called from any of them.
 *
 * All procedures return GASPI_ERR_NOINIT before gaspi_proc_init, GASPI_ERR_NULLPTR for a NULL
 * pointer, and GASPI_ERROR if the pool is not in the state that the call needs.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GASPI_THREADS_H
#define GASPI_THREADS_H

#include "GASPI_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Number of the calling thread among the registered ones, from 0.
 * @param tid  out: the number
 * @return GASPI_SUCCESS; GASPI_ERROR if the thread is not registered; GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_threads_get_tid(gaspi_int *tid);

/**
 * Number of threads of the pool.
 * @param num  out: threads
 * @return GASPI_SUCCESS, GASPI_ERROR, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_threads_get_total(gaspi_int *num);

/**
 * Number of cores that this process may run on.
 * @param cores  out: cores
 * @return GASPI_SUCCESS, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_threads_get_num_cores(gaspi_int *cores);

/**
 * Starts a pool with one thread per core that this process may run on.
 * @param num  out: threads in the pool
 * @return GASPI_SUCCESS, GASPI_ERROR, GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_threads_init(gaspi_int *num);

/**
 * Starts a pool with a given number of threads.
 * @param use_nthreads  threads, at least 1
 * @return GASPI_SUCCESS, GASPI_ERROR
 */
gaspi_return_t gaspi_threads_init_user(gaspi_uint use_nthreads);

/**
 * Ends the threads of the pool, once they finished what they run.
 * @return GASPI_SUCCESS, GASPI_ERROR
 */
gaspi_return_t gaspi_threads_term(void);

/**
 * Gives a function to the next free thread of the pool.
 * @param function  what to run; it calls gaspi_threads_register first if it uses a number or
 *                  gaspi_threads_sync
 * @param arg       handed to it
 * @return GASPI_SUCCESS, GASPI_ERROR, GASPI_ERR_NULLPTR (`function`; `arg` may be NULL)
 */
gaspi_return_t gaspi_threads_run(void *(*function)(void *), void *arg);

/**
 * Registers the calling thread.
 * @param tid  out: its number, from 0 in the order of the calls
 * @return GASPI_SUCCESS; GASPI_ERROR if the pool is full; GASPI_ERR_NULLPTR
 */
gaspi_return_t gaspi_threads_register(gaspi_int *tid);

/** Barrier of the registered threads of this process. */
void gaspi_threads_sync(void);

/**
 * Barrier of the registered threads of all ranks of a group: every thread calls it.
 * @param group    the group
 * @param timeout  milliseconds, GASPI_BLOCK or GASPI_TEST
 * @return GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_ERROR, GASPI_ERR_INV_GROUP
 */
gaspi_return_t gaspi_threads_sync_all(gaspi_group_t group, gaspi_timeout_t timeout);

#ifdef __cplusplus
}
#endif

#endif /* GASPI_THREADS_H */
