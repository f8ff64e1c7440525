//! All-reduces of the standard whose data goes by RDMA devices only.

use super::*;
use gaspi_core::{DeviceChoice, MessageCarrier};
use ranks::run_with_prepared;

/// More than one step stages.
const COUNT: usize = 5000;

/// Two ranks cannot send each other anything, and fail in the first step, which is over for the
/// third one. They call again, and are not taken to be in the second step.
fn a_call_that_begins_anew_is_not_taken_for_the_one_that_failed() {
    let config = Config { allreduce_elem_max: 1 << 20, ..Config::default() };
    let by_device = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Device;
    let cut = |fabric: &gaspi_mock_card::Fabric| fabric.link(0, 1, 0);
    let failures = run_with_prepared(3, ("", &config), cut, by_device, |rt, fabric| {
        let data = input(rt.rank(), COUNT, 0);
        let mut failures = Vec::new();
        loop {
            let mut sum = vec![0.0; COUNT];
            match allreduce_slice(rt, &data, &mut sum, Operation::Sum, GroupId::ALL, GUARD) {
                Ok(()) => {
                    assert!(sum == expected(3, COUNT, 0), "wrong sums after {failures:?}");
                    return failures;
                }
                Err(error) => failures.push(error),
            }
            assert!(failures.len() < 10, "{failures:?}");
            fabric.link(0, 1, 1);
        }
    });
    let [first, second, last] = &failures[..] else { panic!("three ranks") };
    // Each of both finds it by itself, or hears first that the other one has.
    let is_refused =
        |error: &Error, by| matches!(error, Error::Refused { rank, .. } if *rank == by);
    let is_told =
        |error: &Error| error.to_string().contains("whose data its RDMA device cannot send");
    let found = [is_refused(&first[0], Rank(1)), is_refused(&second[0], Rank(0))];
    assert!(found[0] || found[1], "{failures:?}");
    assert!(found[0] || is_told(&first[0]), "{failures:?}");
    assert!(found[1] || is_told(&second[0]), "{failures:?}");
    let [Error::Mismatch { difference, .. }] = &last[..] else { panic!("{last:?}") };
    assert!(difference.contains("rank 2 called step 2 of allreduce"), "{difference}");
}

tests! {
    VERBS:
        a_call_that_begins_anew_is_not_taken_for_the_one_that_failed;
}
