//! How pairs of RDMA devices are made, end and are counted.

use super::verbs::{LIMIT_OF_CHANGE, NO_ANSWER, exchange};
use super::*;
use crate::ranks::{messages_by_device, run_with_prepared};
use gaspi_core::Pairs;

fn pairs_are_counted_for_tools() {
    run_with_prepared(
        2,
        ("", &Config::default()),
        |_| (),
        |choice| choice.messages = false,
        |rt, fabric| {
            // Else messages have a pair of their own, at any time.
            let alone = !messages_by_device();
            make(rt, S0, 8192);
            assert!(!alone || rt.pairs().is_none(), "{:?}", rt.pairs());
            meet(rt);
            exchange(rt, 2);
            let two = Pairs { up: 2, being_made: 0, failed: 0, messages: None };
            assert!(!alone || rt.pairs() == Some(two), "{:?}", rt.pairs());
            meet(rt);
            if rt.rank() == Rank(0) {
                fabric.fail(0, 0, 1, NO_ANSWER);
                let _ = rt.write(&eight(Rank(1)), Q0, LIMIT);
                fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { queue: Q0, .. });
                rt.queue_purge(Q0, LIMIT).expect("purge");
            }
            meet(rt);
            // One end has failed, and the other one has heard of it.
            within(LIMIT_OF_CHANGE, "the failure counts at both ends", || {
                while rt.pairs().is_none_or(|pairs| pairs.failed == 0) {
                    meet_or_look(rt);
                }
            });
            meet(rt);
            exchange(rt, 2);
            let pairs = rt.pairs().expect("pairs");
            assert!(!alone || pairs == Pairs { failed: 1, ..two }, "{pairs:?}");
            meet(rt);
        },
    );
}

/// Has the rank look at what has come.
fn meet_or_look(rt: &Runtime) {
    let _ = rt.notify_waitsome(S0, 65_000, 1, Timeout::Test);
}

tests! {
    VERBS:
        pairs_are_counted_for_tools;
}
