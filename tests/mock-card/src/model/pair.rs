//! A reliable queue pair: its queues, its attributes, and the changes of state that the standard
//! allows with the attributes that each needs.

use std::collections::VecDeque;

use super::card::{Gid, GidKind};
use super::codes::state;
use crate::options::Limits;

/// Bits of the mask of attributes.
pub(crate) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CURRENT_STATE: u32 = 1 << 1;
    pub(crate) const ACCESS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const ADDRESS: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_COUNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RECEIVE_PSN: u32 = 1 << 12;
    pub(crate) const READS: u32 = 1 << 13;
    pub(crate) const RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SEND_PSN: u32 = 1 << 16;
    pub(crate) const ACCEPTED_READS: u32 = 1 << 17;
    pub(crate) const PEER: u32 = 1 << 20;
}

/// A change of state: from, to, attributes that it needs, attributes that it may have.
const CHANGES: [(u32, u32, u32, u32); 5] = [
    (state::RESET, state::INIT, mask::PKEY_INDEX | mask::PORT | mask::ACCESS, 0),
    (state::INIT, state::INIT, 0, mask::PKEY_INDEX | mask::PORT | mask::ACCESS),
    (
        state::INIT,
        state::RTR,
        mask::ADDRESS
            | mask::PATH_MTU
            | mask::PEER
            | mask::RECEIVE_PSN
            | mask::ACCEPTED_READS
            | mask::RNR_TIMER,
        mask::ACCESS | mask::PKEY_INDEX,
    ),
    (
        state::RTR,
        state::RTS,
        mask::TIMEOUT | mask::RETRY_COUNT | mask::RNR_RETRY | mask::SEND_PSN | mask::READS,
        mask::CURRENT_STATE | mask::ACCESS | mask::RNR_TIMER,
    ),
    (state::RTS, state::RTS, 0, mask::CURRENT_STATE | mask::ACCESS | mask::RNR_TIMER),
];

/// Whether a pair may go from one state to another with these attributes. Pairs of this kind never
/// come to SQE; SQD is not offered.
pub(crate) fn change_is_valid(from: u32, to: u32, given: u32) -> bool {
    if to == state::RESET || to == state::ERR {
        return given & !(mask::STATE | mask::CURRENT_STATE) == 0;
    }
    let given = given & !mask::STATE;
    CHANGES.iter().any(|(of, into, needed, optional)| {
        (*of, *into) == (from, to) && given & needed == *needed && given & !(needed | optional) == 0
    })
}

/// What a program sets of a pair, as far as it has an effect.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) access: u32,
    pub(crate) pkey_index: u16,
    pub(crate) port: u8,
    pub(crate) mtu: u32,
    pub(crate) reads: u8,
    pub(crate) accepted_reads: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) peer: u32,
    pub(crate) send_psn: u32,
    pub(crate) receive_psn: u32,
    pub(crate) address: Address,
}

/// Both ends of a pair's path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Address {
    pub(crate) is_global: bool,
    pub(crate) source_index: u8,
    pub(crate) target: Gid,
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
}

/// One piece of a request, laid out as in verbs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

/// A request without its data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) immediate: u32,
    pub(crate) remote: u64,
    pub(crate) key: u32,
    pub(crate) length: u64,
    pub(crate) operands: [u64; 2],
}

/// Where the data of a queued request is.
#[derive(Debug, Default)]
pub(crate) enum Payload {
    #[default]
    Gone,
    Pieces(Box<[Sge]>),
    Inline(Box<[u8]>),
}

/// How a request ended, and what its completion makes visible.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) status: u32,
    /// What the own card took up to here.
    pub(crate) own_mark: u64,
    /// What the peer's card took up to here.
    pub(crate) peer_mark: Option<PeerMark>,
}

/// How much of what a card took was behind a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerMark {
    pub(crate) card: u32,
    pub(crate) pair: u32,
    pub(crate) mark: u64,
}

/// A request in the send queue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) payload: Payload,
    pub(crate) outcome: Option<Outcome>,
}

/// A buffer for a message.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) pieces: Vec<Sge>,
}

/// What a pair was made with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capacity {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) send_pieces: u32,
    pub(crate) receive_pieces: u32,
    pub(crate) inline: u32,
}

impl Capacity {
    pub(crate) fn fits(&self, limits: &Limits) -> bool {
        u64::from(self.sends) <= limits.max_qp_wr
            && u64::from(self.receives) <= limits.max_qp_wr
            && u64::from(self.send_pieces) <= limits.max_sge
            && u64::from(self.receive_pieces) <= limits.max_sge
            && u64::from(self.inline) <= limits.max_inline
    }
}

/// Parts that a pair refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) card: u32,
    pub(crate) domain: u32,
    pub(crate) send_queue: u32,
    pub(crate) receive_queue: u32,
    pub(crate) shared: Option<u32>,
    /// Every request is signalled.
    pub(crate) all_signaled: bool,
}

/// What a pair has under way as the sending end.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    pub(crate) entries: VecDeque<Entry>,
    /// Entries, from the oldest, that were carried out or sent.
    pub(crate) launched: usize,
    /// Slots of the queue that no polled completion has freed.
    pub(crate) used: u32,
    /// Completed entries that no completion has reported.
    pub(crate) silent: u32,
    /// The message number that the next request has.
    pub(crate) psn: u32,
    /// When to give up: on a peer that does not answer, and on one that has no receive.
    pub(crate) retry_at: Option<u64>,
    pub(crate) rnr_at: Option<u64>,
    /// No retransmission before this time.
    pub(crate) resend_at: u64,
    /// An entry has failed: nothing behind it is launched.
    pub(crate) halted: bool,
    /// What unreported completions make visible.
    pub(crate) marks: (u64, Option<PeerMark>),
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) parts: Parts,
    pub(crate) capacity: Capacity,
    pub(crate) state: u32,
    pub(crate) attributes: Attributes,
    pub(crate) target_card: Option<u32>,
    /// The entry of the GID table that it was connected with, as it was then.
    pub(crate) source: Option<(Gid, GidKind)>,
    pub(crate) sending: Sending,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) expected_psn: u32,
    pub(crate) active: bool,
}

impl Pair {
    pub(crate) fn new(parts: Parts, capacity: Capacity) -> Pair {
        Pair {
            parts,
            capacity,
            state: state::RESET,
            attributes: Attributes::default(),
            target_card: None,
            source: None,
            sending: Sending::default(),
            receives: VecDeque::new(),
            expected_psn: 0,
            active: false,
        }
    }

    pub(crate) fn accepts_messages(&self) -> bool {
        matches!(self.state, state::RTR | state::RTS)
    }

    pub(crate) fn send_pieces(&self) -> usize {
        self.capacity.send_pieces as usize
    }

    /// Whether anything is to be done for it.
    pub(crate) fn has_work(&self) -> bool {
        !self.sending.entries.is_empty() || (self.state == state::ERR && !self.receives.is_empty())
    }

    /// Reads and atomics that were launched and not completed.
    pub(crate) fn reads_under_way(&self) -> usize {
        let launched = self.sending.entries.iter().take(self.sending.launched);
        launched.filter(|entry| entry.request.is_read()).count()
    }
}

impl Request {
    /// A read or an atomic operation, which brings data back.
    pub(crate) fn is_read(&self) -> bool {
        self.opcode >= super::codes::opcode::READ
    }
}

/// The time that a receiver asks senders to wait, by its code, in microseconds.
const RNR_US: [u64; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
    5120, 7680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760,
    327_680, 491_520,
];

pub(crate) fn rnr_ns(code: u8) -> u64 {
    RNR_US[usize::from(code) % RNR_US.len()] * 1000
}

impl Attributes {
    /// How long a sender waits for an answer in all; `None` for ever.
    pub(crate) fn retry_ns(&self, seven_is_forever: bool) -> Option<u64> {
        let forever = self.timeout == 0 || (seven_is_forever && self.retry_count == 7);
        (!forever).then(|| (u64::from(self.retry_count) + 1) * (4096 << self.timeout))
    }

    /// How long a sender waits for a receive in all; `None` for ever.
    pub(crate) fn rnr_limit_ns(&self, timer: u8) -> Option<u64> {
        (self.rnr_retry != 7).then(|| u64::from(self.rnr_retry) * rnr_ns(timer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_state_need_exactly_their_attributes() {
        for (from, to, needed, optional) in CHANGES {
            assert!(change_is_valid(from, to, needed | mask::STATE));
            assert!(change_is_valid(from, to, needed | optional | mask::STATE));
            for bit in (1..22).map(|bit| 1 << bit) {
                let toggled = (needed | optional) ^ bit;
                let valid = optional & bit != 0;
                assert_eq!(change_is_valid(from, to, toggled | mask::STATE), valid, "{bit:#x}");
            }
        }
        for (from, to) in [(0, 2), (0, 3), (1, 3), (2, 1), (3, 2), (6, 1), (6, 3), (3, 4), (3, 5)] {
            assert!(!change_is_valid(from, to, 0x1f_ffff));
            assert!(!change_is_valid(from, to, mask::STATE));
        }
        assert!(change_is_valid(state::ERR, state::RESET, mask::STATE));
        assert!(!change_is_valid(state::RTS, state::ERR, mask::STATE | mask::PORT));
    }

    #[test]
    fn retries_last_as_the_standard_says() {
        let attributes =
            Attributes { timeout: 14, retry_count: 6, rnr_retry: 3, ..Attributes::default() };
        assert_eq!(attributes.retry_ns(true), Some((7 * 4096) << 14));
        assert_eq!(attributes.rnr_limit_ns(12), Some(3 * 640_000));
        let forever = Attributes { retry_count: 7, rnr_retry: 7, timeout: 1, ..attributes };
        assert_eq!(forever.retry_ns(true), None);
        assert_eq!(forever.retry_ns(false), Some(8 * 8192));
        assert_eq!(forever.rnr_limit_ns(0), None);
    }
}
