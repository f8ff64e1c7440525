//! What a peer tells of a pair: beside a thread that looks at what this rank's device has told, and
//! of attempts that have ended.

use super::*;
use crate::Transport;
use crate::bootstrap::Job;
use crate::config::{Config, DeviceChoice, MessageCarrier};
use crate::ids::{GroupId, SegmentId};
use crate::one_sided::Transfer;
use crate::os::socket::{self, Piece};
use crate::runtime::{PendingInit, Runtime};
use crate::segment::Init;
use crate::timeout::Timeout;
use crate::transport::tcp::receive::Incoming;
use crate::wire::frame::{Frame, PREFIX};
use crate::wire::message::Pairing;
use gaspi_mock_card::{Fabric, MockCard, Options};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const LIMIT: Timeout = Timeout::Millis(60_000);
const S0: SegmentId = SegmentId(0);
pub(crate) const Q0: QueueId = QueueId(0);
/// As a device says it that refuses a length.
const LENGTH_ERROR: u32 = 1;

/// Runs `body` with two ranks that have a device each, which carries data of queues only.
pub(crate) fn beside_mock(mut options: Options, body: impl FnOnce(&Fabric, [Runtime; 2])) {
    static JOBS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let mock = MockCard::load().expect("the mock card has been built");
    options.behaviour.devices = 2;
    let fabric = mock.fabric(&options);
    let id = format!("told-{}", JOBS.fetch_add(1, Ordering::Relaxed));
    let join = |rank: u16| {
        fabric.use_all();
        let mut job = Job::in_process(&id, Rank(rank), 2).on_node(rank.into());
        job.transport = Transport::Verbs;
        job.device = DeviceChoice {
            library: Some(mock.path().as_os_str().to_owned()),
            devices: vec![format!("mock{}_{rank}", fabric.number())],
            messages: MessageCarrier::Tcp,
            ..DeviceChoice::default()
        };
        let rt = PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap();
        rt.segment_create(S0, 64, GroupId::ALL, LIMIT, Init::Zeroed).unwrap();
        rt
    };
    let ranks = thread::scope(|scope| {
        let join = &join;
        let joining = [0, 1].map(|rank| scope.spawn(move || join(rank)));
        joining.map(|rank| rank.join().unwrap())
    });
    body(&fabric, ranks);
}

/// Both ranks leave.
pub(crate) fn end(ranks: [Runtime; 2]) {
    thread::scope(|scope| {
        for rt in &ranks {
            scope.spawn(move || rt.term(LIMIT).expect("term"));
        }
    });
}

pub(crate) fn write(rt: &Runtime) {
    let (local, remote, rank, size) = (S0, S0, Rank(1 - rt.rank().0), 8);
    let write = Transfer { local, local_offset: 0, rank, remote, remote_offset: 0, size };
    rt.write(&write, Q0, LIMIT).expect("posted");
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "waiting until {what}");
        thread::yield_now();
    }
}

#[test]
fn a_rank_tells_its_own_reason_though_another_thread_has_it_in_hand() {
    beside_mock(Options::kind(), |fabric, [one, other]| {
        write(&one);
        one.wait(Q0, LIMIT).expect("done");
        let verbs = one.inner().endpoints.verbs(one.inner()).expect("a device");
        let attempt = verbs.table.lane(Q0, Rank(1)).lock().pairing.attempt();
        // This thread looks, and has taken the completion that tells the reason.
        let receives = verbs.table.receives.lock();
        fabric.fail(0, 0, 1, LENGTH_ERROR);
        write(&one);
        let mut taken = Completions::none();
        until("it completes", || {
            verbs.table.device.poll_sent(&mut taken);
            taken.count() > 0
        });
        thread::scope(|scope| {
            let reason = "the peer's word".to_owned();
            let ended = Pairing::Ended { queue: Q0, attempt, refuses: false, reason };
            let hears = scope.spawn(|| {
                let _handling = epoch::handling();
                verbs.told(Rank(1), ended);
            });
            // One that does not wait for the look has heard it soon.
            let begin = Instant::now();
            while !hears.is_finished() && begin.elapsed() < Duration::from_millis(300) {
                thread::yield_now();
            }
            taken.iter().for_each(|completion| verbs.sent(&completion));
            drop(receives);
        });
        let reason = one.wait(Q0, LIMIT).expect_err("the write has failed").to_string();
        assert!(!reason.contains("the peer's word"), "{reason}");
        one.queue_purge(Q0, LIMIT).expect("purge");
        end([one, other]);
    });
}

/// It may come by a connection that was not there when the attempt has ended here.
#[test]
fn a_peer_that_switches_to_an_attempt_that_has_ended_hears_that_nothing_has_come() {
    beside_mock(Options::kind(), |_, [one, other]| {
        let (verbs, tcp) = (one.inner().endpoints.verbs(one.inner()), one.inner().tcp());
        let verbs = verbs.expect("a device");
        let attempt = {
            let mut state = verbs.table.lane(STREAM, Rank(1)).lock();
            drop((state.pairing.begin(), state.pairing.fail("it has ended")));
            state.pairing.attempt()
        };
        let (own, peers) = socket::pair().expect("sockets");
        let connection = tcp.table.connections.between_nodes(Rank(1));
        connection.established(own);
        let mut switch = Vec::new();
        Frame::Switch { attempt, number: 7, continues: 0 }.append_to(&mut switch);
        assert_eq!(Incoming::default().feed(tcp, &connection, &switch), Ok(()));
        let mut said = [0; 256];
        let piece = Piece { pointer: said.as_mut_ptr(), len: said.len() };
        // SAFETY: the array is writable.
        let len = unsafe { socket::receive_bytes(peers.as_fd(), piece) }.unwrap_or(0);
        let (mut frames, mut left) = (Vec::new(), &said[..len]);
        while let Some((prefix, behind)) = left.split_first_chunk::<PREFIX>() {
            let (frame, behind) = behind.split_at(u32::from_le_bytes(*prefix) as usize);
            frames.push(Frame::decode(frame).expect("a frame"));
            left = behind;
        }
        let back = Frame::Back { attempt, number: 7, messages: 0 };
        assert!(frames.contains(&back), "{frames:?}");
        end([one, other]);
    });
}
