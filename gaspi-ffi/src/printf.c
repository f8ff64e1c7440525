/*
 * The variadic procedures: Rust cannot define them, so stubs in printf.rs jump here. Formats once
 * and hands the text back to Rust.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* The largest datagram; whatever does not fit is cut. */
#define TEXT_BYTES 1024

/* Defined in printf.rs. Errors name gaspi_printf_to if the rank is named, else gaspi_printf. */
void gaspiffi_deliver(int is_named, unsigned int rank, const char *text, size_t size);

static void format_and_deliver(int is_named, unsigned int rank, const char *format,
                               va_list arguments) {
  char text[TEXT_BYTES];
  int size;
  if (format == NULL) {
    return;
  }
  size = vsnprintf(text, sizeof text, format, arguments);
  if (size > 0) {
    size_t kept = (size_t)size < sizeof text ? (size_t)size : sizeof text - 1;
    gaspiffi_deliver(is_named, rank, text, kept);
  }
}

void gaspiffi_printf(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  format_and_deliver(0, 0, format, arguments);
  va_end(arguments);
}

void gaspiffi_printf_to(int rank, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  /* A gaspi_rank_t arrives promoted; only its low 16 bits are defined. */
  format_and_deliver(1, (unsigned int)rank & 0xffffu, format, arguments);
  va_end(arguments);
}

/* Through C's stdout, so that the order of a program's own output is kept. */
void gaspiffi_print(const char *text, size_t size) {
  fwrite(text, 1, size, stdout);
}
