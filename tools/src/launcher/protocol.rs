//! What gaspi_run and its agents say to each other, as bytes: pure, every length bounded before
//! use.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields in little-endian
//! order; bytes, texts and lists carry a 32-bit count. Both sides are one program of one version;
//! an agent of another version is refused by its first frame.

use crate::assignment::{Assignment, Command, Environment};
use crate::binding::Bind;
use crate::hang::{Row, Waiting};
use crate::limits;
use crate::process::Ending;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// The version of this protocol.
pub(crate) const VERSION: u16 = 2;
/// Bytes of the largest frame without its length: arguments and environment may have some MiB.
pub(crate) const FRAME_MAX: usize = 32 << 20;
/// Bytes of output or input in one frame.
pub(crate) const PIECE_MAX: usize = 64 << 10;

/// From gaspi_run to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Down {
    /// What there is to do; answered by [`Up::Ready`] or [`Up::Failed`].
    Plan(Box<Assignment>),
    /// Every machine is ready: start the ranks.
    Start,
    /// For the standard input of rank 0.
    Input(Vec<u8>),
    /// There is no more of it.
    InputEnd,
    /// For all ranks.
    Signal(i32),
    /// No rank runs any more on any machine: the agent goes, and with `true` what the ranks left
    /// behind is ended first.
    Part(bool),
    /// Asks for [`Up::Rows`].
    Show,
    /// So many bytes of output found their place.
    Taken(u32),
    /// Of the meeting.
    Meeting(Vec<u8>),
}

/// From an agent to gaspi_run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Up {
    /// The first word, with what tells the agent's machine from others, if that is known.
    Hello { version: u16, machine: Option<String> },
    /// For the user.
    Notice(String),
    /// All programs are there.
    Ready,
    /// The plan cannot be carried out; nothing runs.
    Failed { status: u8, message: String },
    /// A rank runs, on the cores that these words name.
    Started { rank: u32, pid: i32, place: String },
    /// From standard output (0) or error (1) of a rank; empty at its end.
    Output { rank: u32, stream: u8, bytes: Vec<u8> },
    /// A rank has ended.
    Ended { rank: u32, pid: i32, ending: Ending },
    /// So many bytes of input were taken by rank 0.
    InputTaken(u32),
    /// Rank 0 reads no more.
    InputClosed,
    /// What the ranks of this machine are doing.
    Rows(Vec<(u32, Row)>),
    /// Of the meeting.
    Meeting(Vec<u8>),
    /// Says nothing, but keeps the connection busy, so that its end is seen.
    Alive,
    /// All ranks have ended and all output was sent.
    Done,
}

/// A frame that was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

type Decoded<T> = Result<T, Malformed>;

/// Something that is said in frames.
pub(crate) trait Frame: Sized {
    fn write(&self, to: &mut Writer);
    fn read(kind: u8, from: &mut Reader<'_>) -> Decoded<Self>;

    /// The frame with its length.
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(vec![0; 4]);
        self.write(&mut writer);
        let len = (writer.0.len() - 4) as u32;
        writer.0[..4].copy_from_slice(&len.to_le_bytes());
        writer.0
    }

    /// The first frame in these bytes and how many belong to it; `None` if it has not come whole.
    fn decode(bytes: &[u8]) -> Decoded<Option<(Self, usize)>> {
        let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len == 0 || len > FRAME_MAX {
            return Err(Malformed("a frame of impossible length"));
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let mut reader = Reader(&body[1..]);
        let frame = Self::read(body[0], &mut reader)?;
        if !reader.0.is_empty() {
            return Err(Malformed("bytes behind the end of a frame"));
        }
        Ok(Some((frame, 4 + len)))
    }
}

/// Fields on their way into a frame.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn i32(&mut self, value: i32) {
        self.u32(value as u32);
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }
    fn text(&mut self, text: impl AsRef<OsStr>) {
        self.bytes(text.as_ref().as_bytes());
    }
    fn command(&mut self, command: &Command) {
        self.text(&command.program);
        self.u32(command.arguments.len() as u32);
        command.arguments.iter().for_each(|argument| self.text(argument));
    }
    fn assignment(&mut self, plan: &Assignment) {
        self.text(&plan.job);
        self.u32(plan.size);
        self.u32(plan.ranks.len() as u32);
        plan.ranks.iter().for_each(|rank| self.u32(*rank));
        self.u32(plan.machines);
        self.text(&plan.host);
        self.command(&plan.first);
        self.command(&plan.others);
        self.bool(plan.environment.is_some());
        if let Some(environment) = &plan.environment {
            self.u32(environment.variables.len() as u32);
            for (name, value) in &environment.variables {
                self.text(name);
                self.text(value);
            }
            self.text(&environment.directory);
            self.u32(environment.umask);
            environment.limits.iter().for_each(|limit| self.u64(*limit));
        }
        self.bool(plan.machine_file.is_some());
        if let Some(file) = &plan.machine_file {
            self.text(file);
        }
        self.u8(match plan.bind {
            None => 0,
            Some(Bind::Core) => 1,
            Some(Bind::Numa) => 2,
            Some(Bind::None) => 3,
        });
        self.bool(plan.numa);
        self.bool(plan.debug);
    }
    fn ending(&mut self, ending: Ending) {
        let (kind, number, core) = match ending {
            Ending::Exited(status) => (0, status, false),
            Ending::Killed { signal, core } => (1, signal, core),
            Ending::Lost => (2, 0, false),
        };
        self.u8(kind);
        self.i32(number);
        self.bool(core);
    }
    fn row(&mut self, row: &Row) {
        self.i32(row.pid);
        self.text(&row.state);
        self.text(&row.doing);
        self.u32(row.waits.len() as u32);
        for wait in &row.waits {
            self.text(&wait.call);
            self.text(&wait.object);
            self.u32(u32::try_from(wait.since.as_millis()).unwrap_or(u32::MAX));
            self.u32(wait.awaited.len() as u32);
            wait.awaited.iter().for_each(|rank| self.u32(*rank as u32));
            self.bool(wait.in_part);
        }
    }
}

/// What is left of a frame.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed("a short frame"))?;
        self.0 = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Decoded<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn i32(&mut self) -> Decoded<i32> {
        Ok(self.u32()? as i32)
    }
    fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn bool(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a truth value that is none")),
        }
    }
    fn bytes(&mut self) -> Decoded<Vec<u8>> {
        let len = self.u32()? as usize;
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed("a short frame"))?;
        self.0 = rest;
        Ok(head.to_vec())
    }
    fn piece(&mut self) -> Decoded<Vec<u8>> {
        let piece = self.bytes()?;
        if piece.len() > PIECE_MAX { Err(Malformed("a piece that is too long")) } else { Ok(piece) }
    }
    fn os(&mut self) -> Decoded<OsString> {
        let bytes = self.bytes()?;
        // The kernel takes no such byte in arguments, variables and paths.
        if bytes.contains(&0) {
            Err(Malformed("a zero in a text"))
        } else {
            Ok(OsString::from_vec(bytes))
        }
    }
    fn text(&mut self) -> Decoded<String> {
        String::from_utf8(self.bytes()?).map_err(|_| Malformed("a text that is not UTF-8"))
    }
    /// Each element takes bytes of the frame, so a wrong count ends with it.
    fn list<T>(&mut self, read: impl Fn(&mut Self) -> Decoded<T>) -> Decoded<Vec<T>> {
        let count = self.u32()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }
    fn option<T>(&mut self, read: impl Fn(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }
    fn command(&mut self) -> Decoded<Command> {
        Ok(Command { program: self.os()?, arguments: self.list(Self::os)? })
    }
    fn environment(&mut self) -> Decoded<Environment> {
        let variables = self.list(|from| {
            let (name, value) = (from.os()?, from.os()?);
            let bad = name.is_empty() || name.as_bytes().contains(&b'=');
            if bad { Err(Malformed("a variable without a name")) } else { Ok((name, value)) }
        })?;
        let (directory, umask) = (self.os()?.into(), self.u32()?);
        let mut limits = [0; limits::COUNT];
        for limit in &mut limits {
            *limit = self.u64()?;
        }
        Ok(Environment { variables, directory, umask, limits })
    }
    fn assignment(&mut self) -> Decoded<Assignment> {
        let plan = Assignment {
            job: self.text()?,
            size: self.u32()?,
            ranks: self.list(Self::u32)?,
            machines: self.u32()?,
            host: self.text()?,
            first: self.command()?,
            others: self.command()?,
            environment: self.option(Self::environment)?,
            machine_file: self.option(|from| from.os().map(PathBuf::from))?,
            bind: match self.u8()? {
                0 => None,
                1 => Some(Bind::Core),
                2 => Some(Bind::Numa),
                3 => Some(Bind::None),
                _ => return Err(Malformed("a way to bind that is none")),
            },
            numa: self.bool()?,
            debug: self.bool()?,
        };
        let ascending = plan.ranks.is_sorted_by(|one, next| one < next);
        let exist = plan.ranks.last().is_some_and(|last| *last < plan.size);
        let size = plan.size <= gaspi_core::bootstrap::RANKS_MAX;
        if ascending && exist && size { Ok(plan) } else { Err(Malformed("impossible ranks")) }
    }
    fn hello(&mut self) -> Decoded<Up> {
        let version = self.u16()?;
        if version != VERSION {
            // What follows is not for this version.
            self.0 = &[];
            return Ok(Up::Hello { version, machine: None });
        }
        Ok(Up::Hello { version, machine: self.option(Self::text)? })
    }
    fn ending(&mut self) -> Decoded<Ending> {
        let (kind, number, core) = (self.u8()?, self.i32()?, self.bool()?);
        match kind {
            0 => Ok(Ending::Exited(number)),
            1 => Ok(Ending::Killed { signal: number, core }),
            2 => Ok(Ending::Lost),
            _ => Err(Malformed("an end that is none")),
        }
    }
    fn row(&mut self) -> Decoded<Row> {
        Ok(Row {
            pid: self.i32()?,
            state: self.text()?,
            doing: self.text()?,
            waits: self.list(|from| {
                Ok(Waiting {
                    call: from.text()?,
                    object: from.text()?,
                    since: Duration::from_millis(from.u32()?.into()),
                    awaited: from.list(|from| Ok(from.u32()? as usize))?,
                    in_part: from.bool()?,
                })
            })?,
        })
    }
}

impl Frame for Down {
    fn write(&self, to: &mut Writer) {
        match self {
            Down::Plan(plan) => {
                to.u8(1);
                to.assignment(plan);
            }
            Down::Start => to.u8(2),
            Down::Input(bytes) => {
                to.u8(3);
                to.bytes(bytes);
            }
            Down::InputEnd => to.u8(4),
            Down::Signal(signal) => {
                to.u8(5);
                to.i32(*signal);
            }
            Down::Part(orphans) => {
                to.u8(6);
                to.bool(*orphans);
            }
            Down::Show => to.u8(7),
            Down::Taken(count) => {
                to.u8(8);
                to.u32(*count);
            }
            Down::Meeting(bytes) => {
                to.u8(9);
                to.bytes(bytes);
            }
        }
    }

    fn read(kind: u8, from: &mut Reader<'_>) -> Decoded<Down> {
        Ok(match kind {
            1 => Down::Plan(Box::new(from.assignment()?)),
            2 => Down::Start,
            3 => Down::Input(from.piece()?),
            4 => Down::InputEnd,
            5 => match from.i32()? {
                signal @ 1..=64 => Down::Signal(signal),
                _ => return Err(Malformed("a signal that is none")),
            },
            6 => Down::Part(from.bool()?),
            7 => Down::Show,
            8 => Down::Taken(from.u32()?),
            9 => Down::Meeting(from.bytes()?),
            _ => return Err(Malformed("a frame of unknown kind")),
        })
    }
}

impl Frame for Up {
    fn write(&self, to: &mut Writer) {
        match self {
            Up::Hello { version, machine } => {
                to.u8(1);
                to.u16(*version);
                to.bool(machine.is_some());
                if let Some(machine) = machine {
                    to.text(machine);
                }
            }
            Up::Ready => to.u8(2),
            Up::Failed { status, message } => {
                to.u8(3);
                to.u8(*status);
                to.text(message);
            }
            Up::Started { rank, pid, place } => {
                to.u8(4);
                to.u32(*rank);
                to.i32(*pid);
                to.text(place);
            }
            Up::Output { rank, stream, bytes } => {
                to.u8(5);
                to.u32(*rank);
                to.u8(*stream);
                to.bytes(bytes);
            }
            Up::Ended { rank, pid, ending } => {
                to.u8(6);
                to.u32(*rank);
                to.i32(*pid);
                to.ending(*ending);
            }
            Up::InputTaken(count) => {
                to.u8(7);
                to.u32(*count);
            }
            Up::InputClosed => to.u8(8),
            Up::Rows(rows) => {
                to.u8(9);
                to.u32(rows.len() as u32);
                for (rank, row) in rows {
                    to.u32(*rank);
                    to.row(row);
                }
            }
            Up::Meeting(bytes) => {
                to.u8(10);
                to.bytes(bytes);
            }
            Up::Alive => to.u8(11),
            Up::Done => to.u8(12),
            Up::Notice(text) => {
                to.u8(13);
                to.text(text);
            }
        }
    }

    fn read(kind: u8, from: &mut Reader<'_>) -> Decoded<Up> {
        Ok(match kind {
            1 => from.hello()?,
            2 => Up::Ready,
            3 => Up::Failed { status: from.u8()?, message: from.text()? },
            4 => Up::Started { rank: from.u32()?, pid: from.i32()?, place: from.text()? },
            5 => match (from.u32()?, from.u8()?) {
                (rank, stream @ 0..=1) => Up::Output { rank, stream, bytes: from.piece()? },
                _ => return Err(Malformed("output of no stream")),
            },
            6 => Up::Ended { rank: from.u32()?, pid: from.i32()?, ending: from.ending()? },
            7 => Up::InputTaken(from.u32()?),
            8 => Up::InputClosed,
            9 => Up::Rows(from.list(|from| Ok((from.u32()?, from.row()?)))?),
            10 => Up::Meeting(from.bytes()?),
            11 => Up::Alive,
            12 => Up::Done,
            13 => Up::Notice(from.text()?),
            _ => return Err(Malformed("a frame of unknown kind")),
        })
    }
}

/// What a fuzzer made up, as either side takes it in: what is understood can be said again.
#[cfg(fuzzing)]
pub(crate) fn take_apart(bytes: &[u8]) {
    fn said_again<T: Frame + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(Some((frame, len))) = T::decode(bytes) {
            assert!(len <= bytes.len());
            assert_eq!(
                T::decode(&frame.encode()).map(|again| again.map(|(frame, _)| frame)),
                Ok(Some(frame))
            );
        }
    }
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    for bytes in [bytes, &[&len, bytes].concat()] {
        said_again::<Down>(bytes);
        said_again::<Up>(bytes);
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
