//! What a rank needs of what a process may have only so much of: descriptors, mappings, addresses.
//! docs/scale.md has the same formulas.
//!
//! What a rank keeps open: 7 of its own (listener, two poll sets, wakeup, reserve, launcher, and
//! the shared area: for a moment, or with many ranks of its node for their arenas), with ranks of
//! other nodes some more (listeners for them, wakeup sockets); for each process of its node that it
//! watches a pidfd; for each other rank of its node, once there is something that shared memory
//! does not carry, a connection in each direction; for each rank of another node that it talks to a
//! connection, and one more while it is made; for each node of another machine a watch, or two
//! where both sides made one at once; for each rank of this machine on another node that was
//! disconnected a watch; some by which news of ends come; with the static topology those that the
//! steps of all ranks need; for each segment of its own a memory file, or two with reserved huge
//! pages. Segments of others take none once they are mapped.

use super::watching;

/// Those of a rank itself, the one that reads a file of /proc included.
const OWN: u64 = 8;
/// The same where there are ranks of other nodes: a listener, two for wakeup sockets, one that
/// connects.
const OWN_REMOTE: u64 = OWN + 4;
/// A connection in each direction with a rank of the same node.
pub(crate) const LOCAL_CONNECTIONS: u64 = 2;
/// Where there may be as many nodes as ranks: connection, two watches, one that is being made.
pub(crate) const REMOTE_PEER: u64 = 4;
/// On another machine, where others of the node may be neighbours in the tree of its ranks: a
/// connection, a watch, and one that is being made.
const WATCHED_LEAST: u64 = 3;
/// On the same machine, as a node of its own: a connection, and one that is being made.
const BESIDE_LEAST: u64 = 2;
/// The same, and a watch.
const BESIDE_PEER: u64 = 3;
/// More listeners, the arena of channels, the pipe of large payloads, descriptors on their way.
pub(crate) const SPARE: u64 = 32;

/// Mappings of a rank beside those of segments: shared area, cards, the job's name, the arenas of a
/// node of many, stacks of threads with their guards.
const OWN_MAPPINGS: u64 = 16;
/// Header and data of a segment.
const SEGMENT_MAPPINGS: u64 = 2;

/// Bytes of addresses of a rank beside the shared area: a stack for the progress thread and the
/// library's own tables. Of these the C library takes 64 MiB for what that thread allocates.
const OWN_ADDRESSES: u64 = 80 << 20;
/// Of cards, tables and lists for each rank of the job.
const RANK_ADDRESSES: u64 = 512;

/// Ranks of the largest job.
const RANKS_MAX: u32 = u16::MAX as u32;

/// What of a job decides how many descriptors a rank needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobShape {
    /// Of all ranks.
    pub(crate) ranks: u32,
    /// Ranks may be on nodes of their own, also on one machine.
    pub(crate) has_nodes: bool,
    /// There may be other machines.
    pub(crate) spans_hosts: bool,
    /// Init makes connections (GASPI_TOPOLOGY_STATIC).
    pub(crate) is_static: bool,
    /// Segments that the rank may have at once.
    pub(crate) segments: u32,
}

/// How many descriptors a rank needs beside those that its program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// To join, and for what the steps of all ranks need.
    pub(crate) least: u64,
    /// For all that it may come to.
    pub(crate) most: u64,
}

impl Descriptors {
    pub(crate) fn of(job: JobShape) -> Descriptors {
        let others = u64::from(job.ranks) - 1;
        let remote = job.spans_hosts || job.has_nodes;
        let watched = watching::watched(others as usize).len() as u64;
        let (own, least, most) = match (remote, job.spans_hosts) {
            (false, _) => (OWN + watched, 0, LOCAL_CONNECTIONS),
            (true, false) => (OWN_REMOTE, BESIDE_LEAST, BESIDE_PEER),
            // Before the meeting nobody knows who is on which node.
            (true, true) => (OWN_REMOTE, WATCHED_LEAST, REMOTE_PEER),
        };
        let own = if remote { own + tree_connections(job.ranks) } else { own };
        // Others are connected as they are needed.
        let connected = if job.is_static { others.min(partners(job.ranks)) } else { 0 };
        Descriptors {
            least: own + least * connected,
            most: own + SPARE + most * others + u64::from(job.segments),
        }
    }
}

/// With whom the leader of a node exchanges messages in a step of all ranks, at most, if there are
/// that many others: in rounds, or as the root of a tree.
fn partners(size: u32) -> u64 {
    2 * (4 + u64::from(size.ilog2()))
}

/// With parent and children in the tree of nodes, and in that of the ranks of a node.
fn tree_connections(size: u32) -> u64 {
    3 + u64::from(size.ilog2())
}

/// How many mappings a rank needs beside those that its program has, where each of `locals` ranks
/// of its host has so many segments that it accesses, and an arena.
pub(crate) fn mappings(locals: u32, segments: u32) -> u64 {
    OWN_MAPPINGS + SEGMENT_MAPPINGS * u64::from(locals) * (u64::from(segments) + 1)
}

/// How many bytes of addresses a rank needs to start, beside those that its program has, where
/// the shared area of its node takes `area`.
pub(crate) fn addresses(ranks: u32, area: u64) -> u64 {
    OWN_ADDRESSES + RANK_ADDRESSES * u64::from(ranks) + area
}

/// The ranks of the largest job whose `need` a limit covers; 0 if that of one rank is too much.
/// More ranks do not need less.
pub(crate) fn ranks_within(limit: u64, need: impl Fn(u32) -> u64) -> u32 {
    let (mut enough, mut too_many) = (0, RANKS_MAX + 1);
    while enough + 1 < too_many {
        let middle = u32::midpoint(enough, too_many);
        if need(middle) <= limit { enough = middle } else { too_many = middle }
    }
    enough
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::schedule::{Pattern, Schedule};
    use std::collections::HashSet;

    fn need(has_nodes: bool, spans_hosts: bool, is_static: bool) -> Descriptors {
        Descriptors::of(JobShape { ranks: 512, has_nodes, spans_hosts, is_static, segments: 255 })
    }

    #[test]
    fn the_need_grows_with_the_job_and_its_connections() {
        let local = need(false, false, true);
        // 16 processes are watched.
        assert_eq!(local, Descriptors { least: 8 + 16, most: 8 + 16 + 32 + 2 * 511 + 255 });
        let tcp = need(true, false, true);
        let (news, own) = (3 + 9, 12);
        let most = own + news + 32 + 3 * 511 + 255;
        assert_eq!(tcp, Descriptors { least: own + news + 2 * 26, most });
        let hosts = need(false, true, true);
        let most = own + news + 32 + 4 * 511 + 255;
        assert_eq!(hosts, Descriptors { least: own + news + 3 * 26, most });
        let dynamic = need(false, true, false);
        assert_eq!(dynamic, Descriptors { least: own + news, most });
    }

    /// There may be fewer nodes than ranks.
    #[test]
    fn leaders_of_any_number_of_nodes_exchange_messages_with_no_more_than_that() {
        for n in (1..=600).chain([4095, 4096, 32_767, 65_535]) {
            for pattern in [Pattern::Tree, Pattern::Dissemination] {
                // The first one has as many partners as any.
                for me in 0..if n <= 140 { n } else { 1 } {
                    let Schedule { incoming, outgoing } = pattern.schedule(n, me);
                    let to = outgoing.iter().flat_map(|outgoing| outgoing.to.iter().copied());
                    let all: HashSet<usize> = incoming.iter().map(|it| it.from).chain(to).collect();
                    let most = partners(n as u32).min(n as u64 - 1);
                    assert!(all.len() as u64 <= most, "{pattern:?} of {n}, {me}: {}", all.len());
                }
            }
        }
    }

    #[test]
    fn a_limit_covers_the_largest_job_whose_need_it_is() {
        let of_hosts = |ranks| {
            let (spans_hosts, segments) = (true, 255);
            let shape =
                JobShape { ranks, has_nodes: false, spans_hosts, is_static: true, segments };
            Descriptors::of(shape).most
        };
        for ranks in [2, 17, 512, 65_534] {
            let limit = of_hosts(ranks);
            assert_eq!(ranks_within(limit, of_hosts), ranks);
            assert_eq!(ranks_within(limit - 1, of_hosts), ranks - 1);
        }
        assert_eq!(ranks_within(u64::MAX, of_hosts), 65_535);
        assert_eq!(ranks_within(20, of_hosts), 0);
        assert_eq!(ranks_within(16 + 2 * 256 * 127, |locals| mappings(locals, 255)), 127);
    }
}
