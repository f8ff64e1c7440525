//! More receivers than a rank has buffers for messages to them.

use super::*;
use crate::bootstrap::Job;
use crate::config::Config;
use crate::error::Error;
use crate::runtime::{PendingInit, Runtime};
use crate::segment::Init;
use crate::timeout::Timeout;

const LIMIT: Timeout = Timeout::Millis(60_000);
const S0: SegmentId = SegmentId(0);

#[test]
fn messages_that_timed_out_do_not_keep_their_buffers_for_ever() {
    const RANKS: u16 = OUTBOX_BUFFERS as u16 + 2;
    let runtimes: Vec<Runtime> = std::thread::scope(|scope| {
        let join = |rank| {
            let job = Job::in_process("buffers", Rank(rank), RANKS.into());
            PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap()
        };
        let threads: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    runtimes.iter().for_each(|runtime| runtime.segment_alloc(S0, 64, Init::Zeroed).unwrap());
    let sender = &runtimes[0];
    let send = |to: u16, size| sender.passive_send(S0, 0, Rank(to), size, Timeout::Test);
    let receive = |rank: u16| {
        let from = runtimes[usize::from(rank)].passive_receive(S0, 0, 64, Timeout::Test);
        assert_eq!(from, Ok(Rank(0)));
    };
    // What it waits for.
    let waits = |sent| match sent {
        Err(Error::Timeout { pending }) => pending,
        other => panic!("{other:?}"),
    };
    let (last, full) = (RANKS - 1, format!("one of {OUTBOX_BUFFERS} passive messages"));
    for to in 1..last {
        assert!(waits(send(to, 8)).contains("to receive"), "there is a buffer");
    }
    assert!(waits(send(last, 8)).contains(&full));
    receive(1);
    assert!(waits(send(last, 8)).contains(&format!("rank {last} to receive")));
    receive(last);
    assert_eq!(send(last, 8), Ok(()));
    assert_eq!(send(1, 8), Ok(()), "it was received, though its buffer has gone to another one");
    // One buffer is free now.
    assert!(waits(send(1, 8)).contains("rank 1 to receive"), "a new message");
    assert!(waits(send(last, 8)).contains(&full));
    runtimes[2].term(LIMIT).unwrap();
    assert!(waits(send(last, 8)).contains(&format!("rank {last} to receive")));
    assert!(matches!(send(2, 8), Err(Error::RankLeft { .. })));
    // One whose receiver leaves while it waits for a buffer.
    receive(last);
    assert_eq!(send(last, 8), Ok(()));
    assert!(waits(send(last, 8)).contains("to receive"));
    runtimes[3].passive_receive(S0, 0, 64, Timeout::Test).unwrap();
    assert!(waits(send(3, 16)).contains("rank 3 to receive"), "its own buffer");
}
