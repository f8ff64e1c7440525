//! What is said of a bucket that does not end.

use super::*;
use gaspi_core::Config;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Warnings by the name of the thread, which says test and rank.
struct Warnings {
    by_thread: Mutex<Option<HashMap<String, Vec<String>>>>,
    more: Condvar,
}

static WARNINGS: Warnings = Warnings { by_thread: Mutex::new(None), more: Condvar::new() };

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }
    fn log(&self, record: &log::Record<'_>) {
        if let Some(name) = std::thread::current().name() {
            let mut all = self.by_thread.lock().expect("no panic");
            let of_thread = all.get_or_insert_default().entry(name.to_owned()).or_default();
            of_thread.push(record.args().to_string());
            drop(all);
            self.more.notify_all();
        }
    }
    fn flush(&self) {}
}

/// Has warnings kept for these tests.
pub(crate) fn keep_warnings() {
    log::set_logger(&WARNINGS).expect("no other logger");
    log::set_max_level(log::LevelFilter::Warn);
}

/// What another rank of this test has said that has all these words, when it has so often. Makes no
/// call of the library.
pub(crate) fn said(rank: usize, times: usize, words: &[&str]) -> Vec<String> {
    let own = std::thread::current().name().expect("of a rank").to_owned();
    let (test, _) = own.rsplit_once(": rank ").expect("of a rank");
    said_by(&format!("{test}: rank {rank}"), times, words)
}

/// The same of a thread of this name.
fn said_by(name: &str, times: usize, words: &[&str]) -> Vec<String> {
    let mut all = WARNINGS.by_thread.lock().expect("no panic");
    loop {
        let lines = all.get_or_insert_default().get(name).cloned().unwrap_or_default();
        let has_all = |line: &String| words.iter().all(|words| line.contains(words));
        let found: Vec<String> = lines.into_iter().filter(has_all).collect();
        if found.len() >= times {
            return found;
        }
        all = WARNINGS.more.wait(all).expect("no panic");
    }
}

const SOON: Option<Duration> = Some(Duration::from_millis(20));

/// How long a rank says that it has waited, in seconds.
fn waited_s(line: &str) -> f64 {
    let (_, rest) = line.split_once("has waited ").expect("a time");
    rest.split_once(" s for").expect("a time").0.parse().expect("a number")
}

/// One rank computes, and has submitted some tensors of a bucket in the second step.
fn a_rank_that_computes_is_named_with_its_tensors() {
    const COMPUTES: usize = 2;
    ranks::run(4, |rt| {
        let me = rt.rank().index();
        let counts = [100, 2000, 30, 7];
        let fusion = create(rt, &floats(&counts), &Options::default());
        fusion.warn_of_stalls_after(SOON);
        assert_eq!(fusion.buckets(), 1);
        let hand = |step: usize, tensors: &[usize]| {
            for tensor in tensors.iter().copied() {
                submit(&fusion, tensor, &contribution(me, tensor, step, counts[tensor]));
            }
        };
        hand(0, &[0, 1, 2, 3]);
        wait(&fusion, 3, 7);
        if me == COMPUTES {
            hand(1, &[0, 2]);
            let words = "rank 2 on ";
            for other in [0, 1, 3] {
                let lines = said(other, 2, &[words, "has not submitted tensors 1, 3"]);
                assert!(lines[0].contains("bucket 0 of a fused buffer of group 0, step 2"));
                // Two ranks are behind for none of them.
                assert_eq!(lines[1].matches("has not submitted").count(), 1, "{}", lines[1]);
                // At growing intervals: twice as much, but for what is rounded off.
                assert!(waited_s(&lines[1]) > 1.9 * waited_s(&lines[0]), "{lines:?}");
            }
            hand(1, &[1, 3]);
        } else {
            hand(1, &[3, 1, 0, 2]);
        }
        let waits: [&dyn Fn(); 4] = [
            &|| drop(wait(&fusion, 0, 100)),
            &|| assert_eq!(fusion.next(LIMIT).expect("a bucket"), 0),
            &|| {},
            &|| {
                let lent = fusion.result(1, LIMIT).expect("a result");
                fusion.release(1, lent).expect("lent");
            },
        ];
        // The end of the first step is told of first.
        assert_eq!(fusion.next(LIMIT).expect("a bucket"), 0);
        waits[me]();
        assert_eq!(wait(&fusion, 3, 7), sum(4, 3, 1, 7));
    });
}

/// A rank that has not submitted all itself says so, and names those that have not begun. One that
/// only asks now and then says it too.
fn a_rank_names_itself_and_all_others() {
    ranks::run(3, |rt| {
        let me = rt.rank().index();
        let counts = [10; 20];
        let options = Options { contributions: 2, ..Options::default() };
        let fusion = create(rt, &floats(&counts), &options);
        fusion.warn_of_stalls_after(SOON);
        let hand = |tensor: usize| submit(&fusion, tensor, &[1.0; 10]);
        let all = || (0..20).for_each(&hand);
        match me {
            0 => {
                all();
                (0..20).filter(|tensor| *tensor != 4).for_each(hand);
                until_said(|| {
                    // SAFETY: nothing is written.
                    let there = unsafe { fusion.test(0, std::ptr::null_mut()) };
                    assert!(!there.expect("no error"), "rank 1 has not begun");
                });
                hand(4);
            }
            1 => {
                let own = "this rank has not submitted tensor 4; ";
                let line = said(0, 1, &[own, "rank 1 on "]).remove(0);
                let many = "has not submitted tensors 0, 1, 2, 3, 4, 5, 6, 7 and 12 more";
                assert_eq!(line.matches(many).count(), 1, "{line}");
                all();
                // Once is not enough. What is said next may have been asked for before.
                let before = said(2, 0, &[]).len();
                let line = said(2, before + 2, &[]).pop().expect("two more");
                assert!(line.contains("rank 1 on ") && line.contains(many), "{line}");
                all();
            }
            _ => {
                all();
                all();
            }
        }
        assert_eq!(wait(&fusion, 7, 10), [6.0; 10]);
    });
}

/// Calls until this rank has said something.
fn until_said(mut call: impl FnMut()) {
    let name = std::thread::current().name().expect("of a rank").to_owned();
    let has_said = || {
        let mut all = WARNINGS.by_thread.lock().expect("no panic");
        all.get_or_insert_default().contains_key(&name)
    };
    while !has_said() {
        call();
        std::thread::yield_now();
    }
}

/// Members that have gone are named as such, for as long as nothing fails by it.
fn members_that_have_gone_are_named_as_such() {
    let (met, gone) = (ranks::Barrier::new(3), ranks::Barrier::new(2));
    ranks::run_owned(3, &Config::default(), |rt| {
        let me = rt.rank().index();
        let counts = [10, 10];
        let fusion = create(&rt, &floats(&counts), &Options::default());
        fusion.warn_of_stalls_after(SOON);
        submit(&fusion, 0, &[1.0; 10]);
        met.wait();
        match me {
            0 => {
                // SAFETY: nothing is written.
                let waited = unsafe { fusion.wait(0, std::ptr::null_mut(), LIMIT) };
                waited.expect_err("the others have gone");
                // As far as it goes without them.
                let _ = rt.term(LIMIT);
            }
            1 => {
                drop(fusion);
                let own = "this rank has not submitted tensor 1";
                said(0, 1, &[own, "rank 1 on ", "has freed the fused buffer"]);
                gone.wait();
                ranks::die(rt);
            }
            _ => {
                drop(fusion);
                rt.term(LIMIT).expect("the others take what is on its way");
                said(0, 1, &["rank 2 on ", "has left the job"]);
                gone.wait();
            }
        }
    });
}

/// No thread of a rank waits: it is told of ends, or looks at a descriptor. The library's thread
/// says what is missing.
fn a_program_that_only_hears_of_ends_is_warned_too() {
    // That thread has the same name in all ranks, of all tests: these miss a tensor of their own.
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    for by_function in [true, false] {
        let missing = 20 + RUNS.fetch_add(1, Ordering::Relaxed);
        ranks::run(2, |rt| {
            let fusion = create(rt, &floats(&[1; 90]), &Options::default());
            fusion.warn_of_stalls_after(SOON);
            assert_eq!(fusion.buckets(), 1);
            let others = (0..90).filter(|tensor| *tensor != missing);
            if rt.rank().index() == 1 {
                others.for_each(|tensor| submit(&fusion, tensor, &[1.0]));
                let name = format!("has not submitted tensor {missing}");
                let words = ["rank 0 has waited ", "step 1: rank 1 on ", &name];
                let lines = said_by("gaspi-collective", 2, &words);
                assert!(waited_s(&lines[1]) > 1.9 * waited_s(&lines[0]), "{lines:?}");
                submit(&fusion, missing, &[1.0]);
                wait(&fusion, missing, 1);
                return;
            }
            let (ended, heard) = std::sync::mpsc::channel();
            let descriptor = (!by_function).then(|| fusion.descriptor().expect("a descriptor"));
            if by_function {
                let function = move |_: usize, _: gaspi_core::Result<()>| {
                    let _ = ended.send(());
                };
                fusion.on_end(Some(Arc::new(function))).expect("a function");
            }
            (0..90).for_each(|tensor| submit(&fusion, tensor, &[1.0]));
            match descriptor {
                Some(descriptor) => assert!(ends::is_readable(descriptor, 60_000)),
                None => heard.recv().expect("the end of the bucket"),
            }
            assert_eq!(wait(&fusion, missing, 1), [2.0]);
            fusion.on_end(None).expect("no function");
        });
    }
}

tests! {
    DEVICES:
        a_program_that_only_hears_of_ends_is_warned_too,
        a_rank_that_computes_is_named_with_its_tensors,
        a_rank_names_itself_and_all_others,
        members_that_have_gone_are_named_as_such;
}
