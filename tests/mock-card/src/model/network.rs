//! A fabric: its cards, and the objects that programs make on them.
//!
//! It has no clock, no threads and no system calls: who uses it passes the time in, and takes
//! signals out. Carrying out requests is in `transfer.rs`, completing them and time in
//! `progress.rs`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::card::{Card, Gid, lid};
use super::codes::{access as rights, event, state};
use super::completion::{Queue, Shared};
use super::memory::Piece;
use super::pair::{Attributes, Capacity, Pair, Parts, Sending, change_is_valid, mask};
use super::random::Random;
use super::region::{Region, rights_are_valid};
use super::remote::Outbox;
use super::table::Table;
use crate::options::{Limits, Options};

/// The result of a call: otherwise an error number.
pub(crate) type Call<T> = Result<T, i32>;

/// What a program is to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// A completion queue has what it was armed for.
    Completion { card: u32, queue: u32 },
    /// An asynchronous event and the number of the object that it is about.
    Event { card: u32, kind: u32, subject: u32 },
}

impl Signal {
    fn card(&self) -> u32 {
        match self {
            Signal::Completion { card, .. } | Signal::Event { card, .. } => *card,
        }
    }
}

/// What keeps memory of cards from children of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Forks {
    /// Nothing yet, and nothing has been made.
    #[default]
    Unsettled,
    Enabled,
    /// Something was made before.
    TooLate,
}

impl Forks {
    /// Has memory of what is made from now on kept from children; whether it is not too late.
    pub(crate) fn enable(&mut self) -> bool {
        self.settle(Forks::Enabled);
        *self == Forks::Enabled
    }

    /// Something is made that has memory.
    fn note_memory(&mut self) {
        self.settle(Forks::TooLate);
    }

    fn settle(&mut self, to: Forks) {
        if *self == Forks::Unsettled {
            *self = to;
        }
    }
}

/// A fabric.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) index: u32,
    pub(crate) options: Options,
    pub(crate) random: Random,
    pub(crate) cards: Vec<Card>,
    pub(crate) pairs: Table<Pair>,
    pub(crate) queues: Table<Queue>,
    pub(crate) shared: Table<Shared>,
    /// Pairs that something is to be done for.
    pub(crate) active: Vec<u32>,
    pub(crate) now_ns: u64,
    /// Links between cards that are cut, the lower card first.
    pub(crate) cuts: BTreeSet<(u32, u32)>,
    domains: u32,
    pub(crate) forks: Forks,
    signals: Vec<Signal>,
    /// Present if cards of other processes can be reached.
    pub(crate) outbox: Option<Outbox>,
}

impl Network {
    pub(crate) fn new(index: u32, options: Options) -> Network {
        Network {
            index,
            options,
            random: Random::new(options.behaviour.seed),
            cards: Vec::new(),
            pairs: Table::new(0x11),
            queues: Table::new(1),
            shared: Table::new(1),
            active: Vec::new(),
            now_ns: 0,
            cuts: BTreeSet::new(),
            domains: 0,
            forks: Forks::default(),
            signals: Vec::new(),
            outbox: None,
        }
    }

    /// Makes cards until there is this one.
    pub(crate) fn need_card(&mut self, index: u32) {
        while self.cards.len() <= index as usize {
            let Options { limits, traits, .. } = self.options;
            self.cards.push(Card::new(self.index, self.cards.len() as u32, limits, traits));
        }
    }

    /// The card of an object, which keeps it.
    pub(crate) fn card(&mut self, index: u32) -> &mut Card {
        &mut self.cards[index as usize]
    }

    /// Fails if the card is lost or a test wants this call refused.
    pub(crate) fn admit(&mut self, card: u32, call: &str) -> Call<()> {
        let card = self.cards.get_mut(card as usize).ok_or(libc::ENODEV)?;
        if card.is_lost() {
            return Err(libc::EIO);
        }
        card.refuse(call).map_or(Ok(()), Err)
    }

    pub(crate) fn create_domain(&mut self, card: u32) -> Call<u32> {
        self.admit(card, "alloc_pd")?;
        let card = self.card(card);
        below(card.live.domains, card.limits.max_pd)?;
        card.live.domains += 1;
        self.domains += 1;
        Ok(self.domains)
    }

    /// Frees a protection domain that nothing is in any more.
    pub(crate) fn destroy_domain(&mut self, card: u32, domain: u32) -> Call<()> {
        let pairs = self.pairs.iter().any(|(_, pair)| pair.parts.domain == domain);
        let shared = self.shared.iter().any(|(_, shared)| shared.domain == domain);
        if pairs || shared || self.card(card).regions.uses_domain(domain) {
            return Err(libc::EBUSY);
        }
        self.card(card).live.domains -= 1;
        Ok(())
    }

    /// Registers memory. The result is its index and both keys.
    pub(crate) fn register(
        &mut self,
        card: u32,
        domain: u32,
        memory: Piece,
        iova: u64,
        access: u32,
    ) -> Call<(usize, u32, u32)> {
        self.admit(card, "reg_mr")?;
        self.forks.note_memory();
        let card = self.card(card);
        let Limits { max_mr, max_mr_size, max_registered, .. } = card.limits;
        if !rights_are_valid(access) || memory.length > max_mr_size || memory.length == 0 {
            return Err(libc::EINVAL);
        }
        below(card.regions.live, max_mr)?;
        let total = card.regions.bytes.checked_add(memory.length).ok_or(libc::EINVAL)?;
        if total > max_registered {
            return Err(libc::ENOMEM);
        }
        let region = Region { domain, memory, iova, access, local_key: 0, remote_key: 0 };
        card.counters.relaxed += u64::from(access & rights::RELAXED_ORDERING != 0);
        let index = card.regions.insert(region);
        let region = card.regions.get(index).ok_or(libc::EINVAL)?;
        Ok((index, region.local_key, region.remote_key))
    }

    pub(crate) fn create_queue(
        &mut self,
        card: u32,
        entries: u64,
        ready: Arc<AtomicU32>,
    ) -> Call<u32> {
        self.admit(card, "create_cq")?;
        self.forks.note_memory();
        let card_of = self.card(card);
        if entries == 0 || entries > card_of.limits.max_cqe {
            return Err(libc::EINVAL);
        }
        below(card_of.live.queues, card_of.limits.max_cq)?;
        card_of.live.queues += 1;
        Ok(self.queues.insert(Queue::new(card, entries as usize, ready)))
    }

    pub(crate) fn resize_queue(&mut self, queue: u32, entries: u64) -> Call<()> {
        let card = self.queues.find(queue).ok_or(libc::EINVAL)?.card;
        self.admit(card, "resize_cq")?;
        if entries == 0 || entries > self.card(card).limits.max_cqe {
            return Err(libc::EINVAL);
        }
        let queue = self.queues.find_mut(queue).ok_or(libc::EINVAL)?;
        if queue.resize(entries as usize) { Ok(()) } else { Err(libc::EINVAL) }
    }

    pub(crate) fn destroy_queue(&mut self, queue: u32) -> Call<()> {
        let used = |parts: &Parts| parts.send_queue == queue || parts.receive_queue == queue;
        if self.pairs.iter().any(|(_, pair)| used(&pair.parts)) {
            return Err(libc::EBUSY);
        }
        let card = self.queues.remove(queue).ok_or(libc::EINVAL)?.card;
        self.card(card).live.queues -= 1;
        self.signals.retain(
            |signal| !matches!(signal, Signal::Completion { queue: other, .. } if *other == queue),
        );
        Ok(())
    }

    pub(crate) fn create_shared(
        &mut self,
        card: u32,
        domain: u32,
        capacity: u32,
        pieces: u32,
        limit: u32,
    ) -> Call<u32> {
        self.admit(card, "create_srq")?;
        self.forks.note_memory();
        let card_of = self.card(card);
        let Limits { max_srq, max_srq_wr, max_sge, .. } = card_of.limits;
        if u64::from(capacity) > max_srq_wr || u64::from(pieces) > max_sge || capacity == 0 {
            return Err(libc::EINVAL);
        }
        if max_srq == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        below(card_of.live.shared, max_srq)?;
        card_of.live.shared += 1;
        let (capacity, receives) = (capacity as usize, VecDeque::new());
        Ok(self.shared.insert(Shared { card, domain, capacity, pieces, receives, limit }))
    }

    pub(crate) fn destroy_shared(&mut self, number: u32) -> Call<()> {
        if self.pairs.iter().any(|(_, pair)| pair.parts.shared == Some(number)) {
            return Err(libc::EBUSY);
        }
        let card = self.shared.remove(number).ok_or(libc::EINVAL)?.card;
        self.card(card).live.shared -= 1;
        Ok(())
    }

    pub(crate) fn create_pair(&mut self, parts: Parts, capacity: Capacity) -> Call<u32> {
        self.admit(parts.card, "create_qp")?;
        self.forks.note_memory();
        let card = self.card(parts.card);
        if card.traits.reliable == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if !capacity.fits(&card.limits) {
            return Err(libc::EINVAL);
        }
        below(card.live.pairs, card.limits.max_qp)?;
        card.live.pairs += 1;
        Ok(self.pairs.insert(Pair::new(parts, capacity)))
    }

    pub(crate) fn destroy_pair(&mut self, number: u32) -> Call<()> {
        let pair = self.pairs.remove(number).ok_or(libc::EINVAL)?;
        // Nothing that has come by it is placed behind its end.
        self.card(pair.parts.card).flush(u64::MAX, Some(number));
        self.forget_completions(number, &pair.parts);
        self.active.retain(|active| *active != number);
        self.card(pair.parts.card).live.pairs -= 1;
        Ok(())
    }

    fn forget_completions(&mut self, number: u32, parts: &Parts) {
        for queue in [parts.send_queue, parts.receive_queue] {
            if let Some(queue) = self.queues.find_mut(queue) {
                queue.forget(number);
            }
        }
    }

    /// Changes the state or attributes of a pair. `wanted` has what `given` names.
    pub(crate) fn modify(
        &mut self,
        number: u32,
        into: u32,
        wanted: &Attributes,
        given: u32,
    ) -> Call<()> {
        let pair = self.pairs.find(number).ok_or(libc::EINVAL)?;
        let (from, parts) = (pair.state, pair.parts);
        let into = if given & mask::STATE == 0 { from } else { into };
        self.admit(parts.card, "modify_qp")?;
        if !change_is_valid(from, into, given) {
            return Err(libc::EINVAL);
        }
        self.check_attributes(parts.card, wanted, given)?;
        let target = self.card_of_gid(&wanted.address);
        let pair = self.pairs.find_mut(number).ok_or(libc::EINVAL)?;
        pair.attributes.take(wanted, given);
        pair.state = into;
        if given & mask::ADDRESS != 0 {
            pair.target_card = target;
            let index = usize::from(pair.attributes.address.source_index);
            pair.source = self.cards[parts.card as usize].gids.get(index).copied().flatten();
            let (address, pkey_index) = (pair.attributes.address, pair.attributes.pkey_index);
            let counters = &mut self.cards[parts.card as usize].counters;
            counters.service_level = address.service_level.into();
            counters.traffic_class = address.traffic_class.into();
            counters.pkey_index = pkey_index.into();
        }
        let pair = self.pairs.find_mut(number).ok_or(libc::EINVAL)?;
        if given & mask::SEND_PSN != 0 {
            pair.sending.psn = wanted.send_psn;
        }
        if given & mask::RECEIVE_PSN != 0 {
            pair.expected_psn = wanted.receive_psn;
        }
        if into == state::RESET {
            pair.sending = Sending::default();
            pair.receives.clear();
            pair.target_card = None;
            self.forget_completions(number, &parts);
        }
        self.wake(number);
        Ok(())
    }

    fn check_attributes(&self, card: u32, wanted: &Attributes, given: u32) -> Call<()> {
        let card = &self.cards[card as usize];
        let Limits { max_qp_rd_atom, max_qp_init_rd_atom, .. } = card.limits;
        let address = &wanted.address;
        let source = card.gids.get(usize::from(address.source_index));
        let has_path = match card.traits.link_layer {
            1 if card.traits.grh_required != 0 => address.lid != 0 && address.is_global,
            1 => address.lid != 0 || address.is_global,
            _ => address.is_global && address.target != Gid::default(),
        };
        let source_exists = !address.is_global || matches!(source, Some(Some(_)));
        let checks = [
            (mask::PORT, wanted.port == 1),
            (mask::PKEY_INDEX, u64::from(wanted.pkey_index) < card.traits.pkeys),
            (mask::PATH_MTU, (1..=card.traits.mtu).contains(&u64::from(wanted.mtu))),
            (mask::READS, u64::from(wanted.reads) <= max_qp_init_rd_atom),
            (mask::ACCEPTED_READS, u64::from(wanted.accepted_reads) <= max_qp_rd_atom),
            (mask::TIMEOUT, wanted.timeout < 32),
            (mask::RETRY_COUNT, wanted.retry_count < 8),
            (mask::RNR_RETRY, wanted.rnr_retry < 8),
            (mask::RNR_TIMER, wanted.rnr_timer < 32),
            (mask::SEND_PSN, wanted.send_psn < 1 << 24),
            (mask::RECEIVE_PSN, wanted.receive_psn < 1 << 24),
            (mask::PEER, wanted.peer < 1 << 24),
            (mask::ADDRESS, has_path && source_exists),
        ];
        let valid = checks.iter().all(|(bit, valid)| given & bit == 0 || *valid);
        if valid { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// The card that a path leads to: by its LID, or by the GID that it has now.
    fn card_of_gid(&self, address: &super::pair::Address) -> Option<u32> {
        let ours = (0..).zip(&self.cards).find(|(index, card)| {
            let by_lid = !address.is_global && lid(*index, &card.traits) == address.lid;
            by_lid || (address.is_global && card.has_gid(&address.target))
        });
        let gid = if address.is_global { &address.target } else { &Gid::default() };
        let lid = if address.is_global { 0 } else { address.lid };
        ours.map(|(index, _)| index).or_else(|| self.card_elsewhere(gid, lid))
    }

    /// Sets whether a port is up, and tells its programs.
    pub(crate) fn set_port(&mut self, card: u32, up: bool) {
        if std::mem::replace(&mut self.card(card).up, up) != up {
            // The event comes behind what the card has taken before.
            self.card(card).flush(u64::MAX, None);
            let kind = if up { event::PORT_ACTIVE } else { event::PORT_ERR };
            self.signal(Signal::Event { card, kind, subject: 1 });
        }
    }

    /// The ends of a card's pairs with another card fail. Their program hears that by completions,
    /// and by an event before if it is `told`.
    pub(crate) fn break_pairs(&mut self, card: u32, peer: u32, told: bool) {
        let pairs = self.pairs.iter();
        let between =
            pairs.filter(|(_, pair)| pair.parts.card == card && pair.target_card == Some(peer));
        let numbers: Vec<u32> = between.map(|(number, _)| number).collect();
        for number in numbers {
            if told {
                let kind = event::QP_FATAL;
                self.signal(Signal::Event { card, kind, subject: number });
            }
            self.set_error(number);
        }
    }

    /// A card that works no more. What it holds is never placed.
    pub(crate) fn set_lost(&mut self, card: u32, removed: bool) {
        let lost = self.card(card);
        lost.faults.fatal = true;
        lost.faults.removed |= removed;
        lost.forget_held();
        self.signal(Signal::Event { card, kind: event::DEVICE_FATAL, subject: 0 });
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.card(signal.card()).counters.events += 1;
        self.signals.push(signal);
    }

    /// Takes the signals of all programs that are not stopped.
    pub(crate) fn take_signals(&mut self) -> Vec<Signal> {
        if self.signals.is_empty() {
            return Vec::new();
        }
        let stopped = |signal: &Signal| self.cards[signal.card() as usize].faults.stopped;
        let (kept, taken) = self.signals.drain(..).partition(stopped);
        self.signals = kept;
        taken
    }
}

fn below(live: u64, limit: u64) -> Call<()> {
    if live < limit { Ok(()) } else { Err(libc::ENOMEM) }
}

impl Attributes {
    /// Takes over what `given` names.
    fn take(&mut self, wanted: &Attributes, given: u32) {
        macro_rules! take {
            ($($bit:ident: $field:ident,)*) => {
                $(if given & mask::$bit != 0 {
                    self.$field = wanted.$field;
                })*
            };
        }
        take! {
            ACCESS: access,
            PKEY_INDEX: pkey_index,
            PORT: port,
            PATH_MTU: mtu,
            READS: reads,
            ACCEPTED_READS: accepted_reads,
            TIMEOUT: timeout,
            RETRY_COUNT: retry_count,
            RNR_RETRY: rnr_retry,
            RNR_TIMER: rnr_timer,
            PEER: peer,
            SEND_PSN: send_psn,
            RECEIVE_PSN: receive_psn,
            ADDRESS: address,
        }
    }
}
