//! Requests: posted, carried out at the other end in the order of their pair, and answered.

use super::card::Arrival;
use super::codes::{access, completed, completion_flag, event, flag, opcode, state, status};
use super::completion::Completion;
use super::memory::{self, Piece};
use super::network::{Call, Network, Signal};
use super::pair::{Entry, Outcome, Pair, Payload, PeerMark, Receive, Request, Sge};
use super::region::Denied;

/// The data of a request while it is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Pieces(&'a [Sge]),
    /// The same, but the card took the bytes already, or takes them now without keys.
    Inline(&'a [Sge]),
    Bytes(&'a [u8]),
}

/// What came of an attempt to carry a request out.
#[derive(Debug)]
pub(crate) enum Launch {
    Finished(Outcome),
    /// The other end does not answer.
    Unanswered,
    /// The other end has no receive; its code for the time to wait.
    NotReady(u8),
    /// On its way to another process, which answers.
    Sent,
}

/// What the responding end says.
#[derive(Debug)]
pub(crate) enum Answer {
    Silence,
    NotReady(u8),
    Refused(u32),
    Done { mark: u64, read: Option<Piece>, old: u64 },
}

/// A request as it arrives: from whom, and what limits the sender keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arriving {
    pub(crate) card: u32,
    pub(crate) pair: u32,
    pub(crate) psn: u32,
    pub(crate) mtu: u32,
    /// Reads of this pair that are under way, with this one.
    pub(crate) reads: usize,
    pub(crate) request: Request,
}

impl Network {
    /// Takes a request of a program.
    pub(crate) fn post_send(&mut self, number: u32, request: Request, sges: &[Sge]) -> Call<()> {
        let request =
            Request { length: sges.iter().map(|sge| u64::from(sge.length)).sum(), ..request };
        self.check_send(number, &request, sges.len())?;
        let inline = request.flags & flag::INLINE != 0;
        let planned = self.note_send(number, &request);
        let source = if inline { Source::Inline(sges) } else { Source::Pieces(sges) };
        let kind = self.options.behaviour.shuffle == 0;
        let pair = self.pairs.find_mut(number).ok_or(libc::EINVAL)?;
        pair.sending.used += 1;
        let held = self.cards[pair.parts.card as usize].faults.held;
        let free = self.outbox.is_none() && planned.is_none() && !held;
        let direct = kind && free && pair.state == state::RTS;
        let mut entry = Entry { request, payload: Payload::Gone, outcome: None };
        if direct
            && pair.sending.entries.is_empty()
            && let Launch::Finished(outcome) = self.launch(number, &request, source)
        {
            entry.outcome = Some(outcome);
            let sending = &mut self.pairs.find_mut(number).ok_or(libc::EINVAL)?.sending;
            (sending.launched, sending.halted) = (1, outcome.status != status::SUCCESS);
            sending.entries.push_back(entry);
            self.drive(number);
            return Ok(());
        }
        entry.payload = if inline { Payload::taken(sges) } else { Payload::Pieces(sges.into()) };
        entry.outcome = planned.map(|status| Outcome { status, ..Outcome::default() });
        let pair = self.pairs.find_mut(number).ok_or(libc::EINVAL)?;
        pair.sending.entries.push_back(entry);
        self.wake(number);
        if kind {
            self.drive(number);
        }
        Ok(())
    }

    fn check_send(&mut self, number: u32, request: &Request, pieces: usize) -> Call<()> {
        let card = self.pairs.find(number).ok_or(libc::EINVAL)?.parts.card;
        self.admit(card, "post_send")?;
        let pair = self.pairs.find(number).ok_or(libc::EINVAL)?;
        let card = &self.cards[card as usize];
        if !matches!(pair.state, state::RTS | state::ERR) || pieces > pair.send_pieces() {
            return Err(libc::EINVAL);
        }
        let inline = request.flags & flag::INLINE != 0;
        let atomic = request.opcode >= opcode::COMPARE_SWAP;
        let read = request.is_read();
        let refused = [
            request.opcode > opcode::FETCH_ADD,
            request.length > card.limits.max_msg_sz,
            inline && (read || request.length > u64::from(pair.capacity.inline)),
            read && pair.attributes.reads == 0 && pair.state == state::RTS,
            atomic && (request.length != 8 || card.traits.atomic_cap == 0),
        ];
        if refused.contains(&true) {
            return Err(libc::EINVAL);
        }
        if pair.sending.used >= pair.capacity.sends {
            return Err(libc::ENOMEM);
        }
        Ok(())
    }

    fn note_send(&mut self, number: u32, request: &Request) -> Option<u32> {
        let card = self.pairs.find(number)?.parts.card;
        let card = self.card(card);
        let counters = &mut card.counters;
        counters.requests.number[request.opcode as usize] += 1;
        counters.requests.size[request.opcode as usize] += request.length;
        counters.inline += u64::from(request.flags & flag::INLINE != 0);
        counters.signaled += u64::from(request.flags & flag::SIGNALED != 0);
        counters.solicited += u64::from(request.flags & flag::SOLICITED != 0);
        card.planned_failure(number, request.opcode >= opcode::COMPARE_SWAP)
    }

    pub(crate) fn post_receive(&mut self, number: u32, receive: Receive) -> Call<()> {
        let card = self.pairs.find(number).ok_or(libc::EINVAL)?.parts.card;
        self.admit(card, "post_recv")?;
        let pair = self.pairs.find_mut(number).ok_or(libc::EINVAL)?;
        let pieces = receive.pieces.len() as u32;
        if pair.state == state::RESET
            || pair.parts.shared.is_some()
            || pieces > pair.capacity.receive_pieces
        {
            return Err(libc::EINVAL);
        }
        if pair.receives.len() >= pair.capacity.receives as usize {
            return Err(libc::ENOMEM);
        }
        pair.receives.push_back(receive);
        self.card(card).counters.receives += 1;
        self.wake(number);
        self.retry_others();
        Ok(())
    }

    pub(crate) fn post_shared(&mut self, number: u32, receive: Receive) -> Call<()> {
        let card = self.shared.find(number).ok_or(libc::EINVAL)?.card;
        self.admit(card, "post_srq_recv")?;
        let shared = self.shared.find_mut(number).ok_or(libc::EINVAL)?;
        if receive.pieces.len() > shared.pieces as usize {
            return Err(libc::EINVAL);
        }
        if shared.receives.len() >= shared.capacity {
            return Err(libc::ENOMEM);
        }
        shared.receives.push_back(receive);
        self.card(card).counters.receives += 1;
        self.retry_others();
        Ok(())
    }

    /// Carries a request out, if both ends let it.
    pub(crate) fn launch(&mut self, number: u32, request: &Request, source: Source) -> Launch {
        let Some(pair) = self.pairs.find(number) else { return Launch::Unanswered };
        let (parts, psn) = (pair.parts, pair.sending.psn);
        let reads = pair.reads_under_way() + usize::from(request.is_read());
        let (peer, mtu) = (pair.attributes.peer, pair.attributes.mtu);
        let Some(target) = pair.target_card else { return Launch::Unanswered };
        if !self.passes(number) {
            return Launch::Unanswered;
        }
        let pieces = match self.local_pieces(number, request, source) {
            Ok(pieces) => pieces,
            Err(Denied) => return Launch::failed(status::LOCAL_PROTECTION),
        };
        let arriving =
            Arriving { card: parts.card, pair: number, psn, mtu, reads, request: *request };
        if !self.is_here(target) {
            return self.transmit(target, peer, &arriving, &pieces);
        }
        match self.respond(target, peer, &arriving, &pieces) {
            Answer::Silence => Launch::Unanswered,
            Answer::NotReady(timer) => Launch::NotReady(timer),
            Answer::Refused(status) => Launch::failed(status),
            Answer::Done { mark, read, old } => {
                let peer_mark =
                    request.is_read().then_some(PeerMark { card: target, pair: peer, mark });
                if let Some(pair) = self.pairs.find_mut(number) {
                    pair.sending.psn = (psn + 1) & 0xff_ffff;
                }
                let word = Piece { address: (&raw const old) as u64, length: 8 };
                let own_mark = match request.opcode {
                    opcode::READ => self.scatter(parts.card, number, true, read, &pieces),
                    opcode::COMPARE_SWAP.. => {
                        self.scatter(parts.card, number, true, Some(word), &pieces)
                    }
                    _ => 0,
                };
                Launch::Finished(Outcome { status: status::SUCCESS, own_mark, peer_mark })
            }
        }
    }

    /// Whether packets of a pair get to its peer, and answers back.
    pub(crate) fn passes(&self, number: u32) -> bool {
        let Some(pair) = self.pairs.find(number) else { return false };
        let has_gid = |number: u32| {
            self.options.behaviour.by_gid == 0
                || self.pairs.find(number).is_none_or(|pair| {
                    let Pair { parts, source, attributes, .. } = pair;
                    let index = usize::from(attributes.address.source_index);
                    let now = self.cards[parts.card as usize].gids.get(index).copied().flatten();
                    !attributes.address.is_global || now == *source
                })
        };
        let own = pair.parts.card;
        let way = pair.target_card.is_some_and(|target| self.can_reach(own, target));
        // A card reaches itself without the wire.
        way && (pair.target_card == Some(own) || has_gid(number) && has_gid(pair.attributes.peer))
    }

    /// Whether packets pass from one card to the other.
    pub(crate) fn can_reach(&self, from: u32, to: u32) -> bool {
        let works = |card: u32| {
            !self.is_here(card) || self.cards.get(card as usize).is_some_and(|card| card.works())
        };
        works(from) && works(to) && !self.cuts.contains(&(from.min(to), from.max(to)))
    }

    /// The memory of a request's own end.
    pub(crate) fn local_pieces(
        &mut self,
        number: u32,
        request: &Request,
        source: Source,
    ) -> Result<Vec<Piece>, Denied> {
        let parts = self.pairs.find(number).ok_or(Denied)?.parts;
        let rights = if request.is_read() { access::LOCAL_WRITE } else { 0 };
        let fence = request.flags & flag::FENCE != 0;
        let card = self.card(parts.card);
        let sges = match source {
            Source::Bytes(bytes) => {
                return Ok(vec![Piece {
                    address: bytes.as_ptr() as u64,
                    length: bytes.len() as u64,
                }]);
            }
            Source::Inline(sges) => {
                return Ok(sges.iter().map(Sge::piece).collect());
            }
            Source::Pieces(sges) => sges,
        };
        let mut pieces = Vec::with_capacity(sges.len());
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let length = u64::from(sge.length);
            let domain = parts.domain;
            let piece = card.regions.local(domain, sge.key, sge.address, length, rights)?;
            card.place_overlapping(piece, fence || request.is_read());
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// What the responding end does with a request.
    pub(crate) fn respond(
        &mut self,
        target: u32,
        number: u32,
        arriving: &Arriving,
        data: &[Piece],
    ) -> Answer {
        let Some(pair) = self.pairs.find(number) else { return Answer::Silence };
        let from_peer = pair.attributes.peer == arriving.pair
            && pair.target_card == Some(arriving.card)
            && pair.parts.card == target;
        if !from_peer || !pair.accepts_messages() || pair.expected_psn != arriving.psn {
            return Answer::Silence;
        }
        let request = &arriving.request;
        let packet = 128_u64 << pair.attributes.mtu;
        let too_long = arriving.mtu > pair.attributes.mtu && request.length > packet;
        let too_many =
            request.is_read() && arriving.reads > usize::from(pair.attributes.accepted_reads);
        let answer = if too_long || too_many {
            Answer::Refused(status::REMOTE_INVALID)
        } else {
            match request.opcode {
                opcode::SEND | opcode::SEND_IMM => self.take_message(number, arriving, data),
                opcode::WRITE | opcode::WRITE_IMM => self.take_write(number, arriving, data),
                opcode::READ => self.take_read(number, request),
                _ => self.take_atomic(number, request),
            }
        };
        match answer {
            Answer::Refused(_) => self.fail_target(number),
            Answer::Done { .. } => {
                if let Some(pair) = self.pairs.find_mut(number) {
                    pair.expected_psn = (pair.expected_psn + 1) & 0xff_ffff;
                }
            }
            Answer::Silence | Answer::NotReady(_) => {}
        }
        answer
    }

    fn take_message(&mut self, number: u32, arriving: &Arriving, data: &[Piece]) -> Answer {
        let Some(parts) = self.pairs.find(number).map(|pair| pair.parts) else {
            return Answer::Silence;
        };
        let Some(receive) = self.take_receive(number) else { return self.not_ready(number) };
        let request = &arriving.request;
        let room: u64 = receive.pieces.iter().map(|sge| u64::from(sge.length)).sum();
        let id = receive.id;
        if room < request.length {
            self.complete_receive(number, id, arriving, status::LOCAL_LENGTH, 0);
            return Answer::Refused(status::REMOTE_INVALID);
        }
        let regions = &self.cards[parts.card as usize].regions;
        let found: Result<Vec<Piece>, Denied> = (receive.pieces.iter())
            .filter(|sge| sge.length > 0)
            .map(|sge| {
                let length = u64::from(sge.length);
                regions.local(parts.domain, sge.key, sge.address, length, access::LOCAL_WRITE)
            })
            .collect();
        let Ok(into) = found else {
            self.complete_receive(number, id, arriving, status::LOCAL_PROTECTION, 0);
            return Answer::Refused(status::REMOTE_OPERATION);
        };
        let mut rest = into.into_iter();
        let mut open = rest.next();
        for piece in data {
            let mut left = *piece;
            while left.length > 0 {
                let Some(to) = open.as_mut() else { break };
                let length = left.length.min(to.length);
                let from = Piece { length, ..left };
                let target = Piece { length, ..*to };
                self.place(parts.card, number, false, &[from], target);
                (left.address, left.length) = (left.address + length, left.length - length);
                (to.address, to.length) = (to.address + length, to.length - length);
                if to.length == 0 {
                    open = rest.next();
                }
            }
        }
        let mark = self.card(parts.card).mark;
        self.complete_receive(number, id, arriving, status::SUCCESS, mark);
        Answer::Done { mark, read: None, old: 0 }
    }

    fn take_write(&mut self, number: u32, arriving: &Arriving, data: &[Piece]) -> Answer {
        let request = &arriving.request;
        let to = match self.remote_piece(number, request, access::REMOTE_WRITE) {
            Ok(to) => to,
            Err(Denied) => return Answer::Refused(status::REMOTE_ACCESS),
        };
        let with_receive = request.opcode == opcode::WRITE_IMM;
        let receive = match self.take_receive_if(with_receive, number) {
            None if with_receive => return self.not_ready(number),
            receive => receive,
        };
        let Some(card) = self.pairs.find(number).map(|pair| pair.parts.card) else {
            return Answer::Silence;
        };
        if to.length > 0 {
            self.place(card, number, false, data, to);
        }
        let mark = self.card(card).mark;
        if let Some(receive) = receive {
            self.complete_receive(number, receive.id, arriving, status::SUCCESS, mark);
        }
        Answer::Done { mark, read: None, old: 0 }
    }

    fn take_read(&mut self, number: u32, request: &Request) -> Answer {
        let Ok(piece) = self.remote_piece(number, request, access::REMOTE_READ) else {
            return Answer::Refused(status::REMOTE_ACCESS);
        };
        let Some(card) = self.pairs.find(number).map(|pair| pair.parts.card) else {
            return Answer::Silence;
        };
        let card = self.card(card);
        card.place_overlapping(piece, true);
        Answer::Done { mark: card.mark, read: Some(piece), old: 0 }
    }

    fn take_atomic(&mut self, number: u32, request: &Request) -> Answer {
        if !request.remote.is_multiple_of(8) {
            return Answer::Refused(status::REMOTE_INVALID);
        }
        let Ok(piece) = self.remote_piece(number, request, access::REMOTE_ATOMIC) else {
            return Answer::Refused(status::REMOTE_ACCESS);
        };
        let Some(card) = self.pairs.find(number).map(|pair| pair.parts.card) else {
            return Answer::Silence;
        };
        let card = self.card(card);
        card.place_overlapping(piece, true);
        let [first, second] = request.operands;
        let adds = request.opcode == opcode::FETCH_ADD;
        let with_processors = card.traits.atomic_cap == 2;
        let new = |old: u64| match adds {
            true => Some(old.wrapping_add(first)),
            false => (old == first).then_some(second),
        };
        // SAFETY: checked range, and aligned.
        let old = unsafe { memory::change(piece.address, with_processors, new) };
        Answer::Done { mark: card.mark, read: None, old }
    }

    fn remote_piece(&self, number: u32, request: &Request, rights: u32) -> Result<Piece, Denied> {
        let pair = self.pairs.find(number).ok_or(Denied)?;
        if pair.attributes.access & rights != rights {
            return Err(Denied);
        }
        if request.length == 0 {
            return Ok(Piece { address: 0, length: 0 });
        }
        let regions = &self.cards[pair.parts.card as usize].regions;
        regions.remote(pair.parts.domain, request.key, request.remote, request.length, rights)
    }

    fn take_receive_if(&mut self, wanted: bool, number: u32) -> Option<Receive> {
        if wanted { self.take_receive(number) } else { None }
    }

    fn take_receive(&mut self, number: u32) -> Option<Receive> {
        let pair = self.pairs.find_mut(number)?;
        let Some(shared) = pair.parts.shared else { return pair.receives.pop_front() };
        let card = pair.parts.card;
        let (receive, limit_reached) = self.shared.find_mut(shared)?.take()?;
        if limit_reached {
            let kind = event::SRQ_LIMIT_REACHED;
            self.signal(Signal::Event { card, kind, subject: shared });
        }
        Some(receive)
    }

    fn not_ready(&mut self, number: u32) -> Answer {
        let Some(pair) = self.pairs.find(number) else { return Answer::Silence };
        let (card, timer) = (pair.parts.card, pair.attributes.rnr_timer);
        self.card(card).counters.not_ready += 1;
        Answer::NotReady(timer)
    }

    fn complete_receive(
        &mut self,
        number: u32,
        id: u64,
        arriving: &Arriving,
        status: u32,
        own_mark: u64,
    ) {
        let Some(parts) = self.pairs.find(number).map(|pair| pair.parts) else { return };
        let Request { opcode, flags, immediate, length, .. } = arriving.request;
        let with_immediate = matches!(opcode, opcode::SEND_IMM | opcode::WRITE_IMM);
        let completion = Completion {
            id,
            status,
            opcode: match opcode {
                opcode::WRITE_IMM => completed::RECEIVE_WRITE_IMM,
                _ => completed::RECEIVE,
            },
            length: length as u32,
            immediate: if with_immediate { immediate } else { 0 },
            pair: number,
            peer: arriving.pair,
            flags: if with_immediate { completion_flag::WITH_IMM } else { 0 },
            solicited: flags & flag::SOLICITED != 0,
            own_mark,
            ..Completion::default()
        };
        self.complete(parts.receive_queue, completion);
    }

    /// Brings an answer into the memory of its own end. Returns the mark that it has there.
    pub(crate) fn scatter(
        &mut self,
        card: u32,
        number: u32,
        answer: bool,
        from: Option<Piece>,
        into: &[Piece],
    ) -> u64 {
        let mut address = from.map_or(0, |piece| piece.address);
        for to in into.iter().filter(|_| from.is_some()) {
            let piece = Piece { address, length: to.length };
            self.place(card, number, answer, &[piece], *to);
            address += to.length;
        }
        self.card(card).mark
    }

    fn place(&mut self, card: u32, pair: u32, answer: bool, from: &[Piece], to: Piece) {
        let late = self.options.behaviour.placement != 0;
        self.card(card).place(Arrival { pair, answer }, late, from, to);
    }
}

impl Launch {
    fn failed(status: u32) -> Launch {
        Launch::Finished(Outcome { status, ..Outcome::default() })
    }
}

impl Sge {
    fn piece(&self) -> Piece {
        Piece { address: self.address, length: u64::from(self.length) }
    }
}

impl Payload {
    fn taken(sges: &[Sge]) -> Payload {
        let mut bytes = Vec::new();
        for sge in sges {
            // SAFETY: caller's promise: inline data is readable while it is posted.
            unsafe { memory::gather(sge.piece(), &mut bytes) };
        }
        Payload::Inline(bytes.into())
    }

    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Payload::Gone => Source::Bytes(&[]),
            Payload::Pieces(sges) => Source::Pieces(sges),
            Payload::Inline(bytes) => Source::Bytes(bytes),
        }
    }
}
