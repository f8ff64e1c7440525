//! Both sides of the handshake, with each other and with strangers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gaspi_core::fuzzing::handshake(bytes));
