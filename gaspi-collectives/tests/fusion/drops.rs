//! Fused buffers and operations that are dropped in a function that is told of ends: it does not
//! wait, whatever the other ranks do, and all of it ends behind it.

use super::*;
use gaspi_collectives::{Operation, Prepared, Started, TypedRequest, prepare, scope, start};
use gaspi_core::{Config, Error, Init, Rank, Result, SegmentId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Long enough to be reduced where it lies, where that can be.
const MANY: usize = 600_000;
const SEGMENT: SegmentId = SegmentId(4);
/// What a function takes that waits for nobody, by a wide margin. One that did would wait for two
/// seconds at least, and most often for ever.
const AT_ONCE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Started, on memory that is borrowed for ever.
    Borrowed,
    Owned,
    Prepared,
    Fused,
}

const KINDS: [Kind; 4] = [Kind::Borrowed, Kind::Owned, Kind::Prepared, Kind::Fused];

/// What is dropped.
enum Dropped {
    Started(Started<'static, f64>),
    Prepared(Box<Prepared<'static, f64>>),
    Fused(Fusion<'static>),
}

/// Words in memory that all ranks of a node map.
fn shared_words(rt: &Runtime) -> &'static mut [f64] {
    let start = rt.segment_ptr(SEGMENT).expect("the segment").cast::<f64>();
    // SAFETY: the segment lives as long as the rank, which ends what uses it; nobody else does.
    unsafe { std::slice::from_raw_parts_mut(start, MANY) }
}

fn owned_words() -> TypedRequest<'static, f64> {
    TypedRequest::allreduce_in_place(Operation::Sum, vec![1.0; MANY])
}

impl Kind {
    /// What all ranks do together, before one of them begins.
    fn made(self, rt: &'static Runtime) -> Option<Dropped> {
        match self {
            Kind::Borrowed | Kind::Owned => {
                // Opens the channel of the group.
                start(rt, ALL, owned_words(), LIMIT).expect("started").wait(LIMIT).expect("a sum");
                let bytes = size_of::<f64>() * MANY;
                rt.segment_create(SEGMENT, bytes as u64, ALL, LIMIT, Init::Zeroed).expect("made");
                None
            }
            Kind::Prepared => {
                let prepared = prepare(rt, ALL, owned_words(), LIMIT).expect("prepared");
                Some(Dropped::Prepared(Box::new(prepared)))
            }
            Kind::Fused => {
                let options = Options { background: false, ..Options::default() };
                Some(Dropped::Fused(create(rt, &floats(&[MANY]), &options)))
            }
        }
    }

    /// Begins it, and carries it on as far as it goes.
    fn begun(self, rt: &'static Runtime, made: Option<Dropped>) -> Dropped {
        let started = |request| {
            let mut started = start(rt, ALL, request, LIMIT).expect("started");
            assert!(started.test().expect("no failure").is_none(), "the other one is missing");
            Dropped::Started(started)
        };
        match (self, made) {
            (Kind::Borrowed, _) => {
                started(TypedRequest::allreduce_in_place(Operation::Sum, shared_words(rt)))
            }
            (_, None) => started(owned_words()),
            (_, Some(Dropped::Prepared(mut prepared))) => {
                let mut started = prepared.start().expect("started");
                assert!(started.test().expect("no failure").is_none(), "the other one is missing");
                // It goes on without its value.
                std::mem::forget(started);
                Dropped::Prepared(prepared)
            }
            (_, Some(made)) => {
                if let Dropped::Fused(fusion) = &made {
                    submit(fusion, 0, &vec![1.0; MANY]);
                }
                made
            }
        }
    }
}

impl Dropped {
    /// Waits for its end, which comes, well or not.
    fn end(self) {
        let ended = match self {
            Dropped::Started(mut started) => started.wait(LIMIT).map(drop),
            Dropped::Prepared(prepared) => {
                drop(prepared);
                return;
            }
            // SAFETY: nothing is written.
            Dropped::Fused(fusion) => unsafe { fusion.wait(0, std::ptr::null_mut(), LIMIT) },
        };
        assert!(!ended.is_err_and(|error| error.is_timeout()), "the other one has given it up");
    }
}

/// Runs `body` on ranks that live as long as what is dropped.
fn run_static(body: impl Fn(&'static Runtime) + Sync) {
    ranks::run_owned(2, &Config::default(), |runtime| {
        let runtime = Box::into_raw(Box::new(runtime));
        // SAFETY: it is there until the end of this function.
        body(unsafe { &*runtime });
        // SAFETY: the body has dropped what refers to it.
        drop(unsafe { Box::from_raw(runtime) });
    });
}

/// Drops something in a function that is told of an end. Returns how long that took.
fn drop_in_a_function(told: &Fusion<'_>, dropped: Dropped) -> Duration {
    let (tell, heard) = std::sync::mpsc::channel();
    let dropped = std::sync::Mutex::new(Some(dropped));
    let function = move |_: usize, _: Result<()>| {
        let begin = Instant::now();
        drop(dropped.lock().expect("no panic").take());
        let _ = tell.send(begin.elapsed());
    };
    told.on_end(Some(Arc::new(function))).expect("a function");
    submit(told, 0, &[1.0; 10]);
    let took = heard.recv().expect("the function is called");
    told.on_end(None).expect("no function");
    took
}

/// Rank 0 has arrived in what rank 1 drops, and does nothing more before the function has returned.
/// Then rank 1 goes on, or leaves at once.
fn run_drops(leaves: bool) {
    let together = ranks::Barrier::new(2);
    for kind in KINDS {
        run_static(|rt| {
            let told = create(rt, &floats(&[10]), &Options::default());
            let made = kind.made(rt);
            if rt.rank().index() == 0 {
                let begun = kind.begun(rt, made);
                submit(&told, 0, &[1.0; 10]);
                together.wait();
                together.wait();
                begun.end();
            } else {
                together.wait();
                let begun = kind.begun(rt, made);
                let took = drop_in_a_function(&told, begun);
                assert!(took < AT_ONCE, "{kind:?}: the drop has waited for {took:?}");
                together.wait();
            }
            if !leaves {
                // What was given up on the group of all may have failed, or ended well.
                let group = rt.group_create().expect("a group");
                (0..2).for_each(|rank| rt.group_add(group, Rank(rank)).expect("a member"));
                rt.group_commit(group, LIMIT).expect("committed");
                let made = Fusion::create(rt, &floats(&[MANY]), group, &Options::default(), LIMIT);
                let other = made.expect("a fused buffer");
                submit(&other, 0, &vec![1.0; MANY]);
                assert_eq!(wait(&other, 0, MANY), vec![2.0; MANY]);
                rt.barrier(ALL, LIMIT).expect("barrier");
            }
            drop(told);
            rt.term(LIMIT).expect("term");
        });
    }
}

fn a_drop_in_a_function_that_is_told_waits_for_nobody() {
    run_drops(false);
}

fn a_rank_leaves_behind_a_drop_in_a_function_that_is_told() {
    run_drops(true);
}

/// Its end would have to wait. Outside of the function it works.
fn a_scope_begins_nothing_in_a_function_that_is_told() {
    run_static(|rt| {
        let sum = move || -> Result<[f64; 2]> {
            let mut words = [1.0, 2.0];
            scope(rt, |scope| {
                let request = TypedRequest::allreduce_in_place(Operation::Sum, &mut words[..]);
                scope.start(ALL, request, LIMIT).map_err(Error::from)?.wait(LIMIT).map(drop)
            })?;
            Ok(words)
        };
        assert_eq!(sum(), Ok([2.0, 4.0]));
        let told = create(rt, &floats(&[10]), &Options::default());
        let (tell, heard) = std::sync::mpsc::channel();
        let function = move |_: usize, _: Result<()>| drop(tell.send(sum()));
        told.on_end(Some(Arc::new(function))).expect("a function");
        submit(&told, 0, &[1.0; 10]);
        let error = heard.recv().expect("the function is called").expect_err("it may not wait");
        assert!(error.to_string().contains("may not wait"), "{error}");
        told.on_end(None).expect("no function");
        assert_eq!(sum(), Ok([2.0, 4.0]));
        drop(told);
        rt.term(LIMIT).expect("term");
    });
}

tests! {
    DEVICES:
        a_drop_in_a_function_that_is_told_waits_for_nobody,
        a_rank_leaves_behind_a_drop_in_a_function_that_is_told,
        a_scope_begins_nothing_in_a_function_that_is_told;
}
