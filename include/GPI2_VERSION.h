/*
 * GPI2_VERSION.h: version of the interface that this library offers to existing programs, for
 * their preprocessor conditions. gaspi_version returns the same as a number.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GPI2_VERSION_H
#define GPI2_VERSION_H

#define GASPI_MAJOR_VERSION 1
#define GASPI_MINOR_VERSION 6
#define GASPI_REVISION 0

#endif /* GPI2_VERSION_H */
