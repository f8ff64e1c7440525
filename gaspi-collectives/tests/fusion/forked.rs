//! Fused buffers and operations in a forked child: they are its parent's, and go on, whatever the
//! child calls.

use super::*;
use gaspi_collectives::{Operation, Prepared, Started, TypedRequest, prepare, scope, start};
use gaspi_core::{Config, Error, Result, Timeout};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Long enough to be reduced where it lies, or to go by several messages.
const MANY: usize = 100_000;

fn words() -> TypedRequest<'static, f64> {
    TypedRequest::allreduce_in_place(Operation::Sum, vec![1.0; MANY])
}

/// Something that a rank has begun, and that cannot end before the other one has begun it.
enum Begun<'r> {
    Started(Started<'static, f64>),
    Prepared(StartedAgain),
    Fused(Fusion<'r>),
}

/// A start, and the prepared operation that it borrows; dropped in this order.
struct StartedAgain {
    started: Started<'static, f64>,
    _prepared: Box<Prepared<'static, f64>>,
}

impl StartedAgain {
    fn new(mut prepared: Box<Prepared<'static, f64>>) -> StartedAgain {
        let started = prepared.start().expect("started");
        // SAFETY: the box does not move what is borrowed, outlives it, and is not used besides.
        let started =
            unsafe { std::mem::transmute::<Started<'_, f64>, Started<'static, f64>>(started) };
        StartedAgain { started, _prepared: prepared }
    }
}

/// What both ranks have made together.
enum Made<'r> {
    Nothing,
    Prepared(Box<Prepared<'static, f64>>),
    Fused(Fusion<'r>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Started,
    Prepared,
    Fused,
}

impl Kind {
    fn made(self, rt: &Runtime) -> Made<'_> {
        match self {
            Kind::Started => Made::Nothing,
            Kind::Prepared => {
                let prepared = prepare(rt, ALL, words(), LIMIT).expect("prepared");
                Made::Prepared(Box::new(prepared))
            }
            Kind::Fused => Made::Fused(create(rt, &floats(&[MANY]), &Options::default())),
        }
    }
}

impl<'r> Made<'r> {
    fn begin(self, rt: &'r Runtime) -> Begun<'r> {
        match self {
            Made::Nothing => {
                let started = start(rt, ALL, words().background(), LIMIT);
                Begun::Started(started.expect("started"))
            }
            Made::Prepared(prepared) => Begun::Prepared(StartedAgain::new(prepared)),
            Made::Fused(fusion) => {
                submit(&fusion, 0, &vec![1.0; MANY]);
                Begun::Fused(fusion)
            }
        }
    }
}

impl Begun<'_> {
    fn end(self) {
        let last = match self {
            Begun::Started(mut started) => started.wait(LIMIT).expect("it ends well")[MANY - 1],
            Begun::Prepared(mut again) => again.started.wait(LIMIT).expect("a sum")[MANY - 1],
            Begun::Fused(fusion) => wait(&fusion, 0, MANY)[MANY - 1].into(),
        };
        assert_eq!(last, 2.0);
    }
}

/// Forks. The child calls a function and ends.
fn in_a_child(call: impl FnOnce()) {
    // SAFETY: the child calls what is tested, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends this process if it hangs.
        unsafe { libc::alarm(20) };
        let ended = catch_unwind(AssertUnwindSafe(call));
        // SAFETY: ends it without running what belongs to the parent.
        unsafe { libc::_exit(ended.is_err().into()) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child ends well");
}

fn a_drop_in_a_forked_child_ends_nothing() {
    let forked = ranks::Barrier::new(2);
    for kind in [Kind::Started, Kind::Prepared, Kind::Fused] {
        ranks::run_with(2, &Config::default(), |rt| {
            // Opens the channel of the group.
            start(rt, ALL, words(), LIMIT).expect("started").wait(LIMIT).expect("a sum");
            let made = kind.made(rt);
            if rt.rank().index() == 0 {
                let begun = made.begin(rt);
                // SAFETY: the copy of the child, which has no other owner.
                in_a_child(|| drop(unsafe { std::ptr::read(&raw const begun) }));
                forked.wait();
                begun.end();
            } else {
                forked.wait();
                made.begin(rt).end();
            }
            rt.barrier(ALL, LIMIT).expect("barrier");
        });
    }
}

/// A child that leaves a scope.
fn a_scope_that_ends_in_a_forked_child_ends_nothing() {
    let forked = ranks::Barrier::new(2);
    ranks::run_with(2, &Config::default(), |rt| {
        start(rt, ALL, words(), LIMIT).expect("started").wait(LIMIT).expect("a sum");
        let mut words = vec![1.0; MANY];
        let mut is_child = false;
        if rt.rank().index() == 1 {
            forked.wait();
        }
        scope(rt, |scope| -> Result<()> {
            let request = TypedRequest::allreduce_in_place(Operation::Sum, &mut words[..]);
            let mut sum = scope.start(ALL, request, LIMIT).map_err(Error::from)?;
            if rt.rank().index() == 0 {
                // SAFETY: the child leaves the scope, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    is_child = true;
                    // SAFETY: ends this process if it hangs.
                    unsafe { libc::alarm(20) };
                    return Ok(());
                }
                let mut status = 0;
                // SAFETY: waits for the child made above.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child ends well");
                forked.wait();
            }
            sum.wait(LIMIT).map(drop)
        })
        .expect("a sum");
        if is_child {
            // SAFETY: ends it without running what belongs to the parent.
            unsafe { libc::_exit(0) };
        }
        assert_eq!(words[MANY - 1], 2.0);
        rt.barrier(ALL, LIMIT).expect("barrier");
    });
}

fn refused<T>(outcome: Result<T>) {
    match outcome {
        Err(Error::NotInitialised) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is the parent's"),
    }
}

/// All that a child can call on a fused buffer of its parent's, whose tensor 0 is under way.
fn call_all(rt: &Runtime, fusion: &Fusion<'_>) {
    let mut data = vec![7.0f32; MANY];
    let there = data.as_mut_ptr().cast::<u8>();
    for tensor in [0, 1, 2] {
        // SAFETY: as many elements as the tensor has.
        refused(unsafe { fusion.submit(tensor, there, 1.0) });
        // SAFETY: so many are there for the result, too.
        refused(unsafe { fusion.test(tensor, there) });
        for timeout in [Timeout::Test, LIMIT] {
            // SAFETY: as before.
            refused(unsafe { fusion.wait(tensor, there, timeout) });
            refused(fusion.result(tensor, timeout));
        }
        refused(fusion.tensor_ptr(tensor));
        refused(fusion.release(tensor, there));
        refused(fusion.bucket(tensor));
    }
    for timeout in [Timeout::Test, LIMIT] {
        refused(fusion.next(timeout));
    }
    refused(fusion.on_end(None));
    refused(fusion.on_end(Some(std::sync::Arc::new(|_: usize, _: Result<()>| {}))));
    refused(fusion.descriptor());
    refused(Fusion::create(rt, &floats(&[3]), ALL, &Options::default(), LIMIT));
    assert!(data.iter().all(|element| *element == 7.0), "nothing is written");
}

/// A child calls on a fused buffer what its parent has not called yet.
fn calls_on_a_fused_buffer_are_refused_in_a_forked_child() {
    let forked = ranks::Barrier::new(2);
    ranks::run_with(2, &Config::default(), |rt| {
        let me = rt.rank().index();
        let options = Options { threshold: 0, ..Options::default() };
        let fusion = create(rt, &floats(&[MANY, 50, 0]), &options);
        for step in 0..2 {
            if me == 0 {
                submit(&fusion, 0, &contribution(me, 0, step, MANY));
                in_a_child(|| call_all(rt, &fusion));
            }
            forked.wait();
            if me == 1 {
                submit(&fusion, 0, &contribution(me, 0, step, MANY));
            }
            submit(&fusion, 1, &contribution(me, 1, step, 50));
            for (tensor, count) in [(0, MANY), (1, 50)] {
                assert_eq!(wait(&fusion, tensor, count), sum(2, tensor, step, count));
            }
            if me == 1 {
                // What has ended, too.
                in_a_child(|| call_all(rt, &fusion));
            }
        }
    });
}

/// A child calls what is left to be called on operations of its parent's.
fn calls_on_operations_are_refused_in_a_forked_child() {
    let forked = ranks::Barrier::new(2);
    ranks::run_with(2, &Config::default(), |rt| {
        start(rt, ALL, words(), LIMIT).expect("started").wait(LIMIT).expect("a sum");
        let mut prepared = prepare(rt, ALL, words(), LIMIT).expect("prepared");
        if rt.rank().index() == 1 {
            forked.wait();
        }
        let mut started = start(rt, ALL, words(), LIMIT).expect("started");
        if rt.rank().index() == 0 {
            in_a_child(|| {
                refused(prepared.start().map(drop));
                for timeout in [Timeout::Test, LIMIT] {
                    refused(prepared.run(timeout).map(drop));
                    refused(started.wait(timeout).map(drop));
                }
                refused(started.test().map(drop));
                refused(start(rt, ALL, words(), LIMIT).map(drop).map_err(Error::from));
                refused(prepare(rt, ALL, words(), LIMIT).map(drop).map_err(Error::from));
                refused(scope(rt, |scope| {
                    scope.start(ALL, words(), LIMIT).map(drop).map_err(Error::from)
                }));
            });
            forked.wait();
        }
        assert_eq!(started.wait(LIMIT).expect("a sum")[MANY - 1], 2.0);
        assert_eq!(prepared.run(LIMIT).expect("a sum")[MANY - 1], 2.0);
        let mut again = prepared.start().expect("started");
        in_a_child(|| refused(again.wait(LIMIT).map(drop)));
        assert_eq!(again.wait(LIMIT).expect("a sum")[MANY - 1], 4.0);
        rt.barrier(ALL, LIMIT).expect("barrier");
    });
}

tests! {
    DEVICES:
        calls_on_a_fused_buffer_are_refused_in_a_forked_child,
        calls_on_operations_are_refused_in_a_forked_child,
        a_drop_in_a_forked_child_ends_nothing,
        a_scope_that_ends_in_a_forked_child_ends_nothing;
}
