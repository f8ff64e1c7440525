//! What programs see of failed requests only where hosts are cut off.

use super::*;
use crate::config::CHANNELS;
use crate::ids::QueueId;
use crate::wire::message::Stream;
use crate::{Config, Job, PendingInit, Timeout};
use std::time::Duration;

fn alone() -> Runtime {
    let id = format!("channels-{:?}", std::thread::current().id());
    let joining = PendingInit::new(Job::in_process(&id, Rank(0), 1), Config::default());
    joining.expect("joining").wait(Timeout::Block).expect("a rank")
}

#[test]
fn a_refused_request_shows_in_channels_that_were_open() {
    let rank = alone();
    let spec = ChannelSpec { slots: 1, message_bytes: 0, stage_bytes: 0 };
    let open = || rank.channel_open(GroupId::ALL, spec, Timeout::Block).expect("a channel");
    let before = open();
    let stream = Stream { queue: CHANNELS, generation: 0 };
    rank.inner().request_failed(Rank(0), stream, "it is full", true);
    let after = open();
    let refused = Error::Refused { rank: Rank(0), reason: "it is full".to_owned() };
    assert_eq!(before.check(), Err(refused));
    assert_eq!(after.check(), Ok(()));
    // Requests of the program do not show there.
    let stream = Stream { queue: QueueId(0), generation: 0 };
    rank.inner().request_failed(Rank(0), stream, "something else", true);
    assert_eq!(after.check(), Ok(()));
}

#[test]
fn a_connection_that_broke_is_remembered_for_what_came_by_it() {
    let channels = Channels::new(2);
    assert!(!channels.has_broken_within(Rank(1), Duration::MAX));
    channels.note_break(Rank(1));
    assert!(channels.has_broken_within(Rank(1), Duration::MAX));
    assert!(!channels.has_broken_within(Rank(1), Duration::ZERO));
    assert!(!channels.has_broken_within(Rank(0), Duration::MAX));
}

#[test]
fn a_lost_request_counts_once_its_rank_is_known_to_live() {
    let channels = Channels::new(1);
    let stream = Stream { queue: CHANNELS, generation: 0 };
    assert_eq!(stream.queue.0 as u32, crate::QUEUE_MAX, "none of the program's");
    // A connection that broke while nothing was under way.
    channels.lost(Rank(0));
    assert_eq!((channels.failures(), channels.losses(Rank(0))), (0, 0));
    channels.failed(Rank(0), "the connection broke", false);
    assert_eq!((channels.failures(), channels.losses(Rank(0))), (0, 1));
    // Of a channel that was opened before that, and of one that has been opened since.
    let [before, since] = [0, 1].map(|losses| [(Rank(0), losses)]);
    assert_eq!(channels.failure(before, 0), None);
    channels.lost(Rank(0));
    assert_eq!(channels.failure(before, 0), Some((Rank(0), "the connection broke".to_owned())));
    assert_eq!(channels.failure(since, 0), None);
    let known = channels.failures();
    assert_eq!(channels.failure(before, known), None);
    channels.lost(Rank(0));
    assert_eq!(channels.failures(), known, "it was told already");
}

#[test]
fn arenas_on_a_node_of_many_ranks_make_no_connections() {
    const RANKS: u32 = 20;
    let ranks: Vec<Runtime> = std::thread::scope(|scope| {
        let join = |rank| {
            let job = Job::in_process("arenas-of-many", Rank(rank as u16), RANKS);
            PendingInit::new(job, Config::default()).unwrap().wait(Timeout::Block).unwrap()
        };
        let joining: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || join(rank))).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let connections = |rank: &Runtime| {
        let connections = &rank.inner().endpoints.stream.connections;
        rank.inner().ranks.all().filter(|other| connections.is_established(*other)).count()
    };
    let before: usize = ranks.iter().map(connections).sum();
    let spec = ChannelSpec { slots: 2, message_bytes: 64, stage_bytes: 64 };
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(move || {
                let channel = rank.channel_open(GroupId::ALL, spec, Timeout::Block).unwrap();
                assert!((0..RANKS as usize).all(|member| channel.is_local(member)));
                rank.barrier(GroupId::ALL, Timeout::Block).unwrap();
            });
        }
    });
    assert_eq!(ranks.iter().map(connections).sum::<usize>(), before);
}
