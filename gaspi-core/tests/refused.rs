//! Bound memory where the kernel refuses to copy between processes: a seccomp filter does so here,
//! as containers do, and the target's progress has to help. Ranks are threads that inherit the
//! filter; where a target has to be stopped or killed they are processes.

#[macro_use]
mod ranks;

#[path = "refused/silent.rs"]
mod silent;

use gaspi_core::*;
use ranks::{LIMIT, run, run_with};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::Duration;

fn main() -> std::process::ExitCode {
    ranks::run_tests([tests(), silent::tests()])
}

/// Bound memory.
const BOUND: SegmentId = SegmentId(0);
/// Memory of the library.
const OWN: SegmentId = SegmentId(1);
const Q0: QueueId = QueueId(0);
const LEN: usize = 2 << 20;
const ODD_LEN: usize = (1 << 20) + 3;

/// From here on this thread and all that it starts get EPERM for process_vm_readv and _writev.
fn refuse() {
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let statement =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ);
    let mut filter = [
        // The number of the system call comes first in seccomp_data.
        statement(load, 0, 0, 0),
        statement(equal, 1, 0, libc::SYS_process_vm_readv as u32),
        statement(equal, 0, 1, libc::SYS_process_vm_writev as u32),
        statement(libc::BPF_RET, 0, 0, DENY),
        statement(libc::BPF_RET, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: prctl with integers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program lives across the call, and the kernel copies it.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "no seccomp filter: {}", std::io::Error::last_os_error());
    assert!(is_refused(), "the filter does nothing");
}

fn is_refused() -> bool {
    let mut word = 0u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    // SAFETY: reads this process's word into itself.
    let read = unsafe {
        let pid = libc::getpid();
        libc::process_vm_readv(pid, &raw const local, 1, &raw const local, 1, 0)
    };
    read < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Memory of the program's, bound by all ranks; it outlives the segment.
struct Memory(Vec<u64>);

impl Memory {
    fn bind(rt: &Runtime) -> Memory {
        Memory::bind_len(rt, LEN)
    }

    fn bind_len(rt: &Runtime, len: usize) -> Memory {
        let mut memory = vec![0u64; len / 8];
        let pointer = memory.as_mut_ptr().cast();
        // SAFETY: the memory is dropped after the segment was deleted, see `unbind`.
        unsafe { rt.segment_use(BOUND, pointer, len as u64, GroupId::ALL, LIMIT) }.expect("use");
        rt.segment_create(OWN, len as u64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        Memory(memory)
    }

    fn unbind(self, rt: &Runtime) {
        rt.segment_delete(BOUND).expect("delete");
        drop(self.0);
    }
}

fn meet(rt: &Runtime) {
    rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
}

fn peer(rt: &Runtime) -> Rank {
    Rank(((u32::from(rt.rank().0) + 1) % rt.size()) as u16)
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

fn bytes_at(rt: &Runtime, segment: SegmentId, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rt.segment_read(segment, offset, &mut bytes).expect("inside");
    bytes
}

/// `size` bytes from OWN to the bound memory of `rank`, both at `offset`.
fn out(rank: Rank, offset: u64, size: usize) -> Transfer {
    let (local_offset, remote_offset) = (offset, offset);
    Transfer { local: OWN, local_offset, rank, remote: BOUND, remote_offset, size: size as u64 }
}

fn writes_of_every_size_arrive() {
    refuse();
    for ranks in [2, 3, 5] {
        run(ranks, |rt| {
            let memory = Memory::bind(rt);
            let (me, next) = (rt.rank(), peer(rt));
            let before = u64::from((u32::from(me.0) + ranks - 1) % ranks);
            for (round, size) in (0..).zip([0, 1, 7, 4096, ODD_LEN]) {
                let seed = |rank: u64| rank * 10 + round;
                rt.segment_write(OWN, 5, &pattern(seed(me.0.into()), size)).expect("inside");
                rt.write(&out(next, 5, size), Q0, LIMIT).expect("write");
                rt.wait(Q0, LIMIT).expect("wait");
                meet(rt);
                assert!(bytes_at(rt, BOUND, 5, size) == pattern(seed(before), size), "{size}");
                assert_eq!(bytes_at(rt, BOUND, 5 + size as u64, 1), [0], "nothing beyond");
                meet(rt);
            }
            memory.unbind(rt);
        });
    }
}

fn reads_of_every_size_arrive() {
    refuse();
    for ranks in [2, 3] {
        run(ranks, |rt| {
            let memory = Memory::bind(rt);
            let next = peer(rt);
            rt.segment_write(BOUND, 0, &pattern(rt.rank().0.into(), LEN)).expect("inside");
            meet(rt);
            for size in [0, 1, 7, 4096, ODD_LEN] {
                rt.segment_write(OWN, 3, &vec![0; size + 1]).expect("inside");
                rt.read(&out(next, 3, size), Q0, LIMIT).expect("read");
                rt.wait(Q0, LIMIT).expect("wait");
                let expected = &pattern(next.0.into(), LEN)[3..3 + size];
                assert!(bytes_at(rt, OWN, 3, size) == expected, "{size} bytes");
                assert_eq!(bytes_at(rt, OWN, 3 + size as u64, 1), [0], "nothing beyond");
            }
            meet(rt);
            memory.unbind(rt);
        });
    }
}

fn notifications_follow_writes_that_are_under_way() {
    refuse();
    run(2, |rt| {
        let memory = Memory::bind(rt);
        for round in 1..=30u32 {
            let small = NotificationId(1);
            let answer = NotificationId(2);
            if rt.rank() == Rank(0) {
                rt.segment_write(OWN, 0, &pattern(round.into(), ODD_LEN)).expect("inside");
                rt.write(&out(Rank(1), 0, ODD_LEN), Q0, LIMIT).expect("write");
                match round % 3 {
                    // Behind the large write: with data of its own, alone, and to mapped memory.
                    0 => {
                        let t = out(Rank(1), ODD_LEN as u64, 9);
                        rt.write_notify(&t, small, round, Q0, LIMIT).expect("write_notify");
                    }
                    1 => rt.notify(Rank(1), BOUND, small, round, Q0, LIMIT).expect("notify"),
                    _ => {
                        let t = Transfer { remote: OWN, ..out(Rank(1), ODD_LEN as u64, 9) };
                        rt.write(&t, Q0, LIMIT).expect("write");
                        rt.notify(Rank(1), BOUND, small, round, Q0, LIMIT).expect("notify");
                    }
                }
                rt.notify_waitsome(OWN, 2, 1, LIMIT).expect("answer");
                rt.notify_reset(OWN, answer).expect("reset");
                rt.wait(Q0, LIMIT).expect("wait");
            } else {
                rt.notify_waitsome(BOUND, 1, 1, LIMIT).expect("notified");
                assert_eq!(rt.notify_reset(BOUND, small), Ok(round));
                let got = bytes_at(rt, BOUND, 0, ODD_LEN);
                assert!(got == pattern(round.into(), ODD_LEN), "round {round}");
                rt.notify(Rank(0), OWN, answer, 1, Q0, LIMIT).expect("notify");
                rt.wait(Q0, LIMIT).expect("wait");
            }
        }
        meet(rt);
        memory.unbind(rt);
    });
}

fn read_notify_follows_reads_that_are_under_way() {
    refuse();
    run(2, |rt| {
        let memory = Memory::bind(rt);
        rt.segment_write(BOUND, 0, &pattern(rt.rank().0.into(), LEN)).expect("inside");
        meet(rt);
        let next = peer(rt);
        for round in 0..20 {
            rt.segment_write(OWN, 0, &vec![0; LEN]).expect("inside");
            rt.read(&out(next, 8, ODD_LEN), Q0, LIMIT).expect("read");
            let size = if round % 2 == 0 { 4096 } else { 0 };
            let last = out(next, (1 << 20) + 64, size);
            rt.read_notify(&last, NotificationId(4), Q0, LIMIT).expect("read_notify");
            rt.notify_waitsome(OWN, 4, 1, LIMIT).expect("arrived");
            assert_eq!(rt.notify_reset(OWN, NotificationId(4)), Ok(1));
            let all = pattern(next.0.into(), LEN);
            assert!(bytes_at(rt, OWN, 8, ODD_LEN) == all[8..8 + ODD_LEN], "round {round}");
            let from = (1 << 20) + 64;
            assert!(bytes_at(rt, OWN, from as u64, size) == all[from..from + size]);
            rt.wait(Q0, LIMIT).expect("wait");
        }
        meet(rt);
        memory.unbind(rt);
    });
}

fn lists_arrive_whole_before_their_notification() {
    refuse();
    run(3, |rt| {
        let memory = Memory::bind(rt);
        let (me, next) = (rt.rank(), peer(rt));
        rt.segment_write(OWN, 0, &pattern(me.0.into(), LEN)).expect("inside");
        let offsets: Vec<u64> = (0..100).map(|element| element * 5000).collect();
        let list = TransferList {
            rank: next,
            local: &[OWN; 100],
            local_offsets: &offsets,
            remote: &[BOUND; 100],
            remote_offsets: &offsets,
            sizes: &[4999; 100],
        };
        rt.write_list_notify(&list, BOUND, NotificationId(0), 8, Q0, LIMIT).expect("write list");
        rt.notify_waitsome(BOUND, 0, 1, LIMIT).expect("notified");
        let before = pattern(u64::from((me.0 + 2) % 3), LEN);
        for at in offsets.iter().map(|at| *at as usize) {
            assert!(bytes_at(rt, BOUND, at as u64, 4999) == before[at..at + 4999]);
        }
        rt.wait(Q0, LIMIT).expect("wait");
        meet(rt);
        memory.unbind(rt);
    });
}

fn atomics_on_memory_that_is_not_mapped_are_exact() {
    refuse();
    run(4, |rt| {
        let memory = Memory::bind(rt);
        for _ in 0..200 {
            rt.atomic_fetch_add(BOUND, 16, Rank(1), 3, LIMIT).expect("add");
        }
        meet(rt);
        if rt.rank() == Rank(1) {
            let sum = u64::from_ne_bytes(bytes_at(rt, BOUND, 16, 8).try_into().expect("8 bytes"));
            assert_eq!(sum, 4 * 200 * 3);
        }
        let me = u64::from(rt.rank().0) + 1;
        let won = rt.atomic_compare_swap(BOUND, 24, Rank(2), 0, me, LIMIT) == Ok(0);
        meet(rt);
        let winner = rt.atomic_compare_swap(BOUND, 24, Rank(2), u64::MAX, 0, LIMIT).expect("read");
        assert_eq!(won, winner == me, "exactly one wins");
        assert!(matches!(
            rt.atomic_fetch_add(BOUND, 12, Rank(2), 1, LIMIT),
            Err(Error::Unaligned { offset: 12 })
        ));
        meet(rt);
        memory.unbind(rt);
    });
}

fn a_refusal_that_comes_later_is_met_too() {
    // Allowed when the memory was registered, refused when it is used.
    run(2, |rt| {
        let memory = Memory::bind(rt);
        refuse();
        let me = u64::from(rt.rank().0);
        rt.segment_write(OWN, 0, &pattern(me, ODD_LEN)).expect("inside");
        rt.write(&out(peer(rt), 0, ODD_LEN), Q0, LIMIT).expect("write");
        rt.wait(Q0, LIMIT).expect("wait");
        meet(rt);
        assert!(bytes_at(rt, BOUND, 0, ODD_LEN) == pattern(1 - me, ODD_LEN));
        rt.read(&out(peer(rt), 0, ODD_LEN), Q0, LIMIT).expect("read");
        rt.wait(Q0, LIMIT).expect("wait");
        assert!(bytes_at(rt, OWN, 0, ODD_LEN) == pattern(me, ODD_LEN));
        meet(rt);
        memory.unbind(rt);
    });
}

fn a_full_queue_of_staged_requests_is_refused_at_once() {
    refuse();
    let config = Config { queue_size_max: 4, ..Config::default() };
    run_with(2, &config, |rt| {
        let memory = Memory::bind(rt);
        for _ in 0..20 {
            for posted in 0..4 {
                assert_eq!(rt.queue_size(Q0), Ok(posted));
                rt.write(&out(peer(rt), 0, 65536), Q0, LIMIT).expect("room");
            }
            let full = rt.write(&out(peer(rt), 0, 8), Q0, Timeout::Block);
            assert_eq!(full, Err(Error::QueueFull { queue: Q0, limit: 4 }));
            rt.wait(Q0, LIMIT).expect("wait");
        }
        meet(rt);
        memory.unbind(rt);
    });
}

fn targets_are_deleted_while_requests_are_under_way() {
    /// Long enough for the delete to come in the midst of the requests, unless the thread that
    /// deletes has to wait for a core.
    const LONG: usize = 32 << 20;
    const ENOUGH: usize = 8;
    refuse();
    let mut rounds_in_midst = 0;
    for round in 0.. {
        assert!(round < 20 * ENOUGH, "the delete came {rounds_in_midst} times in the midst");
        // Once for the posts, once for the delete.
        let both = Barrier::new(2);
        let in_midst = run(2, |rt| {
            let memory = Memory::bind_len(rt, LONG);
            if rt.rank() == Rank(1) {
                both.wait();
                while bytes_at(rt, BOUND, 0, 1) == [0] {
                    std::thread::yield_now();
                }
                rt.segment_delete(BOUND).expect("delete");
                // From here on nobody may touch it, whatever is still under way.
                let last = memory.0.last().copied();
                both.wait();
                meet(rt);
                assert_eq!(std::hint::black_box(&memory.0).last().copied(), last, "a stray write");
                false
            } else {
                rt.segment_write(OWN, 0, &vec![0x11; LONG]).expect("inside");
                for _ in 0..3 {
                    rt.write(&out(Rank(1), 0, LONG), Q0, LIMIT).expect("write");
                    rt.read(&out(Rank(1), 0, 4096), Q0, LIMIT).expect("read");
                }
                both.wait();
                let in_midst = match rt.wait(Q0, LIMIT) {
                    Err(Error::RequestFailed { reason, .. }) => {
                        assert!(reason.contains("deleted"), "{reason}");
                        true
                    }
                    other => {
                        assert_eq!(other, Ok(()));
                        false
                    }
                };
                rt.queue_purge(Q0, LIMIT).expect("purge");
                rt.wait(Q0, LIMIT).expect("clean");
                both.wait();
                let after = rt.write(&out(Rank(1), 0, 8), Q0, LIMIT);
                after.and_then(|()| rt.wait(Q0, LIMIT)).expect_err("it was deleted");
                rt.queue_purge(Q0, LIMIT).expect("purge");
                meet(rt);
                memory.unbind(rt);
                in_midst
            }
        });
        rounds_in_midst += usize::from(in_midst.contains(&true));
        if rounds_in_midst == ENOUGH {
            return;
        }
    }
}

/// Ends the ranks that are still there when a test fails.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // SAFETY: our own child, not waited for yet. A stopped one dies too.
            unsafe { libc::kill(child.id().cast_signed(), libc::SIGKILL) };
            let _ = child.wait();
        }
    }
}

/// Runs `body` on two ranks that are processes; `test` is the name of the calling test, which is
/// what the processes run. `killed` is the rank whose end by SIGKILL is expected.
fn two_processes(test: &str, killed: Option<usize>, body: impl FnOnce(&Runtime)) {
    if std::env::var_os("GASPI_RANK").is_some() {
        let _watched = ranks::watchdog(test.to_owned());
        refuse();
        let job = Job::from_environment().expect("job");
        let rt =
            PendingInit::new(job, Config::default()).expect("joining").wait(LIMIT).expect("meet");
        body(&rt);
        let left = rt.term(LIMIT);
        assert!(matches!(left, Ok(()) | Err(Error::NotInitialised)), "{left:?}");
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let start = |rank: u32| {
        Command::new(&program)
            .args(["--exact", &format!("shm/{test}"), "--nocapture", "--test-threads=1"])
            .env("GASPI_RANK", rank.to_string())
            .env("GASPI_NRANKS", "2")
            .env("GASPI_JOB_ID", format!("{test}-{}", std::process::id()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a rank")
    };
    let mut ranks = Processes((0..2).map(start).collect());
    for (rank, child) in ranks.0.iter_mut().enumerate() {
        let mut text = String::new();
        let mut output = child.stdout.take().expect("a pipe");
        output.read_to_string(&mut text).expect("output");
        let status = child.wait().expect("its end");
        assert_eq!(!status.success(), killed == Some(rank), "rank {rank}: {status}\n{text}");
        assert!(killed == Some(rank) || text.contains("1 passed"), "rank {rank}: {text}");
    }
    ranks.0.clear();
}

/// Tells rank 0 the process of rank 1, and returns it there.
fn process_of_rank_1(rt: &Runtime) -> libc::pid_t {
    let id = u64::from(std::process::id());
    if rt.rank() == Rank(1) {
        rt.segment_write(OWN, 0, &id.to_ne_bytes()).expect("inside");
    }
    meet(rt);
    let t = Transfer { remote: OWN, ..out(Rank(1), 0, 8) };
    rt.read(&t, Q0, LIMIT).expect("read");
    rt.wait(Q0, LIMIT).expect("wait");
    meet(rt);
    u64::from_ne_bytes(bytes_at(rt, OWN, 0, 8).try_into().expect("8 bytes")) as libc::pid_t
}

/// The state of a process of this test that its parent has not waited for, as /proc shows it.
fn state_of(pid: libc::pid_t) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its stat");
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.expect("a state").to_owned()
}

/// Sends a signal and waits until the process is in `state`.
fn signal_until(pid: libc::pid_t, signal: i32, state: &[&str]) {
    // SAFETY: a process of this test that its parent has not waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    loop {
        let found = state_of(pid);
        if state.contains(&found.as_str()) {
            return;
        }
        assert!(found != "Z" && found != "X", "rank 1 has ended, it was to be in {state:?}");
        std::thread::yield_now();
    }
}

/// Has a stopped process go on. It may have ended when this returns.
fn resume(pid: libc::pid_t) {
    // SAFETY: a process of this test that its parent has not waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
    while state_of(pid) == "T" {
        std::thread::yield_now();
    }
}

fn a_stopped_target_only_makes_calls_time_out() {
    two_processes("a_stopped_target_only_makes_calls_time_out", None, |rt| {
        let memory = Memory::bind(rt);
        let pid = process_of_rank_1(rt);
        if rt.rank() == Rank(0) {
            let words = pattern(1, LEN);
            rt.segment_write(OWN, 0, &words).expect("inside");
            signal_until(pid, libc::SIGSTOP, &["T"]);
            rt.write(&out(Rank(1), 0, ODD_LEN), Q0, LIMIT).expect("posting does not wait");
            let n = NotificationId(1);
            rt.notify(Rank(1), BOUND, n, 1, Q0, LIMIT).expect("nor does notifying");
            for timeout in [Timeout::Test, Timeout::Millis(50)] {
                let error = rt.wait(Q0, timeout).expect_err("nobody copies");
                assert!(error.is_timeout(), "{error}");
            }
            let add = rt.atomic_fetch_add(BOUND, LEN as u64 - 8, Rank(1), 1, Timeout::Millis(50));
            assert!(add.expect_err("nobody adds").is_timeout());
            assert!(rt.ping(Rank(1), Timeout::Millis(50)).expect_err("stopped").is_timeout());
            assert_eq!(rt.queue_size(Q0), Ok(2), "still pending");
            assert_eq!(rt.state(Rank(1)), Ok(State::Healthy));
            let term = rt.term(Timeout::Millis(50)).expect_err("requests are under way");
            assert!(term.is_timeout(), "{term}");
            // Another queue and the rest of the interface are not delayed.
            let mapped = Transfer { remote: OWN, ..out(Rank(1), 64, 64) };
            rt.write(&mapped, QueueId(1), LIMIT).expect("write");
            rt.wait(QueueId(1), Timeout::Test).expect("done when posted");
            resume(pid);
            rt.wait(Q0, LIMIT).expect("all continues");
            let add = rt.atomic_fetch_add(BOUND, LEN as u64 - 8, Rank(1), 1, LIMIT);
            assert_eq!(add, Ok(0), "the same call continues, it does not add twice");
        } else {
            rt.notify_waitsome(BOUND, 1, 1, LIMIT).expect("notified");
            assert!(bytes_at(rt, BOUND, 0, ODD_LEN) == pattern(1, LEN)[..ODD_LEN]);
        }
        meet(rt);
        if rt.rank() == Rank(1) {
            assert_eq!(bytes_at(rt, BOUND, LEN as u64 - 8, 8), 1u64.to_ne_bytes());
        }
        memory.unbind(rt);
    });
}

fn requests_under_way_can_be_purged() {
    two_processes("requests_under_way_can_be_purged", None, |rt| {
        let memory = Memory::bind(rt);
        rt.segment_write(BOUND, 0, &[7; 4096]).expect("inside");
        let pid = process_of_rank_1(rt);
        if rt.rank() == Rank(0) {
            signal_until(pid, libc::SIGSTOP, &["T"]);
            rt.segment_write(OWN, 0, &[0; 8192]).expect("inside");
            rt.read_notify(&out(Rank(1), 0, 4096), NotificationId(3), Q0, LIMIT).expect("read");
            rt.write(&out(Rank(1), 4096, ODD_LEN), Q0, LIMIT).expect("write");
            assert!(rt.wait(Q0, Timeout::Test).expect_err("nobody copies").is_timeout());
            rt.queue_purge(Q0, Timeout::Test).expect("purge");
            assert_eq!(rt.queue_size(Q0), Ok(0));
            rt.wait(Q0, Timeout::Test).expect("nothing is left to wait for");
            // The place of the purged read serves another purpose by now.
            rt.segment_write(OWN, 0, &[9; 4096]).expect("inside");
            resume(pid);
            // Answers come in order: once this one is here, so are the late ones.
            rt.read(&out(Rank(1), 4096, 8), Q0, LIMIT).expect("read");
            rt.wait(Q0, LIMIT).expect("the queue works");
            assert!(bytes_at(rt, OWN, 0, 4096) == [9; 4096], "a purged read wrote");
            assert_eq!(rt.notify_reset(OWN, NotificationId(3)), Ok(0), "a purged read notified");
        }
        meet(rt);
        memory.unbind(rt);
    });
}

fn a_target_that_dies_ends_what_is_under_way() {
    two_processes("a_target_that_dies_ends_what_is_under_way", Some(1), |rt| {
        let memory = Memory::bind(rt);
        let pid = process_of_rank_1(rt);
        if rt.rank() == Rank(1) {
            // Nothing comes any more: rank 0 ends this process.
            let _ = rt.notify_waitsome(BOUND, 0, 1, LIMIT);
            panic!("still alive");
        }
        signal_until(pid, libc::SIGSTOP, &["T"]);
        rt.write(&out(Rank(1), 0, ODD_LEN), Q0, LIMIT).expect("write");
        rt.read(&out(Rank(1), 0, 4096), Q0, LIMIT).expect("read");
        assert!(rt.wait(Q0, Timeout::Test).expect_err("nobody copies").is_timeout());
        let killed = std::time::Instant::now();
        signal_until(pid, libc::SIGKILL, &["Z", "X"]);
        match rt.wait(Q0, Timeout::Block) {
            Err(Error::RequestFailed { reason, .. }) => {
                assert!(reason.contains("rank 1"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        // Ten times what is promised.
        assert!(killed.elapsed() < Duration::from_secs(10));
        assert_eq!(rt.state(Rank(1)), Ok(State::Corrupt));
        rt.queue_purge(Q0, LIMIT).expect("purge");
        let add = rt.atomic_fetch_add(BOUND, 0, Rank(1), 1, LIMIT);
        assert!(matches!(add, Err(Error::RankDied { rank: Rank(1), .. })), "{add:?}");
        memory.unbind(rt);
    });
}

tests! {
    SHM:
        writes_of_every_size_arrive,
        reads_of_every_size_arrive,
        notifications_follow_writes_that_are_under_way,
        read_notify_follows_reads_that_are_under_way,
        lists_arrive_whole_before_their_notification,
        atomics_on_memory_that_is_not_mapped_are_exact,
        a_refusal_that_comes_later_is_met_too,
        a_full_queue_of_staged_requests_is_refused_at_once,
        targets_are_deleted_while_requests_are_under_way,
        a_stopped_target_only_makes_calls_time_out,
        requests_under_way_can_be_purged,
        a_target_that_dies_ends_what_is_under_way;
}
