//! The cards of all ranks, as the server of a machine hands them out.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gaspi_core::fuzzing::cards(bytes));
