//! Which threads are waited for, what is kept, and what is released.

use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// Tests that look at the number of the epoch run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// A thread that holds what `enter` gives while it is told to.
struct Insider {
    leave: Sender<()>,
    thread: JoinHandle<()>,
}

impl Insider {
    fn new<G>(enter: impl FnOnce() -> G + Send + 'static) -> Insider {
        let (leave, told) = channel::<()>();
        let (tell, inside) = channel();
        let stay = move || {
            let guard = enter();
            tell.send(()).unwrap();
            // Also where the test has failed.
            let _ = told.recv();
            drop(guard);
        };
        let thread = std::thread::spawn(|| on_a_free_thread(stay));
        inside.recv().unwrap();
        Insider { leave, thread }
    }

    fn end(self) {
        drop(self.leave);
        self.thread.join().unwrap();
    }
}

/// Threads that have begun to wait for those that are inside.
static WAITING: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

fn waiting() -> MutexGuard<'static, Vec<ThreadId>> {
    WAITING.lock()
}

/// This thread has begun to wait. Numbers of epochs do not tell: other tests begin some too.
pub(super) fn note_waiting() {
    waiting().push(std::thread::current().id());
}

/// Runs a call on another thread and returns once it has begun to wait for those that are inside.
fn until_it_waits(call: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let thread = std::thread::spawn(call);
    while !waiting().contains(&thread.thread().id()) {
        std::thread::yield_now();
    }
    thread
}

/// Runs `body` on a thread that counts for nobody and may take the fast path. One whose control
/// block lies where that of another test's thread lay counts for that test's rank while it lives;
/// and others may have come to its chain.
pub(crate) fn on_a_free_thread(body: impl FnOnce() + Send) {
    fn nested(body: Box<dyn FnOnce() + Send + '_>) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let slot = enter().slot();
                let first = ptr::eq(slot, first_of(chain(slot.thread)));
                let free = first && slot.counts_for.load(Ordering::Relaxed) == 0;
                // Otherwise this one stays, so that the next one lies elsewhere.
                if free { body() } else { nested(body) }
            });
        });
    }
    nested(Box::new(body));
}

/// The second time that a thread enters; `None` where the kernel refuses membarrier.
fn try_fast() -> Option<FastGuard> {
    drop(enter());
    enter_fast()
}

#[test]
fn threads_have_slots_of_their_own_and_hand_them_on() {
    let _alone = alone();
    let own = enter().slot();
    assert!(ptr::eq(own, enter().slot()));
    let other = std::thread::spawn(|| ptr::from_ref(enter().slot()) as usize);
    assert_ne!(other.join().unwrap(), ptr::from_ref(own) as usize);
    let before = slots().len();
    for _ in 0..1000 {
        std::thread::spawn(|| drop(enter())).join().unwrap();
    }
    let made = slots().len() - before;
    assert!(made < 200, "{made} slots for a thousand threads, one after the other");
}

#[test]
fn synchronize_waits_for_threads_inside_and_not_for_later_ones() {
    let _alone = alone();
    let outer = enter();
    let nested = enter();
    let done = Arc::new(AtomicBool::new(false));
    let waiter = until_it_waits({
        let done = Arc::clone(&done);
        move || {
            synchronize();
            done.store(true, Ordering::SeqCst);
        }
    });
    drop(nested);
    assert!(!done.load(Ordering::SeqCst), "the outer guard is alive");
    drop(outer);
    // A thread that goes in and out all the time does not keep it.
    while !waiter.is_finished() {
        drop(enter());
        drop(enter_fast());
    }
    waiter.join().unwrap();
}

#[test]
fn synchronize_waits_for_fast_sections_and_for_what_nests_in_them() {
    let _alone = alone();
    for nests in [false, true] {
        let insider = Insider::new(move || {
            let fast = try_fast();
            // Ends before its outer one, which goes on.
            drop((nests && fast.is_some()).then(enter));
            fast
        });
        let waiter = until_it_waits(synchronize);
        if fences_are_light() {
            assert!(!waiter.is_finished(), "nested: {nests}");
        }
        insider.end();
        waiter.join().unwrap();
    }
}

#[test]
fn a_function_of_the_program_takes_no_fast_path() {
    on_a_free_thread(|| {
        assert_eq!(enter_fast().is_some(), fences_are_light());
        let callback = enter_callback().expect("the first");
        assert!(is_in_callback() && enter_callback().is_none());
        assert!(enter_fast().is_none());
        drop(enter());
        assert!(enter_fast().is_none(), "whatever else the thread did");
        drop(callback);
        assert!(!is_in_callback());
        assert_eq!(enter_fast().is_some(), fences_are_light());
    });
}

#[test]
fn fast_sections_do_not_nest() {
    let _alone = alone();
    on_a_free_thread(|| {
        let outer = enter();
        assert!(enter_fast().is_none(), "it would leave the epoch of the outer guard");
        drop(outer);
        assert_eq!(enter_fast().is_some(), fences_are_light());
    });
}

#[test]
fn only_sections_keep_what_a_thread_owns() {
    let _alone = alone();
    let (tell, slot) = channel();
    let insider = Insider::new(move || {
        let guard = enter();
        tell.send(guard.slot()).unwrap();
        guard
    });
    // Would wait for ever.
    slot.recv().unwrap().await_section();
    insider.end();

    let (tell, slot) = channel();
    let (leave, told) = channel::<()>();
    let owner = std::thread::spawn(move || {
        let guard = enter();
        guard.section(|| {
            tell.send(guard.slot()).unwrap();
            let _ = told.recv();
        });
    });
    let slot = slot.recv().unwrap();
    let taker = until_it_waits(move || slot.await_section());
    assert!(!taker.is_finished(), "the section goes on");
    drop(leave);
    taker.join().unwrap();
    owner.join().unwrap();
}

/// Numbers of runtimes that no other test uses.
const ONE: u64 = 1 << 40;
const OTHER: u64 = ONE + 2;

#[test]
fn a_rank_that_leaves_gives_up_only_what_is_counted_for_it() {
    let _alone = alone();
    let keeps_first = Insider::new(|| {
        let guard = enter();
        assert!(guard.claim(ONE, 2));
        guard
    });
    let first = until_it_waits(|| release_counters(ONE));
    // Comes later, so the first does not wait for it.
    let (tell, slot) = channel();
    let counting = Insider::new(move || {
        let guard = enter();
        assert!(guard.claim(OTHER, 3));
        tell.send(guard.slot()).unwrap();
        guard
    });
    let slot = slot.recv().unwrap();
    let other = until_it_waits(|| release_counters(OTHER));
    keeps_first.end();
    first.join().unwrap();
    assert!(!slot.peers.load(Ordering::SeqCst).is_null(), "freed under a thread that is inside");
    counting.end();
    other.join().unwrap();
    assert!(slot.peers.load(Ordering::SeqCst).is_null(), "given up once it has come out");
}

/// A box is replaced again and again; a thread that has the old one finds it whole while inside.
#[test]
fn what_is_reached_from_inside_is_whole() {
    let _alone = alone();
    const WHOLE: u64 = 0x5eed;
    static SHARED: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    let fresh = || Box::into_raw(Box::new(AtomicU64::new(WHOLE)));
    SHARED.store(fresh(), Ordering::SeqCst);
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = [true, false]
        .into_iter()
        .map(|fast| {
            let done = Arc::clone(&done);
            std::thread::spawn(move || {
                // Stores that miss the cache, before which that of entering cannot become visible:
                // it is late unless the rare side pays for a fence.
                let far: Vec<AtomicU64> = (0..1 << 21).map(|_| AtomicU64::new(0)).collect();
                let mut at = 0usize;
                while !done.load(Ordering::Relaxed) {
                    for _ in 0..24 {
                        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        far[(at >> 40) % far.len()].store(1, Ordering::Relaxed);
                    }
                    let try_fast = fast.then(enter_fast).flatten();
                    let slow = try_fast.is_none().then(enter);
                    // SAFETY: what the test is about: it is freed once this thread is outside.
                    let shared = unsafe { &*SHARED.load(Ordering::Acquire) };
                    for _ in 0..4 {
                        assert_eq!(shared.load(Ordering::Relaxed), WHOLE);
                    }
                    drop((try_fast, slow));
                }
            })
        })
        .collect();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        let old = SHARED.swap(fresh(), Ordering::AcqRel);
        synchronize();
        // SAFETY: unlinked before, and nobody is inside who may have seen it.
        let old = unsafe { Box::from_raw(old) };
        // Seen by a reader that still has it.
        old.store(0, Ordering::SeqCst);
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    // SAFETY: the readers have ended.
    drop(unsafe { Box::from_raw(SHARED.load(Ordering::Acquire)) });
}

/// Says when it is freed.
struct Noisy(Arc<AtomicBool>);

impl Drop for Noisy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_was_retired_is_freed_once_nobody_is_inside_and_without_waiting() {
    let _alone = alone();
    let retired = Retired::default();
    assert!(retired.free(), "there is nothing");
    let insider = Insider::new(enter);
    let freed = Arc::new(AtomicBool::new(false));
    assert!(retired.leave(Arc::new(Noisy(Arc::clone(&freed)))));
    // By a thread that is inside itself, as a handler may be.
    let own = enter();
    assert!(!retired.leave(Arc::new(())), "somebody has been told already");
    assert!(!retired.free());
    drop(own);
    assert!(!retired.free(), "the other one is still inside");
    assert!(!freed.load(Ordering::SeqCst));
    insider.end();
    assert!(retired.free());
    assert!(freed.load(Ordering::SeqCst));
}

/// Runs a test of this module that must end its process, in one of its own; gives what it says.
fn last_words(test: &str) -> String {
    let this = std::env::current_exe().expect("the test program");
    let mut command = std::process::Command::new(this);
    command.args(["--exact", "--ignored", "--nocapture"]);
    let output = command.arg(format!("sync::epoch::tests::{test}")).output().expect("it starts");
    let says = String::from_utf8_lossy(&output.stderr).into_owned();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGABRT), "{says}");
    says
}

#[test]
fn a_thread_that_would_wait_for_itself_ends_loudly() {
    let says = last_words("waits_inside");
    assert!(says.contains("a section that others may wait for waits for"), "{says}");
    let says = last_words("waits_in_a_handler");
    assert!(says.contains("a handler of frames waits for"), "{says}");
}

#[test]
#[ignore = "ends its process; run by a_thread_that_would_wait_for_itself_ends_loudly"]
fn waits_inside() {
    let _inside = enter();
    synchronize();
}

#[test]
#[ignore = "ends its process; run by a_thread_that_would_wait_for_itself_ends_loudly"]
fn waits_in_a_handler() {
    let _handling = handling();
    synchronize();
}
