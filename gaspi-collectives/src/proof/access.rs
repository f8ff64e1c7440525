//! Access to the memory that steps name: whether a member may use it, and its values.

use super::Checked;
use super::memory::{Area, Knowledge};
use super::run::{Member, Piece, Run, parity};
use super::value::Value;
use crate::steps::{Kind, Members, Place, Span, Spread};

impl Run<'_> {
    pub(super) fn chosen(&self, spread: Spread) -> impl Iterator<Item = u32> + use<> {
        let (first, end, but) = match spread.members {
            Members::One(member) => (member, member + 1, None),
            Members::All => (0, self.size, None),
            Members::AllBut(member) => (0, self.size, Some(member)),
        };
        (first..end).filter(move |member| Some(*member) != but)
    }

    pub(super) fn spread(
        &self,
        me: u32,
        member: u32,
        Spread { kind, offset, .. }: Spread,
        (bytes, is_target): (u64, bool),
    ) -> Checked<Piece> {
        let Member { arrivals, awaited, .. } = *self.at(me);
        let area = match kind {
            Kind::Input => Area::Input,
            Kind::Output => Area::Output,
            Kind::Line => Area::Line(parity(awaited)),
            Kind::Stage if is_target => Area::Stage(parity(arrivals + 1)),
            Kind::Stage => Area::Stage(parity(awaited)),
        };
        self.piece(me, member, area, (offset, bytes))
    }

    /// Own memory, for messages and combinations.
    pub(super) fn own(&self, me: u32, span: Span) -> Checked<Piece> {
        let area = match span.place {
            Place::Input(member) if member == me => Area::Input,
            Place::Output(member) if member == me => Area::Output,
            Place::Scratch => Area::Scratch,
            _ => return Err(format!("is not own memory: {span:?}")),
        };
        self.piece(me, me, area, (span.offset, span.bytes))
    }

    /// The operand of a combination: own memory, or a published stage.
    pub(super) fn operand(&self, me: u32, span: Span) -> Checked<Piece> {
        match span.place {
            Place::Stage(_) => self.source(me, span),
            _ => self.own(me, span),
        }
    }

    /// The source of a copy.
    pub(super) fn source(&self, me: u32, span: Span) -> Checked<Piece> {
        let awaited = self.at(me).awaited;
        let (member, area) = match span.place {
            Place::Input(member) => (member, Area::Input),
            Place::Output(member) => (member, Area::Output),
            Place::Scratch => (me, Area::Scratch),
            Place::Stage(member) => (member, Area::Stage(parity(awaited))),
        };
        self.piece(me, member, area, (span.offset, span.bytes))
    }

    /// The target of a copy.
    pub(super) fn target(&self, me: u32, span: Span) -> Checked<Piece> {
        let arrivals = self.at(me).arrivals;
        let (member, area) = match span.place {
            Place::Input(member) => (member, Area::Input),
            Place::Output(member) => (member, Area::Output),
            Place::Scratch => (me, Area::Scratch),
            Place::Stage(member) => (member, Area::Stage(parity(arrivals + 1))),
        };
        self.piece(me, member, area, (span.offset, span.bytes))
    }

    pub(super) fn piece(
        &self,
        me: u32,
        member: u32,
        area: Area,
        (offset, bytes): (u64, u64),
    ) -> Checked<Piece> {
        let Member { call, arrivals, awaited, .. } = *self.at(me);
        let shape = &self.calls[call].shapes[me as usize];
        let element = shape.element_bytes;
        if !offset.is_multiple_of(element) || !bytes.is_multiple_of(element) {
            return Err(format!("divides an element: {bytes} bytes at {offset}"));
        }
        if member >= self.size {
            return Err(format!("there is no member {member}"));
        }
        let shared = member != me || matches!(area, Area::Stage(_) | Area::Line(_));
        if shared && !shape.is_one_node() {
            return Err("uses shared memory where there is none".to_owned());
        }
        if member != me && arrivals != awaited {
            return Err("uses memory of others between an arrival and its await".to_owned());
        }
        Ok(Piece { member, area, offset: offset / element, len: bytes / element })
    }

    /// Whether both are the same memory; an error if they overlap in part.
    pub(super) fn overlap(&self, a: Piece, b: Piece) -> Checked<bool> {
        if a.member != b.member || a.len == 0 || b.len == 0 {
            return Ok(false);
        }
        let memory = &self.at(a.member).memory;
        let ((first, start), (second, other)) =
            (memory.identity(a.area, a.offset), memory.identity(b.area, b.offset));
        if first != second || start + a.len <= other || other + b.len <= start {
            return Ok(false);
        }
        if start == other && a.len == b.len {
            return Ok(true);
        }
        Err(format!("{a:?} overlaps {b:?}"))
    }

    pub(super) fn read(&mut self, me: u32, piece: Piece) -> Checked<Vec<Value>> {
        let Piece { member, area, offset, len } = piece;
        let (now, clock) = (self.now(me), self.at(me).clock.clone());
        let with = Knowledge { now, clock: &clock, taken: &self.taken };
        let cells = self.members[member as usize].memory.cells(area, offset, len)?;
        let values = cells.iter_mut().map(|cell| cell.read(member, with));
        values.collect::<Checked<_>>().map_err(|what| format!("reads {piece:?}, but {what}"))
    }

    pub(super) fn write(&mut self, me: u32, piece: Piece, values: &[Value]) -> Checked<bool> {
        let Piece { member, area, offset, len } = piece;
        let may = match area {
            Area::Output => true,
            Area::Scratch | Area::Stage(_) | Area::Line(_) => member == me,
            Area::Input => false,
        };
        if !may || len != values.len() as u64 {
            return Err(format!("may not write {} elements to {piece:?}", values.len()));
        }
        let call = self.at(me).call;
        if area == Area::Output && len > 0 && self.calls[call].agrees {
            self.all_have_come(me, call)
                .map_err(|what| format!("writes its output, but {what}"))?;
        }
        let (now, clock) = (self.now(me), self.at(me).clock.clone());
        let with = Knowledge { now, clock: &clock, taken: &self.taken };
        let cells = self.members[member as usize].memory.cells(area, offset, len)?;
        for (cell, value) in cells.iter_mut().zip(values) {
            cell.write(member, Some(*value), with)
                .map_err(|what| format!("writes {piece:?}, but {what}"))?;
        }
        Ok(true)
    }
}
