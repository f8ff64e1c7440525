//! What the log says of pairs for messages that fail again and again. A program of its own, since
//! all ranks of a process share the log.

#[macro_use]
mod ranks;

use gaspi_core::*;
use gaspi_mock_card::Fabric;
use log::{LevelFilter, Log, Metadata, Record};
use ranks::{LIMIT, Nodes, run_with_prepared};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration;

fn main() -> std::process::ExitCode {
    log::set_logger(&Kept).expect("the only one");
    log::set_max_level(LevelFilter::Info);
    ranks::run_tests([tests()])
}

/// What was logged.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Kept;

impl Log for Kept {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() <= log::max_level() {
            SAID.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

const S0: SegmentId = SegmentId(0);
/// `IBV_WC_RETRY_EXC_ERR`.
const NO_ANSWER: u32 = 12;

/// Adds by the device until that has failed for good.
fn fail(rt: &Runtime, fabric: &Fabric) {
    let add = || rt.atomic_fetch_add(S0, 0, Rank(1), 1, LIMIT);
    let solicited = || fabric.counter(0, "solicited");
    let end = ranks::now() + Duration::from_secs(60);
    for _ in 0..3 {
        let mut before = solicited();
        while add().is_err() || solicited() == before {
            assert!(ranks::now() < end, "no device carries messages");
            before = solicited();
        }
        fabric.fail(0, 0, 1, NO_ANSWER);
        while add().is_err() {
            assert!(ranks::now() < end, "nothing carries messages");
        }
    }
}

fn the_log_says_that_tcp_has_messages_where_it_may() {
    // Both layouts in turn: they share the log.
    for nodes in [Nodes::Verbs, Nodes::VerbsPairs] {
        nodes.enter();
        let done = Barrier::new(2);
        let by_device = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Device;
        let options = ("", &Config::default());
        SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
        run_with_prepared(
            2,
            options,
            |_| (),
            by_device,
            |rt, fabric| {
                rt.segment_create(S0, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
                if rt.rank() == Rank(0) {
                    fail(rt, fabric);
                }
                done.wait();
            },
        );
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let has = |words: &str| said.iter().any(|line| line.contains(words));
        // Where sockets may carry data the connection goes on by its own.
        assert_eq!(has("broke"), nodes == Nodes::Verbs, "{nodes:?}: {said:?}");
        assert_eq!(has("by TCP"), nodes == Nodes::VerbsPairs, "{nodes:?}: {said:?}");
    }
}

tests! {
    VERBS:
        the_log_says_that_tcp_has_messages_where_it_may;
}
