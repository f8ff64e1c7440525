//! What ranks and their meeting say to each other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gaspi_core::fuzzing::message(bytes));
