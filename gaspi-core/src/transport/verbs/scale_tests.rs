//! What pairs with many peers cost: one rank's device, and a second one that plays all peers.
//!
//! The machine of [`pairing`](super::pairing) and the device are real; what streams would carry is
//! handed over here. Figures of docs/scale.md are counted by these tests.

use super::budget::PairKind;
use super::ended::Again;
use super::lane::Lane;
use super::pairing::Step;
use super::queue_pair::QueuePair;
use super::*;
use crate::config::{DeviceChoice, WriteEnd};
use crate::fuzzed::live_bytes;
use crate::ids::{NotificationId, SegmentId};
use crate::wire::message::{PairOffer, Pairing};
use gaspi_mock_card::{Fabric, MockCard, Options};

const Q0: QueueId = QueueId(0);
/// Bytes of the library's own for a pair, at most.
const OWN_BYTES: isize = 4096;

/// What `many` pairs have cost.
#[derive(Debug)]
struct Cost {
    /// Things that the machine had done, and functions of the device that were called for them.
    steps: u64,
    polls: u64,
    bytes: isize,
}

fn open(fabric: &Fabric, mock: &MockCard, nth: u32, ranks: u32) -> DeviceTable {
    fabric.use_all();
    let choice = DeviceChoice {
        library: Some(mock.path().as_os_str().to_owned()),
        devices: vec![format!("mock{}_{nth}", fabric.number())],
        ..DeviceChoice::default()
    };
    let device = Device::open(&Wishes { choice, ..Wishes::default() }).expect("a device");
    device.share_among(1);
    DeviceTable::new(device, true, ranks, Arc::default(), Arc::default()).expect("a table")
}

/// Carries out what the machine says, as `Verbs::step` does; what is to be told waits in the lane.
fn carry_out(table: &DeviceTable, lane: &Lane, state: &mut LaneState, steps: Vec<Step>) -> u64 {
    let count = steps.len() as u64;
    for step in steps {
        let told = match step {
            Step::Offer(attempt) => {
                let device = &table.device;
                let (memory, kind) = (device.flush_memory(), PairKind::Data);
                let pair = QueuePair::new(&device.handles, memory, WriteEnd::Read, kind);
                let pair = pair.expect("an end");
                table.by_number.insert(pair.number(), (lane.queue, lane.peer));
                let offer = PairOffer { queue: lane.queue, attempt, ..pair.offer() };
                state.pair = Some(pair);
                Some(Pairing::Offer(offer))
            }
            Step::Connect(offer) => {
                state.pair.as_mut().expect("an end").connect(&offer).expect("connected");
                Some(Pairing::Connected { queue: lane.queue, attempt: offer.attempt })
            }
            Step::Prove => {
                state.prove().expect("posted");
                None
            }
            other => panic!("{other:?}"),
        };
        state.outbox.messages.extend(told);
    }
    count
}

/// Hands what one side says to the other; how many steps followed.
fn hand_over(from: &DeviceTable, to: &DeviceTable, peers: u32) -> u64 {
    let mut steps = 0;
    for peer in (1..=peers).map(|peer| Rank(peer as u16)) {
        while let Some(told) = {
            let mut state = from.lane(Q0, peer).lock();
            state.outbox.messages.pop_front()
        } {
            let lane = to.lane(Q0, peer);
            let mut state = lane.lock();
            let next = match told {
                Pairing::Offer(offer) => state.pairing.on_offer(offer),
                Pairing::Connected { attempt, .. } => state.pairing.on_connected(attempt),
                other => panic!("{other:?}"),
            };
            steps += carry_out(to, lane, &mut state, next);
        }
    }
    steps
}

/// Takes all completions of sent requests.
fn take_completions(table: &DeviceTable) {
    loop {
        let mut came = Completions::none();
        table.device.poll_sent(&mut came);
        if came.count() == 0 {
            return;
        }
        for completion in came.iter() {
            assert!(matches!(completion.outcome, Outcome::Done), "{completion:?}");
            let (queue, peer) = table.by_number.find(completion.number).expect("a lane");
            let mut state = table.lane(queue, peer).lock();
            state.completed(&completion, &mut Ended::default());
        }
    }
}

/// Pairs with so many peers at once; each then gets a notification, and is waited for.
fn pair_with(peers: u32) -> Cost {
    let mock = MockCard::load().expect("the mock card has been built");
    let mut options = Options::kind();
    options.behaviour.devices = 2;
    let fabric = mock.fabric(&options);
    let (own, others) = (open(&fabric, &mock, 0, peers + 1), open(&fabric, &mock, 1, peers + 1));
    let polls = fabric.counter(0, "polls");
    let all = || (1..=peers).map(|peer| Rank(peer as u16));
    let before = live_bytes();
    let mut steps = 0;
    for peer in all() {
        let lane = own.lane(Q0, peer);
        let mut state = lane.lock();
        let first = state.pairing.begin();
        steps += carry_out(&own, lane, &mut state, first);
    }
    let mut played = 0;
    let bytes = loop {
        let at_first = live_bytes();
        let by_others = hand_over(&own, &others, peers);
        take_completions(&others);
        // What the peers have is not this rank's.
        played += live_bytes() - at_first;
        let by_own = hand_over(&others, &own, peers);
        take_completions(&own);
        steps += by_own;
        if by_own + by_others == 0 {
            break live_bytes() - before - played;
        }
    };
    assert!(all().all(|peer| own.lane(Q0, peer).lock().pairing.is_up()), "all pairs are up");
    assert!(own.lanes.iter().filter(|lanes| lanes.get().is_some()).count() == 1, "unused queues");
    assert!(own.lanes[Q0.index()].get().is_some_and(|lanes| lanes[0].get().is_none()));
    let before = live_bytes();
    let stream = Stream { queue: Q0, generation: 0 };
    let remote = RemoteAddress { segment: SegmentId(0), generation: 0, offset: 0 };
    for peer in all() {
        let mut state = own.lane(Q0, peer).lock();
        let notification = NotificationId(0);
        let put = Put { stream, remote, size: 0, last: true, notification, value: 1 };
        state.push(Request::Put { put, data: None });
        state.push(Request::Finish { stream, requests: 1 });
        state.pump().expect("posted");
        drop(state);
        take_completions(&own);
        let mut receives = others.receives.lock();
        let mut came = Completions::none();
        others.device.poll_received(&mut came);
        for come in came.iter() {
            receives.give_back(come.id as usize);
        }
        receives.refill(&others.device).expect("posted");
    }
    assert!(own.has_none(Rank(1)) && own.has_none(Rank(peers as u16)), "all has ended");
    let bytes = bytes + live_bytes() - before;
    Cost { steps, polls: fabric.counter(0, "polls") - polls, bytes }
}

#[test]
fn pairs_with_many_peers_cost_the_same_each() {
    let (few, many) = (pair_with(50), pair_with(500));
    println!("{few:?} for 50, {many:?} for 500");
    assert_eq!((few.steps, many.steps), (3 * 50, 3 * 500));
    assert!(many.polls <= 11 * few.polls, "{few:?}, {many:?}");
    assert!(many.bytes < 500 * OWN_BYTES, "{} bytes for each pair", many.bytes / 500);
    assert!(few.bytes < 50 * OWN_BYTES, "{} bytes for each pair", few.bytes / 50);
}

#[test]
fn peers_without_a_pair_cost_a_place_in_the_table_of_a_queue() {
    let mock = MockCard::load().expect("the mock card has been built");
    let fabric = mock.fabric(&Options::kind());
    let table = open(&fabric, &mock, 0, 10_001);
    let before = live_bytes();
    table.lane(Q0, Rank(1));
    let first = live_bytes() - before;
    assert!(first <= 10_001 * 16 + OWN_BYTES, "{first} bytes for 10,000 peers without a pair");
    assert!(table.lanes.iter().filter(|lanes| lanes.get().is_some()).count() == 1);
    let lane = size_of::<Lane>();
    assert!(lane < 1024, "{lane} bytes for a lane");
}

#[test]
fn completions_of_a_pair_that_is_gone_tell_nothing_of_the_next() {
    let mock = MockCard::load().expect("the mock card has been built");
    let fabric = mock.fabric(&Options::kind());
    let table = open(&fabric, &mock, 0, 2);
    let (handles, memory) = (&table.device.handles, table.device.flush_memory());
    let end = || QueuePair::new(handles, memory, WriteEnd::Read, PairKind::Data).expect("an end");
    let with_one_posted = |queue| {
        let mut state = table.lane(QueueId(queue), Rank(1)).lock();
        state.pair = Some(end());
        state.direct.posted(true);
        state
    };
    let of = |state: &LaneState| {
        let (id, number) = (state.direct.next() - 1, state.pair.as_ref().expect("an end").number());
        Completion { id, number, bytes: 0, immediate: None, outcome: Outcome::Done }
    };
    let mut state = with_one_posted(0);
    let first = of(&state);
    assert!(state.is_told_by(&first));
    state.note_failure("it was refused", Again::NotByTime);
    state.drop_pair();
    assert!(!state.has_failed() && !state.is_told_by(&first));
    // Also where the device gives the next one of this lane, or of another one, the same number.
    state.pair = Some(end());
    let number = |state: &LaneState| Completion { number: of(state).number, ..first };
    assert!(!state.is_told_by(&first) && !state.is_told_by(&number(&state)));
    state.direct.posted(true);
    assert!(!state.is_told_by(&number(&state)) && state.is_told_by(&of(&state)));
    let other = with_one_posted(1);
    assert!(!other.is_told_by(&number(&other)) && other.is_told_by(&of(&other)));
}
