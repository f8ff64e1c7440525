//! What a thread says that waits long for a bucket: which ranks have not submitted which of its
//! tensors.
//!
//! Each rank writes into words that the others may read in which step it has submitted each tensor
//! last. A thread looks there when it has waited for GASPI_STALL_WARNING: at the words of ranks of
//! its node where they lie, at those of others by a read that their library answers. It waits on
//! meanwhile. Whichever thread finds the answers complete says so, once for all that wait for the
//! bucket, and again when they have waited twice as long. Where a function of the program is told
//! of ends, or a descriptor, the library's thread watches the buckets that this rank has submitted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gaspi_core::sync::Mutex;
use gaspi_core::{Deadline, Error, StatusRead};

use super::fused::Fused;

/// How long the libraries of other ranks may take to answer before that is said of them.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Most ranks, tensors and buckets that a message names.
const RANKS_NAMED: usize = 8;
const TENSORS_NAMED: usize = 8;
const BUCKETS_NAMED: usize = 4;

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Subject {
    Bucket(usize),
    /// Whichever bucket ends next.
    Any,
}

/// A bucket that has not ended a step.
#[derive(Clone, Copy, Debug)]
struct Stalled {
    bucket: usize,
    step: u64,
}

/// The words of other ranks, as far as they have come.
#[derive(Debug)]
struct Inquiry {
    stalled: Vec<Stalled>,
    /// The first tensor that it asks about.
    first: usize,
    /// By member, of other nodes.
    reads: Vec<(usize, StatusRead)>,
}

impl Inquiry {
    fn is_answered(&self) -> bool {
        self.reads.iter().all(|(_, read)| read.words().is_some())
    }
}

/// What is being done about a wait.
#[derive(Debug)]
enum Phase {
    /// Nothing before it is due.
    Resting,
    /// A thread is asking.
    Asking,
    Asked(Inquiry),
}

/// Threads that wait for the same.
#[derive(Debug)]
struct Wait {
    /// The step of the bucket, or how many buckets had ended: another one is another wait.
    round: u64,
    since: Instant,
    /// How long they have waited when something is said next.
    due: Duration,
    /// Until when answers are waited for.
    until: Instant,
    phase: Phase,
}

impl Wait {
    fn new(round: u64, since: Instant, due: Duration) -> Wait {
        Wait { round, since, due, until: since, phase: Phase::Resting }
    }
}

/// What there is to do now.
enum Next {
    Rest(Duration),
    Ask,
    Say(Inquiry, Duration),
}

/// The waits of a fused buffer that have become long.
#[derive(Debug)]
pub(super) struct Stalls {
    /// Milliseconds until something is said first; 0: never.
    after_ms: AtomicU64,
    waits: Mutex<HashMap<Subject, Wait>>,
}

impl Stalls {
    pub(super) fn new(after: Option<Duration>) -> Stalls {
        let stalls = Stalls { after_ms: AtomicU64::new(0), waits: Mutex::default() };
        stalls.set_after(after);
        stalls
    }

    pub(super) fn set_after(&self, after: Option<Duration>) {
        let ms = after.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        self.after_ms.store(ms, Ordering::Relaxed);
    }

    fn after(&self) -> Option<Duration> {
        let ms = self.after_ms.load(Ordering::Relaxed);
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// What is to be done about a wait of this thread, which began then.
    fn next(&self, subject: Subject, round: u64, began: Instant, after: Duration) -> Next {
        let now = Instant::now();
        let mut waits = self.waits.lock();
        let wait = waits.entry(subject).or_insert_with(|| Wait::new(round, began, after));
        if wait.round != round {
            *wait = Wait::new(round, began, after);
        }
        let waited = now.saturating_duration_since(wait.since);
        match std::mem::replace(&mut wait.phase, Phase::Resting) {
            Phase::Resting if waited < wait.due => Next::Rest(wait.due - waited),
            Phase::Asking if now < wait.until => {
                wait.phase = Phase::Asking;
                Next::Rest(wait.until - now)
            }
            Phase::Resting | Phase::Asking => {
                (wait.phase, wait.until) = (Phase::Asking, now + ANSWER_LIMIT);
                Next::Ask
            }
            Phase::Asked(inquiry) if !inquiry.is_answered() && now < wait.until => {
                wait.phase = Phase::Asked(inquiry);
                Next::Rest(wait.until - now)
            }
            Phase::Asked(inquiry) => {
                wait.due = waited.saturating_mul(2);
                Next::Say(inquiry, waited)
            }
        }
    }

    /// Keeps what a thread has asked for.
    fn asked(&self, subject: Subject, round: u64, inquiry: Inquiry) {
        let mut waits = self.waits.lock();
        if let Some(wait) = waits.get_mut(&subject).filter(|wait| wait.round == round) {
            wait.phase = Phase::Asked(inquiry);
        }
    }

    /// Whether the ranks have answered that were asked about a wait.
    fn is_answered(&self, subject: Subject) -> bool {
        let waits = self.waits.lock();
        let phase = waits.get(&subject).map(|wait| &wait.phase);
        matches!(phase, Some(Phase::Asked(inquiry)) if inquiry.is_answered())
    }
}

/// A thread that waits.
pub(super) struct Watch<'f> {
    fused: &'f Fused,
    subject: Subject,
    round: u64,
    began: Instant,
    /// Until when it need not look; none if it says nothing.
    rest: Option<Duration>,
    /// Whether ranks are being asked.
    asks: bool,
}

impl<'f> Watch<'f> {
    pub(super) fn begin(fused: &'f Fused, subject: Subject, round: u64) -> Watch<'f> {
        let (began, rest) = (Instant::now(), fused.stalls.after());
        Watch { fused, subject, round, began, rest, asks: false }
    }

    /// Since when it waits.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// The earlier of the end of a wait and the next look.
    pub(super) fn limit(&self, deadline: Deadline) -> Deadline {
        self.rest.map_or(deadline, |rest| deadline.at_most(rest))
    }

    /// Whether there is something new to look at.
    #[inline]
    pub(super) fn is_answered(&self) -> bool {
        self.asks && self.fused.stalls.is_answered(self.subject)
    }

    /// Asks, or says what is missing, if it is time.
    #[cold]
    pub(super) fn look(&mut self) {
        let (fused, subject) = (self.fused, self.subject);
        let Some(after) = fused.stalls.after() else { return };
        if subject == Subject::Any {
            self.renew(fused.ends.count());
        }
        loop {
            match fused.stalls.next(subject, self.round, self.began, after) {
                Next::Rest(rest) => {
                    self.rest = Some(rest);
                    return;
                }
                Next::Ask => {
                    // Without the lock: the sockets may be another thread's, which asks for it.
                    fused.stalls.asked(subject, self.round, fused.inquire(subject, self.round));
                    self.asks = true;
                }
                Next::Say(inquiry, waited) => {
                    fused.say_what_is_missing(&inquiry, waited);
                    self.asks = false;
                }
            }
        }
    }

    /// Other threads have taken buckets that ended meanwhile.
    fn renew(&mut self, round: u64) {
        if round != self.round {
            (self.round, self.began, self.asks) = (round, Instant::now(), false);
        }
    }
}

impl Fused {
    /// Says what buckets lack that this rank has submitted and that do not end: for a program whose
    /// threads do not wait, but hear of ends. To be called now and then. What threads wait for is
    /// said once, by whichever finds it first.
    pub(super) fn warn_of_stalls(&self) {
        let others_say_it = self.waiting.load(Ordering::Relaxed) > 0;
        if self.stalls.after().is_none() || self.ends.has_failed() || others_say_it {
            return;
        }
        for (index, bucket) in self.buckets.iter().enumerate() {
            let step = bucket.countdown.ended() + 1;
            let mut tensors = 0..self.layout.buckets[index].tensors.len();
            if tensors.all(|nth| bucket.countdown.is_complete(nth, step)) {
                let mut watch = Watch::begin(self, Subject::Bucket(index), step);
                watch.look();
            }
        }
    }

    /// The buckets that a thread waits for. For any bucket, those that this rank has begun; all
    /// where it has begun none.
    fn stalled(&self, subject: Subject, round: u64) -> Vec<Stalled> {
        let Subject::Any = subject else {
            let Subject::Bucket(bucket) = subject else { return Vec::new() };
            return vec![Stalled { bucket, step: round }];
        };
        let all = self.buckets.iter().enumerate();
        let all = all
            .map(|(index, bucket)| Stalled { bucket: index, step: bucket.countdown.ended() + 1 });
        let all: Vec<Stalled> = all.collect();
        let begun: Vec<Stalled> = all.iter().copied().filter(|one| self.has_begun(*one)).collect();
        if begun.is_empty() { all } else { begun }
    }

    fn has_begun(&self, Stalled { bucket, step }: Stalled) -> bool {
        let tensors = self.layout.buckets[bucket].tensors.len();
        (0..tensors).any(|nth| self.buckets[bucket].countdown.submitted(nth) >= step)
    }

    /// Asks the members of other nodes what they have submitted.
    fn inquire(&self, subject: Subject, round: u64) -> Inquiry {
        let stalled = self.stalled(subject, round);
        let tensors = stalled.iter().flat_map(|one| &self.layout.buckets[one.bucket].tensors);
        let (first, last) = tensors
            .fold((usize::MAX, 0), |(first, last), tensor| (first.min(*tensor), last.max(*tensor)));
        let mut reads = Vec::new();
        if let (Some(data), Some(one)) = (&self.data, stalled.first()) {
            let channel = &self.buckets[one.bucket].executor.channel;
            for member in (0..channel.ranks().len()).filter(|member| !channel.is_local(*member)) {
                // One that is gone or out of reach is told of as such.
                if channel.alive(member).is_ok() && !channel.has_closed(member) {
                    let words = first as u32..last as u32 + 1;
                    reads.extend(data.read_status(member, words).map(|read| (member, read)));
                }
            }
        }
        Inquiry { stalled, first, reads }
    }

    /// Writes into the log what the buckets wait for.
    fn say_what_is_missing(&self, inquiry: &Inquiry, waited: Duration) {
        let is_stalled = |one: &&Stalled| self.buckets[one.bucket].countdown.ended() < one.step;
        let stalled: Vec<&Stalled> = inquiry.stalled.iter().filter(is_stalled).collect();
        for one in stalled.iter().take(BUCKETS_NAMED) {
            log::warn!("{}", self.what_is_missing(inquiry, **one, waited));
        }
        if stalled.len() > BUCKETS_NAMED {
            let more = stalled.len() - BUCKETS_NAMED;
            log::warn!("{more} more buckets of a fused buffer of {} wait too", self.group);
        }
    }

    fn what_is_missing(&self, inquiry: &Inquiry, one: Stalled, waited: Duration) -> String {
        let bucket = &self.buckets[one.bucket];
        let channel = &bucket.executor.channel;
        let mut parts = Vec::new();
        let tensors = self.layout.buckets[one.bucket].tensors.iter();
        let own: Vec<usize> = tensors
            .enumerate()
            .filter(|(nth, _)| !bucket.countdown.is_complete(*nth, one.step))
            .map(|(_, tensor)| *tensor)
            .collect();
        if !own.is_empty() {
            parts.push(format!("this rank has not submitted {}", named(&own)));
        }
        let others = (0..channel.ranks().len()).filter(|member| *member != channel.me());
        let mut behind = others.filter_map(|member| self.state_of(inquiry, one, member));
        parts.extend(behind.by_ref().take(RANKS_NAMED));
        match behind.count() {
            0 if parts.is_empty() => parts.push(format!(
                "all ranks have submitted all of its tensors: {}",
                bucket.executor.pending(&bucket.completion)
            )),
            0 => {}
            more => parts.push(format!("and so on for {more} more ranks")),
        }
        let (me, group) = (channel.ranks()[channel.me()], self.group);
        let (waited, Stalled { bucket, step }) = (in_words(waited), one);
        format!(
            "{me} has waited {waited} for bucket {bucket} of a fused buffer of {group}, step \
             {step}: {}",
            parts.join("; ")
        )
    }

    /// What is to be said of a member; nothing if it has submitted all.
    fn state_of(&self, inquiry: &Inquiry, one: Stalled, member: usize) -> Option<String> {
        let channel = &self.buckets[one.bucket].executor.channel;
        let who = format!("{} on {}", channel.ranks()[member], channel.host(member));
        match channel.alive(member) {
            Err(Error::RankDied { .. }) => return Some(format!("{who} has died")),
            Err(_) => return Some(format!("{who} has left the job")),
            Ok(()) if channel.has_closed(member) => {
                return Some(format!("{who} has freed the fused buffer"));
            }
            Ok(()) => {}
        }
        let read = || inquiry.reads.iter().find(|(of, _)| *of == member);
        let mapped = self.data.as_ref().and_then(|data| data.status_of(member));
        let (words, first) = match mapped {
            Some(words) => (Some(words), 0),
            None => (read().and_then(|(_, read)| read.words()), inquiry.first),
        };
        let Some(words) = words else { return Some(format!("{who} does not answer")) };
        let tensors = self.layout.buckets[one.bucket].tensors.iter().copied();
        let lacks = |tensor: &usize| {
            words.get(*tensor - first).is_none_or(|word| is_behind(word, one.step))
        };
        let missing: Vec<usize> = tensors.filter(lacks).collect();
        (!missing.is_empty()).then(|| format!("{who} has not submitted {}", named(&missing)))
    }
}

/// Whether a tensor has been submitted in an earlier step only. Ranks are at most one step apart.
fn is_behind(word: &AtomicU32, step: u64) -> bool {
    // Relaxed: nothing is read behind it.
    (word.load(Ordering::Relaxed).wrapping_sub(step as u32) as i32) < 0
}

/// A time in words.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 10.0 { format!("{seconds:.3} s") } else { format!("{seconds:.0} s") }
}

/// Tensors in words.
fn named(tensors: &[usize]) -> String {
    let numbers: Vec<String> =
        tensors.iter().take(TENSORS_NAMED).map(ToString::to_string).collect();
    let noun = if tensors.len() == 1 { "tensor" } else { "tensors" };
    match tensors.len().saturating_sub(TENSORS_NAMED) {
        0 => format!("{noun} {}", numbers.join(", ")),
        more => format!("{noun} {} and {more} more", numbers.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_named_up_to_a_limit() {
        assert_eq!(named(&[3]), "tensor 3");
        assert_eq!(named(&[3, 5]), "tensors 3, 5");
        let many: Vec<usize> = (0..11).collect();
        assert_eq!(named(&many), "tensors 0, 1, 2, 3, 4, 5, 6, 7 and 3 more");
    }

    #[test]
    fn steps_are_compared_around_the_end_of_a_word() {
        let word = AtomicU32::new(u32::MAX);
        assert!(!is_behind(&word, u64::from(u32::MAX)));
        assert!(is_behind(&word, 1 << 32) && is_behind(&AtomicU32::new(0), 1));
        word.store(0, Ordering::Relaxed);
        assert!(!is_behind(&word, 1 << 32) && !is_behind(&word, u64::from(u32::MAX)));
    }
}
