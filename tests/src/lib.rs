//! The harness of the tests that run several processes.
