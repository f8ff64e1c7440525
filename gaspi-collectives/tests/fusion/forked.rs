//! Fused buffers and operations that a forked child drops: they are its parent's, and go on.

use super::*;
use gaspi_collectives::{Operation, Prepared, Started, TypedRequest, prepare, scope, start};
use gaspi_core::{Config, Error, Result};

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
        call();
        // SAFETY: ends it without running what belongs to the parent.
        unsafe { libc::_exit(0) };
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

tests! {
    DEVICES:
        a_drop_in_a_forked_child_ends_nothing,
        a_scope_that_ends_in_a_forked_child_ends_nothing;
}
