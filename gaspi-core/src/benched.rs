//! Pieces of this crate that only the benchmarks of the package gaspi-benches reach: samples of
//! what travels between processes. No part of the interface.

use crate::bootstrap::exchange::message::{Join, Message};
use crate::bootstrap::{Card, KEY_BYTES, cards};
use crate::config::Config;
use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};
use crate::wire::frame::{Frame, PREFIX};
use crate::wire::message::{
    Announce, GroupMessage, Message as RankMessage, Put, RemoteAddress, Stream,
};

/// A frame between two libraries.
#[derive(Debug)]
pub struct FrameSample(Frame);

impl FrameSample {
    /// A frame of each kind that matters: small and frequent, and one that grows with the group.
    pub fn all() -> Vec<FrameSample> {
        let put = Put {
            stream: Stream { queue: QueueId(1), generation: 3 },
            remote: RemoteAddress { segment: SegmentId(2), generation: 5, offset: 4096 },
            size: 8,
            last: true,
            notification: NotificationId(17),
            value: 1,
        };
        let announce = Announce {
            group: GroupId(1),
            attempt: 2,
            incarnation: 3,
            ranks: (0..1024).map(Rank).collect(),
        };
        vec![
            FrameSample(Frame::Put(put)),
            FrameSample(Frame::Message(RankMessage::Group(GroupMessage::Announce(announce)))),
        ]
    }

    /// Its kind.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Frame::Put(_) => "put",
            _ => "announce of 1024 ranks",
        }
    }

    /// Appends it as bytes.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        self.0.append_to(bytes);
    }

    /// Decodes what [`append_to`](FrameSample::append_to) has written.
    pub fn decode(bytes: &[u8]) -> Option<FrameSample> {
        Frame::decode(&bytes[PREFIX..]).map(FrameSample)
    }
}

/// A message of the exchange at start.
#[derive(Debug)]
pub struct MessageSample(Message);

impl MessageSample {
    /// A registration, and what it is answered with.
    pub fn all() -> Vec<MessageSample> {
        let agreed = Config::default().agreed().map(|(name, value)| (name.to_owned(), value));
        let join = Join { job: "bench".to_owned(), size: 64, agreed: agreed.into(), card: card(0) };
        let table = Message::Table { token: [1; 16], key: [2; KEY_BYTES] };
        [Message::Join(join), table].map(MessageSample).into()
    }

    /// Its kind.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Message::Join(_) => "join",
            _ => "table",
        }
    }

    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.0.encode()
    }

    /// Decodes what [`encode`](MessageSample::encode) has written.
    pub fn decode(bytes: &[u8]) -> Option<MessageSample> {
        Message::decode(bytes).ok().flatten().map(|(message, _)| MessageSample(message))
    }
}

/// The cards of the ranks of a job.
#[derive(Debug)]
pub struct CardsSample(Vec<Card>);

impl CardsSample {
    /// Those of so many ranks.
    pub fn of(ranks: u16) -> CardsSample {
        CardsSample((0..ranks).map(card).collect())
    }

    /// The image of them that the server of a machine makes.
    pub fn encode(&self) -> Vec<u8> {
        cards::encode(&self.0)
    }

    /// What each rank does with it at first; says how many cards there are.
    pub fn check(image: &[u8]) -> Option<usize> {
        cards::check(image)
    }
}

fn card(rank: u16) -> Card {
    Card {
        rank: Rank(rank),
        pid: 1000 + i32::from(rank),
        start_time: 123_456,
        instance: u64::from(rank),
        node: 1,
        machine: 1,
        endpoints: vec!["192.0.2.1:40000".parse().expect("an address")],
        host: "node17.cluster".into(),
        cpus: [u64::MAX; 2].into(),
        networks: [].into(),
    }
}
