//! A function that is told of ends is taken away by itself, while other threads are in it.

use super::*;
use gaspi_core::Result;
use gaspi_core::sync::Mutex;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// How long threads may take that wait for nobody but each other.
const SOON: Duration = Duration::from_secs(40);

/// The calling thread, by its number.
fn own_thread() -> String {
    let own = std::fs::read_link("/proc/thread-self").expect("proc");
    own.file_name().expect("an id").to_string_lossy().into_owned()
}

/// Whether a thread of this process sleeps.
fn sleeps(thread: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = stat.expect("the thread lives");
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

fn each_alone() -> Options {
    Options { threshold: 0, ..Options::default() }
}

/// Has a fused buffer tell nobody any more.
///
/// # Safety
/// It lives there.
unsafe fn take_away(fusion: usize) {
    // SAFETY: the caller's promise.
    let fusion = unsafe { &*ptr::with_exposed_provenance::<Fusion<'_>>(fusion) };
    fusion.on_end(None).expect("no function");
}

fn who_takes_it_away_from_within_waits_for_other_threads() {
    ranks::run(1, |rt| {
        let fusion = create(rt, &floats(&[10, 10]), &each_alone());
        let fused = ptr::from_ref(&fusion).expose_provenance();
        let (enter, entered) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let (say, said) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let (may_go, has_left) = (Mutex::new(may_go), AtomicBool::new(false));
        let function = move |bucket: usize, _: Result<()>| {
            if bucket == 0 {
                enter.send(()).expect("the test waits");
                may_go.lock().recv().expect("the test goes on");
                has_left.store(true, Ordering::Relaxed);
                return;
            }
            say.send(own_thread()).expect("the test waits");
            // SAFETY: it outlives the function.
            unsafe { take_away(fused) };
            tell.send(has_left.load(Ordering::Relaxed)).expect("the test waits");
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        std::thread::scope(|scope| {
            scope.spawn(|| submit(&fusion, 0, &[1.0; 10]));
            entered.recv_timeout(SOON).expect("a thread is in it");
            scope.spawn(|| submit(&fusion, 1, &[1.0; 10]));
            let thread = said.recv_timeout(SOON).expect("another one is in it");
            let returned = loop {
                match told.try_recv() {
                    Ok(returned) => break Some(returned),
                    Err(_) if sleeps(&thread) => break None,
                    Err(_) => std::thread::yield_now(),
                }
            };
            go.send(()).expect("a thread waits");
            assert_eq!(returned, None, "the other thread is in it");
            assert!(told.recv_timeout(SOON).expect("it returns"), "the other thread has left it");
        });
    });
}

/// Two threads that are in functions of these fused buffers take away each other's, at once.
fn take_away_each_other(one: &Fusion<'_>, other: &Fusion<'_>) {
    let (tell, told) = mpsc::channel();
    let (inside, met) = (Arc::new(AtomicUsize::new(2)), Arc::new(std::sync::Barrier::new(2)));
    let takes_away = |fusion: &Fusion<'_>| {
        let fused = ptr::from_ref(fusion).expose_provenance();
        let (tell, inside, met) = (tell.clone(), Arc::clone(&inside), Arc::clone(&met));
        Arc::new(move |_: usize, _: Result<()>| {
            met.wait();
            // SAFETY: it outlives the function.
            unsafe { take_away(fused) };
            tell.send(inside.load(Ordering::SeqCst)).expect("the test waits");
            inside.fetch_sub(1, Ordering::SeqCst);
        })
    };
    one.on_end(Some(takes_away(other))).expect("a function");
    if !ptr::eq(one, other) {
        other.on_end(Some(takes_away(one))).expect("a function");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| submit(one, 0, &[1.0; 10]));
        scope.spawn(|| submit(other, 1, &[1.0; 10]));
        let mut inside = [0, 1].map(|_| told.recv_timeout(SOON).expect("both return"));
        inside.sort_unstable();
        assert_eq!(inside, [1, 2], "the one that came first waits for the other");
    });
}

fn two_threads_take_away_the_function_that_they_are_in() {
    ranks::run(1, |rt| {
        let fusion = create(rt, &floats(&[10, 10]), &each_alone());
        take_away_each_other(&fusion, &fusion);
    });
}

fn two_threads_take_away_the_functions_of_each_other() {
    ranks::run(1, |rt| {
        let one = create(rt, &floats(&[10, 10]), &each_alone());
        let other = create(rt, &floats(&[10, 10]), &each_alone());
        take_away_each_other(&one, &other);
    });
}

/// One that takes its place may be called all the time.
fn who_replaces_it_waits_for_the_former_one_only() {
    ranks::run(1, |rt| {
        let fusion = create(rt, &floats(&[10, 10]), &each_alone());
        let (enter, entered) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let may_go = Mutex::new(may_go);
        let stays = move |_: usize, _: Result<()>| {
            enter.send(()).expect("the test waits");
            may_go.lock().recv().expect("the test goes on");
        };
        let (say, said) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        let may_leave = Mutex::new(may_leave);
        let follows = move |_: usize, _: Result<()>| {
            say.send(()).expect("the test waits");
            may_leave.lock().recv().expect("the test goes on");
        };
        fusion.on_end(Some(Arc::new(stays))).expect("a function");
        std::thread::scope(|scope| {
            scope.spawn(|| submit(&fusion, 0, &[1.0; 10]));
            entered.recv_timeout(SOON).expect("a thread is in it");
            let (tell, told) = mpsc::channel();
            let fusion = &fusion;
            let (id, thread) = mpsc::channel();
            scope.spawn(move || {
                id.send(own_thread()).expect("the test waits");
                fusion.on_end(Some(Arc::new(follows))).expect("a function");
                tell.send(()).expect("the test waits");
            });
            let thread = thread.recv_timeout(SOON).expect("it says");
            while !sleeps(&thread) {
                std::thread::yield_now();
            }
            scope.spawn(|| submit(fusion, 1, &[1.0; 10]));
            let is_followed = said.recv_timeout(SOON);
            go.send(()).expect("a thread waits");
            let returned = told.recv_timeout(Duration::from_secs(10));
            leave.send(()).expect("a thread waits");
            is_followed.expect("the new one is called while the former one goes on");
            returned.expect("nobody is in the former one any more");
        });
        fusion.on_end(None).expect("no function");
    });
}

tests! {
    REAL:
        who_takes_it_away_from_within_waits_for_other_threads,
        two_threads_take_away_the_function_that_they_are_in,
        two_threads_take_away_the_functions_of_each_other,
        who_replaces_it_waits_for_the_former_one_only;
}
