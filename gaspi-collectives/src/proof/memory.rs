//! The memory of one member, element by element: value, writer, possible readers.

use super::value::{Value, Wanted};
use super::{Call, Checked};
use crate::collective::Collective;
use crate::steps::Shape;

/// The time of each member, as one member knows it.
pub(super) type Clock = Vec<u32>;

/// A member and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Stamp {
    pub(super) member: u32,
    pub(super) time: u32,
}

/// The knowledge of a member: its own time, and that of all others.
#[derive(Clone, Copy)]
pub(super) struct Knowledge<'a> {
    pub(super) now: Stamp,
    pub(super) clock: &'a Clock,
    /// When each message was taken by its receiver; `u32::MAX`: not yet.
    pub(super) taken: &'a [u32],
}

impl Knowledge<'_> {
    /// Whether that is known to be over.
    fn knows(&self, stamp: Stamp) -> bool {
        stamp.member == self.now.member || stamp.time <= self.clock[stamp.member as usize]
    }
}

#[derive(Clone, Copy, Debug)]
enum Reader {
    /// Reads at that time.
    Member(Stamp),
    /// A message to that member is sent out of it.
    Message { to: u32, number: u32 },
}

/// One element.
#[derive(Clone, Default)]
pub(super) struct Cell {
    value: Option<Value>,
    write: Option<Stamp>,
    /// When its owner read it.
    own_read: u32,
    /// Others' reads since it was written, and messages.
    reads: Vec<Reader>,
}

impl Cell {
    pub(super) fn read(&mut self, owner: u32, with: Knowledge<'_>) -> Checked<Value> {
        if let Some(write) = self.write.filter(|write| !with.knows(*write)) {
            return Err(format!("member {} may still be writing", write.member));
        }
        let value = self.value.ok_or("nothing was written")?;
        if owner == with.now.member {
            self.own_read = with.now.time;
            return Ok(value);
        }
        match self.reads.last_mut() {
            Some(Reader::Member(stamp)) if stamp.member == with.now.member => *stamp = with.now,
            _ => self.reads.push(Reader::Member(with.now)),
        }
        Ok(value)
    }

    /// A message is sent out of it.
    pub(super) fn lend(&mut self, to: u32, number: u32) {
        self.reads.push(Reader::Message { to, number });
    }

    /// Whether all others' accesses are known to be over.
    fn is_free(&self, owner: u32, with: Knowledge<'_>, messages_too: bool) -> Checked {
        if let Some(write) = self.write.filter(|write| !with.knows(*write)) {
            return Err(format!("member {} may still be writing", write.member));
        }
        if !with.knows(Stamp { member: owner, time: self.own_read }) {
            return Err(format!("member {owner} may still be reading"));
        }
        for reader in &self.reads {
            match *reader {
                Reader::Member(stamp) if !with.knows(stamp) => {
                    return Err(format!("member {} may still be reading", stamp.member));
                }
                Reader::Message { to, number } if messages_too => {
                    let time = with.taken[number as usize];
                    if time == u32::MAX || !with.knows(Stamp { member: to, time }) {
                        return Err(format!("a message to {to} may still have to leave"));
                    }
                }
                _ => (),
            }
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        owner: u32,
        value: Option<Value>,
        with: Knowledge<'_>,
    ) -> Checked {
        self.is_free(owner, with, true)?;
        self.reads.clear();
        (self.value, self.write, self.own_read) = (value, Some(with.now), 0);
        Ok(())
    }
}

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Area {
    Input,
    Output,
    Scratch,
    Stage(usize),
    Line(usize),
}

/// Part of one of the two buffers of a caller.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Extent {
    buffer: usize,
    start: u64,
    len: u64,
}

/// Where input and output of a call are.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Layout {
    pub(super) input: Extent,
    pub(super) output: Extent,
    pub(super) scratch: u64,
    pub(super) stage: u64,
    pub(super) line: u64,
}

impl Layout {
    pub(super) fn new(call: &Call, me: u32) -> Layout {
        let Shape { count, root, ref counts, ref sends, ref receives, size, .. } =
            call.shapes[me as usize];
        let blocks = starts(counts, count, size);
        let total = *blocks.last().unwrap_or(&0);
        let own = blocks[me as usize];
        let mine = blocks[me as usize + 1] - own;
        let at_root = |len| if me == root { len } else { 0 };
        let sum = |v: &[u64]| if v.is_empty() { total } else { v.iter().sum() };
        // Elements of the input and of the output, and where one begins in the other in place.
        let (input, output, input_at, output_at) = match call.collective {
            Collective::Allreduce => (count, count, 0, 0),
            Collective::Reduce => (count, at_root(count), 0, 0),
            Collective::Broadcast => (at_root(count), count, 0, 0),
            Collective::ReduceScatter => (total, mine, 0, own),
            Collective::Scatter => (at_root(total), mine, 0, at_root(own)),
            Collective::Allgather => (mine, total, own, 0),
            Collective::Gather => (mine, at_root(total), at_root(own), 0),
            Collective::Alltoall => (sum(sends), sum(receives), 0, 0),
            Collective::Barrier => (0, 0, 0, 0),
        };
        let extent = |buffer, start, len| Extent { buffer, start, len };
        let (input, output) = if call.in_place {
            (extent(0, input_at, input), extent(0, output_at, output))
        } else {
            (extent(0, 0, input), extent(1, 0, output))
        };
        Layout { input, output, ..Layout::default() }
    }
}

/// Where blocks begin, and the end.
fn starts(counts: &[u64], count: u64, size: u32) -> Vec<u64> {
    let mut starts = vec![0];
    for member in 0..size as usize {
        starts.push(starts[member] + counts.get(member).copied().unwrap_or(count));
    }
    starts
}

/// The wanted value of each element of a member's output.
pub(super) fn wanted(call: &Call, me: u32) -> Vec<Wanted> {
    let Shape { count, root, ref counts, ref receives, size, .. } = call.shapes[me as usize];
    let blocks = starts(counts, count, size);
    let mine = blocks[me as usize]..blocks[me as usize + 1];
    let all = |range: std::ops::Range<u64>| range.map(|e| Wanted::Whole(e as u32)).collect();
    let from = |member: u32, range: std::ops::Range<u64>| {
        range.map(move |element| Wanted::From(member, element as u32))
    };
    let gathered =
        || (0..size).flat_map(|m| from(m, 0..blocks[m as usize + 1] - blocks[m as usize]));
    match call.collective {
        Collective::Allreduce => all(0..count),
        Collective::Reduce if me == root => all(0..count),
        Collective::ReduceScatter => all(mine),
        Collective::Broadcast => from(root, 0..count).collect(),
        Collective::Scatter => from(root, mine).collect(),
        Collective::Allgather => gathered().collect(),
        Collective::Gather if me == root => gathered().collect(),
        Collective::Alltoall => {
            let block = |member: u32| {
                let theirs = &call.shapes[member as usize];
                let sends = if theirs.sends.is_empty() { counts } else { &theirs.sends };
                let starts = starts(sends, count, size);
                let len = starts[me as usize + 1] - starts[me as usize];
                debug_assert!(receives.get(member as usize).is_none_or(|r| *r == len));
                from(member, starts[me as usize]..starts[me as usize] + len)
            };
            (0..size).flat_map(block).collect()
        }
        Collective::Reduce | Collective::Gather | Collective::Barrier => Vec::new(),
    }
}

/// The memory of one member.
#[derive(Default)]
pub(super) struct Memory {
    owner: u32,
    pub(super) layout: Layout,
    buffers: [Vec<Cell>; 2],
    scratch: Vec<Cell>,
    stages: [Vec<Cell>; 2],
    lines: [Vec<Cell>; 2],
}

impl Memory {
    pub(super) fn new(owner: u32) -> Memory {
        Memory { owner, ..Memory::default() }
    }

    /// The caller fills its input. Its output may hold anything.
    pub(super) fn enter(&mut self, layout: Layout, call: u32, with: Knowledge<'_>) -> Checked {
        self.layout = layout;
        let grow = |cells: &mut Vec<Cell>, len: u64| {
            cells.resize(cells.len().max(len as usize), Cell::default());
        };
        for Extent { buffer, start, len } in [layout.input, layout.output] {
            grow(&mut self.buffers[buffer], start + len);
        }
        for parity in [0, 1] {
            grow(&mut self.stages[parity], layout.stage);
            grow(&mut self.lines[parity], layout.line);
        }
        self.scratch = vec![Cell::default(); layout.scratch as usize];
        let owner = self.owner;
        for cell in self.cells(Area::Output, 0, layout.output.len)? {
            cell.write(owner, None, with)?;
        }
        for (element, cell) in (0..).zip(self.cells(Area::Input, 0, layout.input.len)?) {
            cell.write(owner, Some(Value::input(call, owner, element)), with)?;
        }
        Ok(())
    }

    /// The caller has its buffers back: no other member uses them, and the input is unchanged. The
    /// executor has seen to it that messages which are still to be taken have left.
    pub(super) fn leave(&mut self, call: u32, with: Knowledge<'_>) -> Checked {
        let Layout { input, output, .. } = self.layout;
        let (owner, out_of_place) = (self.owner, input.buffer != output.buffer);
        for (area, len) in [(Area::Input, input.len), (Area::Output, output.len)] {
            for (element, cell) in (0..).zip(self.cells(area, 0, len)?) {
                cell.is_free(owner, with, false)
                    .map_err(|what| format!("returns, but {what} its buffers"))?;
                cell.reads.retain(|reader| matches!(reader, Reader::Member(_)));
                let own = Some(Value::input(call, owner, element));
                if area == Area::Input && out_of_place && cell.value != own {
                    return Err(format!("element {element} of the input has changed"));
                }
            }
        }
        Ok(())
    }

    /// Elements of the output.
    pub(super) fn output_len(&self) -> u64 {
        self.layout.output.len
    }

    /// A piece of memory.
    pub(super) fn cells(&mut self, area: Area, offset: u64, len: u64) -> Checked<&mut [Cell]> {
        let layout = &self.layout;
        let (cells, start, end) = match area {
            Area::Input => {
                (&mut self.buffers[layout.input.buffer], layout.input.start, layout.input.len)
            }
            Area::Output => {
                (&mut self.buffers[layout.output.buffer], layout.output.start, layout.output.len)
            }
            Area::Scratch => (&mut self.scratch, 0, layout.scratch),
            Area::Stage(parity) => (&mut self.stages[parity], 0, layout.stage),
            Area::Line(parity) => (&mut self.lines[parity], 0, layout.line),
        };
        if offset + len > end {
            let owner = self.owner;
            return Err(format!("{area:?} of {owner} has {end} elements: not {offset} + {len}"));
        }
        Ok(&mut cells[(start + offset) as usize..(start + offset + len) as usize])
    }

    /// Which memory that is: equal for areas that share it.
    pub(super) fn identity(&self, area: Area, offset: u64) -> (usize, u64) {
        match area {
            Area::Input => (self.layout.input.buffer, self.layout.input.start + offset),
            Area::Output => (self.layout.output.buffer, self.layout.output.start + offset),
            Area::Scratch => (2, offset),
            Area::Stage(parity) => (3 + parity, offset),
            Area::Line(parity) => (5 + parity, offset),
        }
    }
}
