//! One card: its port, its registered memory, what it took and has not placed yet, and what tests
//! have planned for it.

use super::memory::{self, Piece};
use super::random::Random;
use super::region::Regions;
use crate::options::{Limits, Traits};

/// A GID by its bytes.
pub(crate) type Gid = [u8; 16];

/// How a GID is used on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidKind {
    InfiniBand = 0,
    RoceV1 = 1,
    RoceV2 = 2,
}

/// Bytes that a card took and has not placed, so that no processor sees them.
#[derive(Debug)]
pub(crate) struct Held {
    mark: u64,
    pair: u32,
    /// The answer to a read of this card's own program.
    answer: bool,
    address: u64,
    bytes: Vec<u8>,
}

impl Held {
    fn piece(&self) -> Piece {
        Piece { address: self.address, length: self.bytes.len() as u64 }
    }

    fn place(self) {
        // SAFETY: kept alive. A region places what is held for it before it ends.
        unsafe { memory::place_torn(&self.bytes, self.address) };
    }
}

/// A call that is to be refused.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) call: String,
    pub(crate) remaining: u64,
    pub(crate) error: i32,
}

/// A request that is to fail: the n-th from now of one pair, or of any (0), maybe of atomic
/// operations only.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) pair: u32,
    pub(crate) atomic: bool,
    pub(crate) remaining: u64,
    pub(crate) status: u32,
}

/// What tests have planned.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) failures: Vec<Failure>,
    /// Nothing works any more.
    pub(crate) fatal: bool,
    /// It is not even listed.
    pub(crate) removed: bool,
    /// Its program is stopped: it polls nothing and hears no event.
    pub(crate) stopped: bool,
    /// Its requests stay in their send queues, while it takes what others send.
    pub(crate) held: bool,
    /// A thread that takes completions stays in that call.
    pub(crate) keeps: bool,
    /// How many have had to.
    pub(crate) kept: u64,
}

/// Objects that live, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Live {
    pub(crate) contexts: u64,
    pub(crate) domains: u64,
    pub(crate) queues: u64,
    pub(crate) pairs: u64,
    pub(crate) shared: u64,
    pub(crate) channels: u64,
}

/// Requests by opcode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) number: [u64; 7],
    /// Bytes.
    pub(crate) size: [u64; 7],
}

/// What was asked of a card so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: Requests,
    pub(crate) inline: u64,
    pub(crate) signaled: u64,
    pub(crate) solicited: u64,
    pub(crate) receives: u64,
    pub(crate) completions: u64,
    pub(crate) errors: u64,
    pub(crate) events: u64,
    pub(crate) posts: u64,
    pub(crate) polls: u64,
    pub(crate) not_ready: u64,
    pub(crate) relaxed: u64,
    /// Of the pair that was connected last.
    pub(crate) service_level: u64,
    pub(crate) traffic_class: u64,
    pub(crate) pkey_index: u64,
}

/// A card.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) limits: Limits,
    pub(crate) traits: Traits,
    pub(crate) up: bool,
    pub(crate) gids: Vec<Option<(Gid, GidKind)>>,
    pub(crate) regions: Regions,
    held: Vec<Held>,
    /// Grows with each write that the card takes.
    pub(crate) mark: u64,
    pub(crate) faults: Faults,
    pub(crate) live: Live,
    pub(crate) counters: Counters,
}

impl Card {
    pub(crate) fn new(fabric: u32, index: u32, limits: Limits, traits: Traits) -> Card {
        Card {
            limits,
            traits,
            up: traits.port_up != 0,
            gids: gids(fabric, index, &traits),
            regions: Regions::default(),
            held: Vec::new(),
            mark: 0,
            faults: Faults::default(),
            live: Live::default(),
            counters: Counters::default(),
        }
    }

    /// Whether anything passes its port.
    pub(crate) fn works(&self) -> bool {
        self.up && !self.is_lost()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.faults.fatal || self.faults.removed
    }

    pub(crate) fn has_gid(&self, gid: &Gid) -> bool {
        self.gids.iter().flatten().any(|(own, _)| own == gid)
    }

    /// The error of a call that a test wants refused, once. `call` is counted down.
    pub(crate) fn refuse(&mut self, call: &str) -> Option<i32> {
        if self.faults.refusals.is_empty() {
            return None;
        }
        let mut error = None;
        self.faults.refusals.retain_mut(|refusal| {
            if refusal.call != call {
                return true;
            }
            refusal.remaining -= 1;
            if refusal.remaining == 0 {
                error = Some(refusal.error);
            }
            refusal.remaining > 0
        });
        error
    }

    /// The status that a test wants for the request that is posted now.
    pub(crate) fn planned_failure(&mut self, pair: u32, atomic: bool) -> Option<u32> {
        let mut status = None;
        self.faults.failures.retain_mut(|failure| {
            if (failure.pair != 0 && failure.pair != pair) || (failure.atomic && !atomic) {
                return true;
            }
            failure.remaining -= 1;
            if failure.remaining == 0 {
                status = Some(failure.status);
            }
            failure.remaining > 0
        });
        status
    }

    /// Places bytes in this host's memory: at once, or when something forces it.
    pub(crate) fn place(&mut self, arrival: Arrival, late: bool, from: &[Piece], to: Piece) {
        self.mark += 1;
        if !late {
            let mut address = to.address;
            for piece in from {
                // SAFETY: checked range. Both ends were looked up in their regions just now.
                unsafe { memory::copy(piece.address, address, piece.length) };
                address += piece.length;
            }
            return;
        }
        self.place_overlapping(to, true);
        let mut bytes = Vec::new();
        for piece in from {
            // SAFETY: checked range. It was looked up in its region just now.
            unsafe { memory::gather(*piece, &mut bytes) };
        }
        let Arrival { pair, answer } = arrival;
        self.held.push(Held { mark: self.mark, pair, answer, address: to.address, bytes });
    }

    /// Places what is held for these bytes, so that the card's own accesses are in order. Answers
    /// to reads wait for their completion, if they may.
    pub(crate) fn place_overlapping(&mut self, piece: Piece, answers: bool) {
        self.place_where(|held| held.piece().overlaps(piece) && (answers || !held.answer));
    }

    /// Places what the card took up to `mark`, of one pair or of all.
    pub(crate) fn flush(&mut self, mark: u64, pair: Option<u32>) {
        self.place_where(|held| held.mark <= mark && pair.is_none_or(|pair| pair == held.pair));
    }

    fn place_where(&mut self, chosen: impl Fn(&Held) -> bool) {
        if self.held.is_empty() {
            return;
        }
        let (chosen, kept) = self.held.drain(..).partition(chosen);
        self.held = kept;
        Vec::into_iter(chosen).for_each(Held::place);
    }

    /// Places a random part of what is held.
    pub(crate) fn place_some(&mut self, random: &mut Random) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let mut chosen = self.held.swap_remove(random.below(self.held.len()));
        if chosen.bytes.len() > 1 && !random.once_in(4) {
            let at = 1 + random.below(chosen.bytes.len() - 1);
            let bytes = chosen.bytes.split_off(at);
            let address = chosen.address + at as u64;
            let mut other = Held { address, bytes, ..chosen };
            if random.once_in(2) {
                std::mem::swap(&mut chosen, &mut other);
            }
            self.held.push(other);
        }
        chosen.place();
        true
    }

    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Memory that is registered no longer is not written any more.
    pub(crate) fn end_region(&mut self, index: usize) -> bool {
        let Some(region) = self.regions.get(index) else { return false };
        let memory = region.memory;
        self.place_overlapping(memory, true);
        self.regions.remove(index);
        true
    }

    /// Forgets what is held: memory of programs that left it registered may be gone.
    pub(crate) fn forget_held(&mut self) {
        self.held.clear();
    }
}

/// What bytes belong to that come in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) pair: u32,
    pub(crate) answer: bool,
}

/// The LID of a card.
pub(crate) fn lid(index: u32, traits: &Traits) -> u16 {
    (index as u16 + 1).wrapping_add(traits.lid as u16)
}

fn gids(fabric: u32, index: u32, traits: &Traits) -> Vec<Option<(Gid, GidKind)>> {
    let fabric = fabric as u8;
    let [_, _, high, low] = index.to_be_bytes();
    let mut local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, fabric, high, low];
    if traits.link_layer == 1 {
        local[8] = 0;
        return sized(vec![(local, GidKind::InfiniBand)], traits);
    }
    let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, fabric, high, low];
    let mut gids = Vec::new();
    for gid in [local, ipv4].into_iter().skip(usize::from(traits.link_local == 0)) {
        if traits.roce_v1 != 0 {
            gids.push((gid, GidKind::RoceV1));
        }
        gids.push((gid, GidKind::RoceV2));
    }
    sized(gids, traits)
}

fn sized(gids: Vec<(Gid, GidKind)>, traits: &Traits) -> Vec<Option<(Gid, GidKind)>> {
    let mut gids: Vec<_> = gids.into_iter().map(Some).collect();
    gids.resize(traits.gids as usize, None);
    gids
}
