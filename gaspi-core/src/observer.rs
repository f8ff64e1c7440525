//! What the ranks of a job wait for, as seen by a process that hosts them but is none of them.
//!
//! It only reads what the ranks write into shared memory before they sleep, so a rank that is
//! stopped or hangs is seen like any other. What it returns is a snapshot.

use crate::error::Result;
use crate::ids::Rank;
use crate::os::clock::monotonic_ms;
use crate::sync::Ordering;
use crate::sync::arrival_slot::Poll;
use crate::transport::shm::area::{Note, SharedArea, liveness};
use crate::transport::shm::pairs::Pairs;
use crate::wait::Call;
use crate::wire::shared_layout::SharedLayout;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Where a rank is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It has not taken part yet.
    Absent,
    /// It takes part.
    Joined,
    /// It has left by proc_term.
    Left,
    /// It ended without proc_term.
    Dead,
}

/// A call in which a thread of a rank sleeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The procedure, without its prefix.
    pub call: &'static str,
    /// What it was called for, as in "group 3"; empty for calls without an object.
    pub object: String,
    /// For how long.
    pub since: Duration,
    /// The ranks it waits for, where that can be seen.
    pub awaited: Vec<Rank>,
    /// There may be more of them: the list of the group's members was too long to be written down.
    pub in_part: bool,
}

/// A view of the memory that the ranks of a job share.
#[derive(Debug)]
pub struct Observer {
    area: SharedArea,
    groups: u32,
}

impl Observer {
    /// For the ranks that share this memory.
    ///
    /// # Errors
    /// It could not be mapped.
    pub fn new(area: &OwnedFd, layout: SharedLayout) -> Result<Observer> {
        let (ranks, groups) = (layout.ranks(), layout.groups());
        Ok(Observer { area: SharedArea::observed(area, ranks, groups)?, groups })
    }

    /// Where `rank` is in its life.
    pub fn life(&self, rank: Rank) -> Life {
        match self.area.liveness(rank) {
            liveness::ABSENT => Life::Absent,
            liveness::JOINED => Life::Joined,
            liveness::LEFT => Life::Left,
            _ => Life::Dead,
        }
    }

    /// The calls in which threads of `rank` sleep, longest first. Empty while it computes.
    pub fn waits(&self, rank: Rank) -> Vec<Wait> {
        let now = monotonic_ms();
        let wait = |(call, object, since_ms): (Call, u32, u64)| {
            let (awaited, all) = self.awaited(rank, call, object);
            Wait {
                call: call.name(),
                object: call.object().map_or(String::new(), |kind| format!("{kind} {object}")),
                since: Duration::from_millis(now.saturating_sub(since_ms)),
                awaited,
                in_part: !all,
            }
        };
        let notes = self.area.notes(rank).iter().filter_map(read);
        let mut waits: Vec<Wait> = notes.map(wait).collect();
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.since));
        waits
    }

    /// The queue pairs of `rank`, if it has made any.
    pub fn pairs(&self, rank: Rank) -> Option<Pairs> {
        Pairs::of(self.area.pairs(rank))
    }

    /// The ranks that `rank` waits for in a call, and whether these are all.
    fn awaited(&self, rank: Rank, call: Call, object: u32) -> (Vec<Rank>, bool) {
        let group = match call {
            Call::Init => 0,
            Call::Barrier | Call::Collective | Call::Create | Call::Commit
                if object < self.groups =>
            {
                object as usize
            }
            _ => return (Vec::new(), true),
        };
        let (ranks, all) = self.area.members(rank, group);
        let is_awaited = |member: &Rank| match call {
            Call::Init => self.area.liveness(*member) == liveness::ABSENT,
            Call::Commit => *member != rank && !self.commits(*member, object),
            _ => !self.has_arrived(*member, rank, group),
        };
        (ranks.into_iter().filter(is_awaited).collect(), all)
    }

    /// Whether `member` has arrived at the step of `group` that `rank` has arrived at.
    fn has_arrived(&self, member: Rank, rank: Rank, group: usize) -> bool {
        let arrival_slots = self.area.arrival_slots(rank, group);
        let steps = arrival_slots.iter().map(|slot| slot.sequence.load(Ordering::Acquire));
        let step = steps.max().unwrap_or(0);
        self.area.arrival_slots(member, group)[(step % 2) as usize].poll(step) != Poll::Missing
    }

    /// Whether a thread of `member` waits in a commit of `group`; the commit's messages are not in
    /// shared memory.
    fn commits(&self, member: Rank, group: u32) -> bool {
        let mut notes = self.area.notes(member).iter().filter_map(read);
        notes.any(|(call, object, _)| call == Call::Commit && object == group)
    }
}

/// Call, object and time of a note that is in use.
fn read(note: &Note) -> Option<(Call, u32, u64)> {
    // Acquire: pairs with the Release of the writer, so object and time belong to the call.
    let call = Call::of_number(note.call.load(Ordering::Acquire))?;
    Some((call, note.object.load(Ordering::Relaxed), note.since_ms.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory;
    use crate::timeout::Deadline;
    use crate::wait::{Waiter, waiting};
    use std::sync::atomic::AtomicBool;

    const RANKS: u32 = 5;
    const GROUPS: u32 = 4;

    fn areas() -> (Vec<SharedArea>, Observer) {
        let layout = SharedLayout::new(RANKS, GROUPS);
        let fd = memory::create(c"gaspi-test", layout.bytes(), false).expect("memory");
        let locals = || (0..RANKS).map(|rank| Rank(rank as u16)).collect();
        let map = |rank| SharedArea::map(&fd, RANKS, GROUPS, Rank(rank), locals()).expect("area");
        let areas = (0..RANKS as u16).map(map).collect();
        (areas, Observer::new(&fd, layout).expect("observer"))
    }

    /// What is seen of `rank` while a thread of it sleeps in `call`.
    fn asleep(job: &(Vec<SharedArea>, Observer), rank: u16, call: Call, object: u32) -> Wait {
        let (area, observer, rank) = (&job.0[usize::from(rank)], &job.1, Rank(rank));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let attempt = || over.load(Ordering::SeqCst).then_some(());
                let waiting = waiting(call, object);
                Waiter::new(2, 1).until(area, None, Deadline::Never, waiting, attempt)
            });
            let seen = loop {
                if let Some(wait) = observer.waits(rank).pop() {
                    break wait;
                }
                std::thread::yield_now();
            };
            over.store(true, Ordering::SeqCst);
            area.wake(rank);
            seen
        })
    }

    #[test]
    fn members_that_have_not_arrived_at_a_collective_are_seen() {
        let job = areas();
        let (areas, observer) = &job;
        for (rank, step) in [(0, 7), (2, 7), (4, 5)] {
            areas[rank].arrival_slots(Rank(rank as u16), 0)[1].publish(step, 1, &[]);
        }
        let wait = asleep(&job, 0, Call::Barrier, 0);
        assert_eq!((wait.call, wait.object.as_str()), ("barrier", "group 0"));
        assert_eq!(wait.awaited, [Rank(1), Rank(3), Rank(4)]);
        assert!(wait.since < Duration::from_secs(60), "{wait:?}");
        assert!(observer.waits(Rank(0)).is_empty() && observer.waits(Rank(1)).is_empty());
        // A group of its own: only members count.
        areas[1].set_members(3, &[Rank(0), Rank(1), Rank(4)]);
        areas[1].arrival_slots(Rank(1), 3)[0].publish(12, 1, &[]);
        areas[0].arrival_slots(Rank(0), 3)[0].publish(12, 1, &[]);
        assert_eq!(asleep(&job, 1, Call::Create, 3).awaited, [Rank(4)]);
        // Beyond the groups that there are: nothing is read.
        assert!(asleep(&job, 1, Call::Barrier, GROUPS).awaited.is_empty());
    }

    #[test]
    fn other_calls_show_what_they_were_called_for() {
        let job = areas();
        let (areas, observer) = &job;
        for (call, name, object) in [
            (Call::WaitSome, "notify_waitsome", "segment 2"),
            (Call::Wait, "wait", "queue 2"),
            (Call::PassiveSend, "passive_send", "rank 2"),
            (Call::Term, "proc_term", ""),
        ] {
            let wait = asleep(&job, 3, call, 2);
            assert_eq!((wait.call, wait.object.as_str(), wait.awaited.len()), (name, object, 0));
        }
        areas[3].set_members(1, &[Rank(2), Rank(3), Rank(4)]);
        assert_eq!(asleep(&job, 3, Call::Commit, 1).awaited, [Rank(2), Rank(4)]);
        areas[1].join();
        areas[2].join();
        areas[2].leave();
        areas[0].mark_dead(Rank(3));
        let found = [0, 1, 2, 3].map(|rank| observer.life(Rank(rank)));
        assert_eq!(found, [Life::Absent, Life::Joined, Life::Left, Life::Dead]);
        assert_eq!(asleep(&job, 1, Call::Init, 0).awaited, [Rank(0), Rank(4)]);
    }

    #[test]
    fn pairs_are_seen_once_there_have_been_any() {
        let (areas, observer) = areas();
        let words = areas[2].own_pairs();
        words.up.store(7, Ordering::Relaxed);
        assert_eq!(observer.pairs(Rank(2)), None);
        words.kind.store(1, Ordering::Relaxed);
        words.messages.store(3, Ordering::Relaxed);
        let seen = Pairs { up: 7, being_made: 0, failed: 0, messages: None };
        assert_eq!(observer.pairs(Rank(2)), Some(seen));
        words.kind.store(2, Ordering::Relaxed);
        assert_eq!(observer.pairs(Rank(2)), Some(Pairs { messages: Some(3), ..seen }));
        assert_eq!(observer.pairs(Rank(1)), None);
    }

    #[test]
    fn groups_of_many_pieces_are_told_in_part() {
        let (areas, _) = areas();
        let even: Vec<Rank> = (0..40).map(|rank| Rank(2 * rank)).collect();
        areas[0].set_members(1, &even);
        assert_eq!(areas[0].members(Rank(0), 1), (even[..3].to_vec(), false));
        let few = [Rank(0), Rank(1), Rank(2), Rank(4)];
        areas[0].set_members(1, &few);
        assert_eq!(areas[0].members(Rank(0), 1), (few.to_vec(), true));
    }
}
