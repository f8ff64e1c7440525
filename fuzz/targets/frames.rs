//! Frames between the libraries of two ranks.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gaspi_core::fuzzing::frame(bytes));
