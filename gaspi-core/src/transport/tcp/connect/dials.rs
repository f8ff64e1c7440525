//! Peers that are being connected to, now or later. What an event is about is found by its number,
//! and time finds what it is time for, however many there are.

use super::attempt::Attempt;
use super::keepalive::Watched;
use crate::ids::Rank;
use crate::transport::tcp::dialing::ConnectPurpose;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::time::Instant;

/// A peer that is being connected to.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) rank: Rank,
    pub(super) purpose: ConnectPurpose,
    /// What a keepalive connection will watch.
    pub(super) watches: Option<Watched>,
    pub(super) since: Instant,
    /// Addresses that have not been tried.
    pub(super) left: std::vec::IntoIter<SocketAddr>,
    /// By the number of the attempt.
    pub(super) attempts: HashMap<u64, Attempt>,
    pub(super) next_at: Instant,
    /// Why attempts failed.
    pub(super) failures: Vec<String>,
    /// All that failed were refused by the peer's kernel: nobody listens there any more.
    pub(super) refused: bool,
    /// All that failed were refused, or somebody who is not the peer has answered.
    pub(super) absent: bool,
    /// The peer's host has answered an attempt in any way.
    pub(super) answered: bool,
    /// One was accepted, and closed before anything was proved.
    pub(super) ended: bool,
    /// This side lacks what it takes, which says nothing of the peer.
    pub(super) lacking: bool,
}

/// How many times to look are kept at least, also of dials that have ended.
const SPARE: usize = 64;

/// All that are under way.
#[derive(Debug, Default)]
pub(super) struct Dials {
    by_id: HashMap<u64, Dial>,
    /// The dial of each attempt.
    of_attempt: HashMap<u64, u64>,
    of_rank: HashMap<Rank, Vec<u64>>,
    of_watched: HashMap<Watched, u64>,
    /// When they may have to be looked at.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Dials {
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn insert(&mut self, id: u64, dial: Dial) {
        self.of_rank.entry(dial.rank).or_default().push(id);
        if let Some(watched) = dial.watches {
            self.of_watched.insert(watched, id);
        }
        self.by_id.insert(id, dial);
    }

    pub(super) fn get(&self, id: u64) -> Option<&Dial> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Dial> {
        self.by_id.get_mut(&id)
    }

    /// Takes a dial out, with the attempts that it has.
    pub(super) fn remove(&mut self, id: u64) -> Option<Dial> {
        let dial = self.by_id.remove(&id)?;
        for number in dial.attempts.keys() {
            self.of_attempt.remove(number);
        }
        if let Some(ids) = self.of_rank.get_mut(&dial.rank) {
            ids.retain(|one| *one != id);
            if ids.is_empty() {
                self.of_rank.remove(&dial.rank);
            }
        }
        if let Some(watched) = dial.watches.filter(|of| self.of_watched.get(of) == Some(&id)) {
            self.of_watched.remove(&watched);
        }
        // Attempts may end long before it is time to look at them.
        if self.due.len() > SPARE + 8 * self.by_id.len() {
            self.due.retain(|Reverse((_, id))| self.by_id.contains_key(id));
        }
        Some(dial)
    }

    /// Those of a rank, by number.
    pub(super) fn of_rank(&self, rank: Rank) -> impl Iterator<Item = (u64, &Dial)> {
        let ids = self.of_rank.get(&rank).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.by_id.get(id)?)))
    }

    /// Whether a keepalive connection is being made that will watch this.
    pub(super) fn will_watch(&self, watched: Watched) -> bool {
        self.of_watched.contains_key(&watched)
    }

    /// Whether one is being made with a rank whose kernel has answered.
    pub(super) fn watches_are_accepted(&self) -> bool {
        let mut dials = self.of_watched.values().filter_map(|id| self.by_id.get(id));
        dials.any(|dial| dial.attempts.values().any(|attempt| attempt.connected))
    }

    /// An attempt of a dial begins.
    pub(super) fn add_attempt(&mut self, id: u64, number: u64, attempt: Attempt) {
        if let Some(dial) = self.by_id.get_mut(&id) {
            self.due.push(Reverse((attempt.until, id)));
            self.of_attempt.insert(number, id);
            dial.attempts.insert(number, attempt);
        }
    }

    /// The dial of an attempt.
    pub(super) fn of_attempt(&mut self, number: u64) -> Option<(u64, &mut Dial)> {
        let id = *self.of_attempt.get(&number)?;
        Some((id, self.by_id.get_mut(&id)?))
    }

    /// Takes an attempt out of its dial.
    pub(super) fn take_attempt(&mut self, id: u64, number: u64) -> Option<Attempt> {
        self.of_attempt.remove(&number);
        self.by_id.get_mut(&id)?.attempts.remove(&number)
    }

    /// Takes out the other attempts of a dial than this one.
    pub(super) fn take_others(&mut self, id: u64, number: u64) -> Vec<Attempt> {
        let Some(dial) = self.by_id.get_mut(&id) else { return Vec::new() };
        let others: Vec<_> = dial.attempts.extract_if(|other, _| *other != number).collect();
        let take = |(other, attempt)| {
            self.of_attempt.remove(&other);
            attempt
        };
        others.into_iter().map(take).collect()
    }

    /// The next attempt of a dial may begin then.
    pub(super) fn next_at(&mut self, id: u64, at: Instant) {
        if let Some(dial) = self.by_id.get_mut(&id) {
            dial.next_at = at;
            self.due.push(Reverse((at, id)));
        }
    }

    /// The next one that may have to be looked at now.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u64> {
        let first = self.due.peek().filter(|Reverse((at, _))| *at <= now)?;
        let Reverse((_, id)) = *first;
        self.due.pop();
        Some(id)
    }
}

/// A peer that will be connected to again.
#[derive(Debug)]
pub(super) struct Again {
    pub(super) at: Instant,
    pub(super) rank: Rank,
    pub(super) purpose: ConnectPurpose,
    pub(super) since: Instant,
}

/// What is to be tried again, by time.
#[derive(Debug, Default)]
pub(super) struct Later {
    by_time: BTreeMap<(Instant, u64), Again>,
    next: u64,
}

impl Later {
    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    pub(super) fn push(&mut self, again: Again) {
        self.next += 1;
        self.by_time.insert((again.at, self.next), again);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Again> {
        self.by_time.values()
    }

    /// Takes those out for which it is time.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Again> {
        let mut due = Vec::new();
        while let Some(first) = self.by_time.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket;
    use crate::wire::handshake::{Client, Peer, Purpose, Secret};
    use std::time::Duration;

    fn dial(rank: u16, watches: Option<Watched>, now: Instant) -> Dial {
        Dial {
            rank: Rank(rank),
            purpose: ConnectPurpose::Probe,
            watches,
            since: now,
            left: Vec::new().into_iter(),
            attempts: HashMap::new(),
            next_at: now,
            failures: Vec::new(),
            refused: false,
            absent: false,
            answered: false,
            ended: false,
            lacking: false,
        }
    }

    fn attempt(until: Instant) -> Attempt {
        let secret = Secret { job: [1; 16], key: [2; 32] };
        let to = Peer { rank: 1, purpose: Purpose::Probe };
        Attempt {
            endpoint: "127.0.0.1:1".parse().expect("an address"),
            fd: socket::pair().expect("sockets").0,
            client: Client::new(&secret, 0, to, [3; 32]),
            connected: false,
            proved: false,
            welcome: false,
            until,
        }
    }

    #[test]
    fn dials_are_found_by_attempt_rank_and_what_they_watch_until_they_are_taken_out() {
        let (mut dials, now) = (Dials::default(), Instant::now());
        let (node, other) = (Watched::Node(3), Watched::Node(4));
        dials.insert(1, dial(7, Some(node), now));
        dials.insert(2, dial(7, None, now));
        dials.insert(3, dial(8, None, now));
        for (id, number) in [(1, 11), (1, 12), (1, 13), (2, 21), (9, 91)] {
            dials.add_attempt(id, number, attempt(now));
        }
        let of_rank = |dials: &Dials, rank| -> Vec<u64> {
            dials.of_rank(Rank(rank)).map(|(id, _)| id).collect()
        };
        let of = |dials: &mut Dials, number| dials.of_attempt(number).map(|(id, _)| id);
        assert_eq!((of_rank(&dials, 7), of_rank(&dials, 8)), (vec![1, 2], vec![3]));
        assert!(dials.will_watch(node) && !dials.will_watch(other));
        assert_eq!(
            [12, 21, 91, 1].map(|number| of(&mut dials, number)),
            [Some(1), Some(2), None, None]
        );
        assert!(dials.take_attempt(1, 13).is_some() && dials.take_attempt(1, 13).is_none());
        assert_eq!(dials.take_others(1, 11).len(), 1);
        assert_eq!([11, 12, 13].map(|number| of(&mut dials, number)), [Some(1), None, None]);
        assert_eq!(dials.remove(1).map(|dial| dial.attempts.len()), Some(1));
        assert!(dials.remove(1).is_none() && !dials.will_watch(node));
        assert_eq!((of(&mut dials, 11), of_rank(&dials, 7)), (None, vec![2]));
        for id in [2, 3] {
            assert!(dials.remove(id).is_some());
        }
        assert!(dials.is_empty() && dials.of_attempt.is_empty() && dials.of_rank.is_empty());
    }

    #[test]
    fn time_finds_what_it_is_time_for() {
        let (mut dials, now) = (Dials::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        for id in 1..=3 {
            dials.insert(id, dial(id as u16, None, now));
        }
        dials.next_at(2, at(20));
        dials.next_at(3, at(10));
        dials.add_attempt(1, 11, attempt(at(30)));
        let due = |dials: &mut Dials, ms| -> Vec<u64> {
            std::iter::from_fn(|| dials.pop_due(at(ms))).collect()
        };
        assert_eq!(due(&mut dials, 9), [0; 0]);
        assert_eq!(due(&mut dials, 20), [3, 2]);
        assert_eq!(due(&mut dials, 40), [1]);
        assert_eq!(due(&mut dials, 1000), [0; 0]);
        let mut later = Later::default();
        for (ms, rank) in [(20, 1), (10, 2), (10, 3), (30, 4)] {
            let (rank, purpose) = (Rank(rank), ConnectPurpose::Probe);
            later.push(Again { at: at(ms), rank, purpose, since: now });
        }
        let taken: Vec<u16> = later.take_due(at(20)).iter().map(|again| again.rank.0).collect();
        assert_eq!((taken, later.iter().count(), later.is_empty()), (vec![2, 3, 1], 1, false));
    }
}
