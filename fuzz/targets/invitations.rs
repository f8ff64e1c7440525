//! What agents of gaspi_run read to learn how to call back.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gaspi_core::fuzzing::invitation(bytes));
