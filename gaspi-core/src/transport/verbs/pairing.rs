//! How two ranks make the two ends of a pair, and end it: a machine without memory of devices.
//!
//! Both do the same, in either order: each makes its end and offers it, connects it with what the
//! other one offers, and says so. When both have, each proves the way by a request that moves
//! nothing. An attempt has a number that both know: one who hears of a higher one gives up his own.
//!
//! A connection that breaks is lost to one of the two, or to both at different moments. Who hears
//! of that takes its end down and says so on the next connection, ahead of all that follows there:
//! the other one may have heard nothing, and would wait for an end that is no more.
//!
//! Invariant: an attempt ends on both sides before the next one begins: each has said so, behind
//! the end of all that was under way, or the connection between them has been lost.

use super::budget::NotMade;
use crate::policy::retry::Retry;
use crate::wire::message::PairOffer;

/// How far an attempt has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Idle,
    /// This end has been offered; whether it is connected, and whether the other one is.
    Offered { here: bool, there: bool },
    /// Both are; a request is on its way that proves it.
    Proving,
    /// Requests go this way.
    Up,
    /// This end is gone, and the other one may not know yet. Where the peer's was gone before, and
    /// the pair has not been up, it may have `reasons` that another attempt would meet.
    Ending { reasons: bool },
}

/// What is to be done next, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Make an end, and offer it with this number.
    Offer(u32),
    /// Connect the end with that of the peer, and tell it.
    Connect(PairOffer),
    /// Send what proves the way.
    Prove,
    /// Take the end down. Where it `was_up`, what is under way on it has failed, and what waits
    /// behind that; else what waits has lost nothing.
    TakeDown { reason: String, was_up: bool },
    /// Tell the peer that this attempt has ended here, why, and whether another one would meet the
    /// same.
    TellEnd { attempt: u32, reason: String, refuses: bool },
    /// Tell the peer that this attempt and all before have been lost here.
    TellLoss(u32),
}

/// The pair of a lane.
#[derive(Debug)]
pub(super) struct PairState {
    attempt: u32,
    phase: Phase,
    /// The attempt that the peer has offered, where one that was begun here took its place.
    instead_of: Option<u32>,
    /// Why the last attempt ended without having been up: no further one is begun here.
    refused: Option<String>,
    /// Whether that was because this rank has too few pairs.
    scarce: bool,
    /// When it is tried again, where that was for a reason that may pass.
    retry: Retry,
}

impl Default for PairState {
    fn default() -> PairState {
        let (instead_of, refused, retry) = (None, None, Retry::default());
        PairState { attempt: 0, phase: Phase::Idle, instead_of, refused, scarce: false, retry }
    }
}

impl PairState {
    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Whether there is no attempt.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Whether there is an attempt that has not come up yet.
    pub(super) fn is_being_made(&self) -> bool {
        matches!(self.phase, Phase::Offered { .. } | Phase::Proving)
    }

    /// Whether this attempt is tried: both ends are connected.
    pub(super) fn is_proving(&self, attempt: u32) -> bool {
        self.phase == Phase::Proving && self.attempt == attempt
    }

    /// The number of the last attempt.
    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the end of an attempt has not been heard of from the peer.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. })
    }

    /// Why there is no way between the devices.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Begins an attempt, if there is none and none was refused.
    pub(super) fn begin(&mut self) -> Vec<Step> {
        if self.phase != Phase::Idle || self.refused.is_some() {
            return Vec::new();
        }
        self.attempt = self.attempt.wrapping_add(1);
        self.phase = Phase::Offered { here: false, there: false };
        self.instead_of = None;
        self.retry.begin();
        vec![Step::Offer(self.attempt)]
    }

    /// Begins an attempt where the last one was refused: something has changed.
    pub(super) fn try_again(&mut self) -> Vec<Step> {
        self.retry.begin();
        if self.refused.take().is_some() { self.begin() } else { Vec::new() }
    }

    /// Begins an attempt where the last one was refused so long ago that its reason may have
    /// passed; else as [`begin`](PairState::begin).
    pub(super) fn begin_by_time(&mut self, now_ns: impl FnOnce() -> u64) -> Vec<Step> {
        if self.is_retry_due(now_ns) { self.try_again() } else { self.begin() }
    }

    fn is_retry_due(&self, now_ns: impl FnOnce() -> u64) -> bool {
        self.retry().is_some_and(|retry| retry.is_due(now_ns()))
    }

    /// Why there is no way between the devices, unless that was so long ago that it may have
    /// changed.
    pub(super) fn refused_still(&self, now_ns: impl FnOnce() -> u64) -> Option<&str> {
        self.refused().filter(|_| !self.is_retry_due(now_ns))
    }

    /// When a refused attempt is followed by another one, by time.
    pub(super) fn retry(&self) -> Option<&Retry> {
        Some(&self.retry).filter(|retry| self.refused.is_some() && retry.is_waiting())
    }

    /// There is nothing to make a pair for now.
    pub(super) fn postpone(&mut self, now_ns: u64) {
        self.retry.postpone(now_ns);
    }

    /// The pair is up; whether attempts were refused before for a reason that has passed.
    pub(super) fn end_retries(&mut self) -> bool {
        self.retry.succeed()
    }

    /// What failed for this reason is forgotten: the next request begins an attempt. Where there
    /// were too few pairs, one that is given back does.
    pub(super) fn forget_refusal(&mut self) {
        if !self.scarce {
            self.refused = None;
        }
    }

    /// Whether no pair could be made here, since there were too few.
    pub(super) fn is_scarce(&self) -> bool {
        self.phase == Phase::Idle && self.refused.is_some() && self.scarce
    }

    /// The end that was to be offered cannot be made. Nothing was told of it, so that there is
    /// nothing to wait for; a peer that has offered its own is told.
    pub(super) fn not_made(&mut self, error: &NotMade) -> Vec<Step> {
        let Phase::Offered { here, .. } = self.phase else { return Vec::new() };
        self.phase = Phase::Idle;
        (self.refused, self.scarce) = (Some(error.reason.clone()), error.scarce);
        let offered = if here {
            Some(self.attempt)
        } else {
            self.attempt = self.attempt.wrapping_sub(1);
            self.instead_of.take()
        };
        let reason = error.reason.clone();
        offered
            .map(|attempt| Step::TellEnd { attempt, reason, refuses: true })
            .into_iter()
            .collect()
    }

    /// The peer offers its end.
    pub(super) fn on_offer(&mut self, offer: PairOffer) -> Vec<Step> {
        let mut steps = Vec::new();
        if offer.attempt > self.attempt {
            if !matches!(self.phase, Phase::Idle | Phase::Ending { .. }) {
                steps.push(self.take_down("the peer has begun anew"));
            }
            (self.attempt, self.refused) = (offer.attempt, None);
            self.retry.begin();
            self.phase = Phase::Offered { here: true, there: false };
            steps.extend([Step::Offer(offer.attempt), Step::Connect(offer)]);
        } else if let (Phase::Offered { here: false, there }, true) =
            (self.phase, offer.attempt == self.attempt)
        {
            self.phase = Phase::Offered { here: true, there };
            steps.push(Step::Connect(offer));
            steps.extend(self.prove());
        } else if self.phase == Phase::Idle {
            // It has not heard of attempts that this side knows.
            self.refused = None;
            steps = self.begin();
            self.instead_of = Some(offer.attempt);
        }
        steps
    }

    /// The peer has connected its end.
    pub(super) fn on_connected(&mut self, attempt: u32) -> Vec<Step> {
        if let (Phase::Offered { here, .. }, true) = (self.phase, attempt == self.attempt) {
            self.phase = Phase::Offered { here, there: true };
            return self.prove().into_iter().collect();
        }
        Vec::new()
    }

    fn prove(&mut self) -> Option<Step> {
        let both = self.phase == Phase::Offered { here: true, there: true };
        both.then(|| {
            self.phase = Phase::Proving;
            Step::Prove
        })
    }

    /// What was to prove the way has arrived.
    pub(super) fn on_proved(&mut self) {
        if self.phase == Phase::Proving {
            self.phase = Phase::Up;
        }
    }

    /// The peer's end is gone, as another one would be if the peer `refuses`.
    pub(super) fn on_ended(&mut self, attempt: u32, reason: &str, refuses: bool) -> Vec<Step> {
        if attempt != self.attempt {
            return Vec::new();
        }
        match self.phase {
            Phase::Idle => Vec::new(),
            Phase::Ending { reasons } => {
                if refuses && reasons {
                    (self.refused, self.scarce) = (Some(reason.to_owned()), false);
                }
                self.phase = Phase::Idle;
                Vec::new()
            }
            Phase::Offered { .. } | Phase::Proving | Phase::Up => {
                if refuses && !self.is_up() {
                    (self.refused, self.scarce) = (Some(reason.to_owned()), false);
                }
                let taken_down = self.take_down(reason);
                self.phase = Phase::Idle;
                vec![taken_down, Step::TellEnd { attempt, reason: reason.to_owned(), refuses }]
            }
        }
    }

    /// There is no way: the end cannot be made or connected, or the peer does not answer.
    pub(super) fn refuse(&mut self, reason: &str) -> Vec<Step> {
        let refuses = self.is_being_made();
        if refuses {
            (self.refused, self.scarce) = (Some(reason.to_owned()), false);
        }
        self.end(reason, refuses)
    }

    /// What the last attempt was refused for, if it was, may pass.
    pub(super) fn retry_later(&mut self, now_ns: u64) {
        if self.refused.is_some() {
            self.retry.refused(now_ns);
        }
    }

    /// This end has failed, for a reason that another attempt need not meet.
    pub(super) fn fail(&mut self, reason: &str) -> Vec<Step> {
        self.end(reason, false)
    }

    /// The peer's end is gone, and it will say why.
    pub(super) fn follow(&mut self, reason: &str) -> Vec<Step> {
        let reasons = self.is_being_made();
        let steps = self.end(reason, false);
        if !steps.is_empty() {
            self.phase = Phase::Ending { reasons };
        }
        steps
    }

    fn end(&mut self, reason: &str, refuses: bool) -> Vec<Step> {
        if matches!(self.phase, Phase::Idle | Phase::Ending { .. }) {
            return Vec::new();
        }
        let taken_down = self.take_down(reason);
        self.phase = Phase::Ending { reasons: false };
        let (attempt, reason) = (self.attempt, reason.to_owned());
        vec![taken_down, Step::TellEnd { attempt, reason, refuses }]
    }

    /// The connection with the peer was lost: what was said on it may not have been heard.
    pub(super) fn reset(&mut self, reason: &str) -> Vec<Step> {
        let gone = matches!(self.phase, Phase::Idle | Phase::Ending { .. });
        let mut steps: Vec<Step> = (!gone).then(|| self.take_down(reason)).into_iter().collect();
        self.phase = Phase::Idle;
        // Also of an attempt whose end was told, which may have been lost on the way.
        if self.attempt > 0 {
            steps.push(Step::TellLoss(self.attempt));
        }
        steps
    }

    /// The connection was lost to the peer, and with it its ends of this attempt and of all before.
    pub(super) fn on_lost(&mut self, attempt: u32, reason: &str) -> Vec<Step> {
        if attempt < self.attempt {
            return Vec::new();
        }
        self.attempt = attempt;
        let gone = matches!(self.phase, Phase::Idle | Phase::Ending { .. });
        let steps = (!gone).then(|| self.take_down(reason)).into_iter().collect();
        self.phase = Phase::Idle;
        steps
    }

    fn take_down(&self, reason: &str) -> Step {
        Step::TakeDown { reason: reason.to_owned(), was_up: self.is_up() }
    }
}

#[cfg(test)]
#[path = "pairing_tests.rs"]
mod tests;
