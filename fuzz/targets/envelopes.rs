//! What meetings on several machines say to each other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gaspi_core::fuzzing::envelopes(bytes));
