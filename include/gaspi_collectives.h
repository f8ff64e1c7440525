/*
 * gaspi_collectives.h: what this library offers beyond GASPI 17.1.
 *
 * Nothing in here reuses a name or a number of the standard. A program that has to build against
 * other implementations tests for the macro below, which grows with every addition.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GASPI_COLLECTIVES_H
#define GASPI_COLLECTIVES_H

#include "GASPI_types.h"

/**
 * Version of this header: 1000 * major + minor.
 *
 * 1000: gaspi_error_detail
 */
#define GASPI_COLLECTIVES_VERSION 1000

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

/** The same as gaspi_error_detail, for profilers that replace it. */
gaspi_return_t pgaspi_error_detail(char *text, gaspi_size_t size);

#ifdef __cplusplus
}
#endif

#endif /* GASPI_COLLECTIVES_H */
