//! What can be seen of processes, and what cannot: the children here are made by fork, so that they
//! can be without descriptors or in another pid namespace.

use super::*;
use std::ffi::CStr;
use std::os::fd::AsFd;

/// A forked child; ended and reaped at the end.
struct Child(i32);

impl Child {
    /// Runs `work` in a forked child, which ends with what it returns. `work` must neither allocate
    /// much nor take locks that other threads of this process may hold.
    fn fork(work: impl FnOnce() -> i32) -> Child {
        // SAFETY: the child only runs `work` and ends without exit handlers.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", io::Error::last_os_error()),
            0 => {
                let work = std::panic::AssertUnwindSafe(work);
                exit_now(std::panic::catch_unwind(work).unwrap_or(101))
            }
            pid => Child(pid),
        }
    }

    fn sleeping() -> Child {
        Child::fork(|| {
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        })
    }

    /// Waits until the child has ended, and leaves it a zombie.
    fn let_end(&self) {
        // SAFETY: all zeroes is a valid value, which waitid overwrites.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: writes the struct that it is given.
        let failed = unsafe { libc::waitid(libc::P_PID, self.0 as u32, &raw mut info, flags) };
        assert_eq!(failed, 0, "{}", io::Error::last_os_error());
    }

    /// Its exit status.
    fn reap(self) -> i32 {
        let mut status = 0;
        // SAFETY: writes the integer that it is given.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(pid, self.0, "{}", io::Error::last_os_error());
        std::mem::forget(self);
        assert!(libc::WIFEXITED(status), "status {status:#x}");
        libc::WEXITSTATUS(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child that was not waited for, so that the number is its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: its status is not asked for.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// 0 if `seen` is what `wanted` looks for: how a child tells its test.
fn code(seen: &Seen, wanted: impl FnOnce(&Seen) -> bool) -> i32 {
    match seen {
        seen if wanted(seen) => 0,
        Seen::Running => 1,
        Seen::Ended => 2,
        Seen::Unknown(_) => 3,
    }
}

/// Takes all descriptors of this process.
fn exhaust() {
    let limit = libc::rlimit { rlim_cur: 32, rlim_max: 32 };
    // SAFETY: reads the struct that it is given.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    // SAFETY: makes descriptors that nobody uses.
    while unsafe { libc::dup(2) } >= 0 {}
}

#[test]
fn a_process_that_runs_is_seen_to_run() {
    let child = Child::sleeping();
    let started = start_time(child.0).expect("start time");
    assert_eq!(Watched::new(child.0, started).look(), Seen::Running);
    assert_eq!(Watched::new(child.0, 0).look(), Seen::Running);
    let pidfd = open(child.0, started).expect("pidfd").expect("running");
    assert!(!has_ended(&pidfd));
    assert!(open(child.0, started + 1).expect("pidfd").is_none());
}

#[test]
fn a_zombie_and_nobody_have_ended() {
    let child = Child::fork(|| 0);
    let pid = child.0;
    child.let_end();
    let started = start_time(pid).expect("start time");
    assert_eq!(Watched::new(pid, started).look(), Seen::Ended);
    assert!(has_ended(&open(pid, 0).expect("pidfd").expect("a zombie has one")));
    assert_eq!(child.reap(), 0);
    assert_eq!(Watched::new(pid, started).look(), Seen::Ended);
    assert!(open(pid, started).expect("no error").is_none());
}

#[test]
fn a_later_process_of_the_number_is_told_from_a_stranger() {
    let child = Child::sleeping();
    let started = start_time(child.0).expect("start time");
    let later = Stat { zombie: false, parent: 1, threads: 1, start_time: started + 7 };
    let mut watched = Watched::new(child.0, started);
    // Never seen before: /proc may be that of others.
    assert!(matches!(watched.judge(&later), Seen::Unknown(_)));
    assert_eq!(watched.look(), Seen::Running);
    assert_eq!(watched.judge(&later), Seen::Ended);
    // Threads go on without the first one.
    let headless = Stat { zombie: true, parent: 1, threads: 2, start_time: started };
    assert_eq!(watched.judge(&headless), Seen::Running);
}

#[test]
fn without_descriptors_the_living_live_and_the_dead_are_dead() {
    let living = Child::sleeping();
    let started = start_time(living.0).expect("start time");
    let pid = living.0;
    let looker = Child::fork(move || {
        exhaust();
        if open(pid, started).is_ok() {
            return 9;
        }
        code(&Watched::new(pid, started).look(), |seen| matches!(seen, Seen::Unknown(_)))
    });
    assert_eq!(looker.reap(), 0, "a living process, seen without descriptors");
    let dead = Child::fork(|| 0);
    let pid = dead.0;
    dead.reap();
    let looker = Child::fork(move || {
        exhaust();
        code(&Watched::new(pid, 1).look(), |seen| *seen == Seen::Ended)
    });
    assert_eq!(looker.reap(), 0, "a process that has ended, seen without descriptors");
}

/// Makes namespaces of its own: with the rights of root, also below a changed root, else with those
/// that a user namespace gives.
fn enter_namespaces(kinds: libc::c_int) -> bool {
    // SAFETY: takes flags.
    let unshare = |kinds| unsafe { libc::unshare(kinds) == 0 };
    unshare(kinds) || unshare(libc::CLONE_NEWUSER | kinds)
}

/// Gives up /proc and looks: as hidepid and a /proc that is not mounted have it.
#[test]
fn without_proc_the_living_live() {
    let living = Child::sleeping();
    let started = start_time(living.0).expect("start time");
    let pid = living.0;
    let looker = Child::fork(move || {
        if !enter_namespaces(libc::CLONE_NEWNS) {
            return 77;
        }
        let mount = |at: &CStr, kind: &CStr, flags| {
            let (from, to, kind) = (c"none".as_ptr(), at.as_ptr(), kind.as_ptr());
            // SAFETY: C strings, and no data.
            unsafe { libc::mount(from, to, kind, flags, std::ptr::null()) == 0 }
        };
        // Nothing may spread to the namespace above. A changed root is no place of a mount.
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let is_private = mount(c"/", c"none", private) || mount(c"/proc", c"none", private);
        if !is_private || !mount(c"/proc", c"tmpfs", 0) {
            return 78;
        }
        code(&Watched::new(pid, started).look(), |seen| matches!(seen, Seen::Unknown(_)))
    });
    assert_eq!(
        looker.reap(),
        0,
        "77 and 78: namespaces are refused here, so that nothing was tested"
    );
}

/// The end of a socket pair that a forked child keeps tells who is on the other side only as far as
/// its pid namespace goes: this is how ranks know whether numbers of processes mean the same to
/// them.
#[test]
fn the_kernel_names_nobody_of_a_namespace_above() {
    let name = format!("gaspi-process-test-{}", std::process::id());
    let listener = crate::os::socket::listen(&name).expect("listener");
    let below = Child::fork(|| {
        if !enter_namespaces(libc::CLONE_NEWPID) {
            return 77;
        }
        // The next child is the first process of the namespace.
        let first = Child::fork(|| {
            let Ok(fd) = crate::os::socket::connect(&name) else { return 78 };
            match crate::os::socket::credentials(fd.as_fd()) {
                Ok(who) if who.pid == 0 => 0,
                Ok(_) => 1,
                Err(_) => 79,
            }
        });
        first.reap()
    });
    assert_eq!(below.reap(), 0, "77: namespaces are refused here, so that nothing was tested");
    drop(listener);
}

#[test]
fn the_parent_comes_first_among_the_ancestors() {
    let found: Vec<i32> = ancestors().collect();
    let parent = std::os::unix::process::parent_id().cast_signed();
    assert!(parent == 0 || found.first() == Some(&parent), "{found:?}");
    assert!(!found.contains(&std::process::id().cast_signed()), "{found:?}");
}
