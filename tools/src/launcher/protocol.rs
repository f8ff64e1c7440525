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
use crate::variables::Variable;
use gaspi_core::wire::codec::{self, DecodeError, Limit};
use gaspi_tools::hosts;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// The version of this protocol.
pub(crate) const VERSION: u16 = 6;
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
    /// An agent that has called back is not wanted, for this reason.
    Refused(String),
    /// To one that has called back: start agents on further hosts, which call gaspi_run, too.
    Reach(Errand),
}

/// Hosts that an agent is to start agents on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Errand {
    /// The program that reaches them, with its options.
    pub(crate) shell: Vec<OsString>,
    /// By number and name.
    pub(crate) hosts: Vec<(u32, String)>,
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
    /// From this host, which was on an errand, nobody will call.
    Missed { number: u32, reason: String },
    /// The agent was to call back, could not, for this reason, and speaks by its pipes.
    NoWayBack(String),
}

/// A frame that was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl From<DecodeError> for Malformed {
    fn from(error: DecodeError) -> Malformed {
        Malformed(match error {
            DecodeError::NotUtf8 => "a text that is not UTF-8",
            DecodeError::OverLimit => "a piece that is too long",
            DecodeError::TrailingBytes => "bytes behind the end of a frame",
            DecodeError::Invalid(what) => what,
            _ => "a short frame",
        })
    }
}

type Decoded<T> = Result<T, Malformed>;
/// Fields on their way into a frame.
pub(crate) type Writer = codec::Writer<Vec<u8>>;
/// What is left of a frame.
pub(crate) type Reader<'a> = codec::Reader<'a>;

/// Only the frame limits texts and lists.
const ANY: Limit = Limit::u32(u32::MAX);
const PIECE: Limit = Limit::u32(PIECE_MAX as u32);

/// Something that is said in frames.
pub(crate) trait Frame: Sized {
    fn write(&self, to: &mut Writer);
    fn read(kind: u8, from: &mut Reader<'_>) -> Decoded<Self>;

    /// The frame with its length.
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        writer.framed(|to| self.write(to));
        writer.into_inner()
    }

    /// The first frame in these bytes and how many belong to it; `None` if it has not come whole.
    fn decode(bytes: &[u8]) -> Decoded<Option<(Self, usize)>> {
        let Ok(body) = codec::first_frame(bytes, FRAME_MAX) else {
            return Err(Malformed("a frame of impossible length"));
        };
        let Some(body) = body else { return Ok(None) };
        let mut reader = Reader::new(body);
        let kind = reader.u8()?;
        let frame = Self::read(kind, &mut reader)?;
        reader.finish()?;
        Ok(Some((frame, 4 + body.len())))
    }
}

/// Something that frames are made of.
trait Field: Sized {
    fn write(&self, to: &mut Writer);
    fn read(from: &mut Reader<'_>) -> Decoded<Self>;
}

fn write_list<T: Field>(to: &mut Writer, list: &[T]) {
    to.list(list, ANY, |to, field| field.write(to));
}

fn write_option<T: Field>(to: &mut Writer, value: Option<&T>) {
    to.option(value, |to, field| field.write(to));
}

/// A piece of output or input. The receiver refuses one that is too long.
fn piece(from: &mut Reader<'_>) -> Decoded<Vec<u8>> {
    Ok(from.bytes(PIECE)?.to_vec())
}

impl Field for u32 {
    fn write(&self, to: &mut Writer) {
        to.u32(*self);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<u32> {
        Ok(from.u32()?)
    }
}

impl Field for Vec<u8> {
    fn write(&self, to: &mut Writer) {
        to.bytes(self, ANY);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Vec<u8>> {
        Ok(from.bytes(ANY)?.to_vec())
    }
}

impl Field for String {
    fn write(&self, to: &mut Writer) {
        to.text(self, ANY);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<String> {
        Ok(from.text(ANY)?.to_owned())
    }
}

impl Field for OsString {
    fn write(&self, to: &mut Writer) {
        to.bytes(self.as_bytes(), ANY);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<OsString> {
        let bytes = Vec::read(from)?;
        // The kernel takes no such byte in arguments, variables and paths.
        if bytes.contains(&0) {
            Err(Malformed("a zero in a text"))
        } else {
            Ok(OsString::from_vec(bytes))
        }
    }
}

impl Field for PathBuf {
    fn write(&self, to: &mut Writer) {
        to.bytes(self.as_os_str().as_bytes(), ANY);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<PathBuf> {
        OsString::read(from).map(PathBuf::from)
    }
}

/// A variable and its value.
impl Field for (OsString, OsString) {
    fn write(&self, to: &mut Writer) {
        self.0.write(to);
        self.1.write(to);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<(OsString, OsString)> {
        let (name, value) = (OsString::read(from)?, OsString::read(from)?);
        let bad = name.is_empty() || name.as_bytes().contains(&b'=');
        if bad { Err(Malformed("a variable without a name")) } else { Ok((name, value)) }
    }
}

impl Field for (u32, String) {
    fn write(&self, to: &mut Writer) {
        to.u32(self.0);
        self.1.write(to);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<(u32, String)> {
        Ok((from.u32()?, Field::read(from)?))
    }
}

impl Field for Errand {
    fn write(&self, to: &mut Writer) {
        write_list(to, &self.shell);
        write_list(to, &self.hosts);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Errand> {
        let errand =
            Errand { shell: from.list(ANY, Field::read)?, hosts: from.list(ANY, Field::read)? };
        let bad = errand.hosts.iter().any(|(_, host)| hosts::check(host).is_err());
        if bad { Err(Malformed("a host that is none")) } else { Ok(errand) }
    }
}

impl Field for Variable {
    fn write(&self, to: &mut Writer) {
        self.name.write(to);
        write_list(to, &self.values);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Variable> {
        let variable = Variable { name: Field::read(from)?, values: from.list(ANY, Field::read)? };
        let bad = variable.name.is_empty() || variable.name.as_bytes().contains(&b'=');
        let bad = bad || variable.values.is_empty();
        if bad { Err(Malformed("a variable without a name or value")) } else { Ok(variable) }
    }
}

impl Field for Command {
    fn write(&self, to: &mut Writer) {
        self.program.write(to);
        write_list(to, &self.arguments);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Command> {
        Ok(Command { program: Field::read(from)?, arguments: from.list(ANY, Field::read)? })
    }
}

impl Field for Environment {
    fn write(&self, to: &mut Writer) {
        write_list(to, &self.variables);
        self.directory.write(to);
        to.u32(self.umask);
        for limit in &self.limits {
            to.u64(*limit);
        }
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Environment> {
        let variables = from.list(ANY, Field::read)?;
        let (directory, umask) = (Field::read(from)?, from.u32()?);
        let mut limits = [0; limits::COUNT];
        for limit in &mut limits {
            *limit = from.u64()?;
        }
        Ok(Environment { variables, directory, umask, limits })
    }
}

impl Field for Option<Bind> {
    fn write(&self, to: &mut Writer) {
        to.u8(match self {
            None => 0,
            Some(Bind::Core) => 1,
            Some(Bind::Numa) => 2,
            Some(Bind::None) => 3,
            Some(Bind::NumaCyclic) => 4,
        });
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Option<Bind>> {
        Ok(match from.u8()? {
            0 => None,
            1 => Some(Bind::Core),
            2 => Some(Bind::Numa),
            3 => Some(Bind::None),
            4 => Some(Bind::NumaCyclic),
            _ => return Err(Malformed("a way to bind that is none")),
        })
    }
}

impl Field for Assignment {
    fn write(&self, to: &mut Writer) {
        self.job.write(to);
        to.u32(self.size);
        write_list(to, &self.ranks);
        to.u32(self.machines);
        self.host.write(to);
        self.first.write(to);
        self.others.write(to);
        write_option(to, self.environment.as_ref());
        write_option(to, self.machine_file.as_ref());
        self.bind.write(to);
        to.bool(self.numa).bool(self.bind_memory);
        write_list(to, &self.variables);
        to.bool(self.debug);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Assignment> {
        let plan = Assignment {
            job: Field::read(from)?,
            size: from.u32()?,
            ranks: from.list(ANY, Field::read)?,
            machines: from.u32()?,
            host: Field::read(from)?,
            first: Field::read(from)?,
            others: Field::read(from)?,
            environment: from.option(Field::read)?,
            machine_file: from.option(Field::read)?,
            bind: Field::read(from)?,
            numa: from.bool()?,
            bind_memory: from.bool()?,
            variables: from.list(ANY, Field::read)?,
            debug: from.bool()?,
        };
        let ascending = plan.ranks.is_sorted_by(|one, next| one < next);
        let exist = plan.ranks.last().is_some_and(|last| *last < plan.size);
        let size = plan.size <= gaspi_core::bootstrap::RANKS_MAX;
        if ascending && exist && size { Ok(plan) } else { Err(Malformed("impossible ranks")) }
    }
}

impl Field for Ending {
    fn write(&self, to: &mut Writer) {
        let (kind, number, core) = match *self {
            Ending::Exited(status) => (0, status, false),
            Ending::Killed { signal, core } => (1, signal, core),
            Ending::Lost => (2, 0, false),
        };
        to.u8(kind).i32(number).bool(core);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Ending> {
        let (kind, number, core) = (from.u8()?, from.i32()?, from.bool()?);
        match kind {
            0 => Ok(Ending::Exited(number)),
            1 => Ok(Ending::Killed { signal: number, core }),
            2 => Ok(Ending::Lost),
            _ => Err(Malformed("an end that is none")),
        }
    }
}

impl Field for Waiting {
    fn write(&self, to: &mut Writer) {
        self.call.write(to);
        self.object.write(to);
        to.u32(u32::try_from(self.since.as_millis()).unwrap_or(u32::MAX));
        to.list(&self.awaited, ANY, |to, rank| (*rank as u32).write(to));
        to.bool(self.in_part);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<Waiting> {
        Ok(Waiting {
            call: Field::read(from)?,
            object: Field::read(from)?,
            since: Duration::from_millis(from.u32()?.into()),
            awaited: from.list(ANY, |from| from.u32().map(|rank| rank as usize))?,
            in_part: from.bool()?,
        })
    }
}

/// What a rank is doing.
impl Field for (u32, Row) {
    fn write(&self, to: &mut Writer) {
        let (rank, row) = self;
        to.u32(*rank).i32(row.pid);
        row.state.write(to);
        row.doing.write(to);
        write_list(to, &row.waits);
        row.pairs.write(to);
    }
    fn read(from: &mut Reader<'_>) -> Decoded<(u32, Row)> {
        let rank = from.u32()?;
        let row = Row {
            pid: from.i32()?,
            state: Field::read(from)?,
            doing: Field::read(from)?,
            waits: from.list(ANY, Field::read)?,
            pairs: Field::read(from)?,
        };
        Ok((rank, row))
    }
}

fn read_hello(from: &mut Reader<'_>) -> Decoded<Up> {
    let version = from.u16()?;
    if version != VERSION {
        // What follows is not for this version.
        from.take_rest();
        return Ok(Up::Hello { version, machine: None });
    }
    Ok(Up::Hello { version, machine: from.option(Field::read)? })
}

impl Frame for Down {
    fn write(&self, to: &mut Writer) {
        match self {
            Down::Plan(plan) => plan.write(to.u8(1)),
            Down::Start => empty(to, 2),
            Down::Input(bytes) => bytes.write(to.u8(3)),
            Down::InputEnd => empty(to, 4),
            Down::Signal(signal) => {
                to.u8(5).i32(*signal);
            }
            Down::Part(orphans) => {
                to.u8(6).bool(*orphans);
            }
            Down::Show => empty(to, 7),
            Down::Taken(count) => count.write(to.u8(8)),
            Down::Meeting(bytes) => bytes.write(to.u8(9)),
            Down::Refused(reason) => reason.write(to.u8(10)),
            Down::Reach(errand) => errand.write(to.u8(11)),
        }
    }

    fn read(kind: u8, from: &mut Reader<'_>) -> Decoded<Down> {
        Ok(match kind {
            1 => Down::Plan(Box::new(Field::read(from)?)),
            2 => Down::Start,
            3 => Down::Input(piece(from)?),
            4 => Down::InputEnd,
            5 => match from.i32()? {
                signal @ 1..=64 => Down::Signal(signal),
                _ => return Err(Malformed("a signal that is none")),
            },
            6 => Down::Part(from.bool()?),
            7 => Down::Show,
            8 => Down::Taken(from.u32()?),
            9 => Down::Meeting(Field::read(from)?),
            10 => Down::Refused(Field::read(from)?),
            11 => Down::Reach(Field::read(from)?),
            _ => return Err(Malformed("a frame of unknown kind")),
        })
    }
}

impl Frame for Up {
    fn write(&self, to: &mut Writer) {
        match self {
            Up::Hello { version, machine } => {
                write_option(to.u8(1).u16(*version), machine.as_ref())
            }
            Up::Ready => empty(to, 2),
            Up::Failed { status, message } => message.write(to.u8(3).u8(*status)),
            Up::Started { rank, pid, place } => place.write(to.u8(4).u32(*rank).i32(*pid)),
            Up::Output { rank, stream, bytes } => bytes.write(to.u8(5).u32(*rank).u8(*stream)),
            Up::Ended { rank, pid, ending } => ending.write(to.u8(6).u32(*rank).i32(*pid)),
            Up::InputTaken(count) => count.write(to.u8(7)),
            Up::InputClosed => empty(to, 8),
            Up::Rows(rows) => write_list(to.u8(9), rows),
            Up::Meeting(bytes) => bytes.write(to.u8(10)),
            Up::Alive => empty(to, 11),
            Up::Done => empty(to, 12),
            Up::Notice(text) => text.write(to.u8(13)),
            Up::Missed { number, reason } => reason.write(to.u8(14).u32(*number)),
            Up::NoWayBack(reason) => reason.write(to.u8(15)),
        }
    }

    fn read(kind: u8, from: &mut Reader<'_>) -> Decoded<Up> {
        Ok(match kind {
            1 => read_hello(from)?,
            2 => Up::Ready,
            3 => Up::Failed { status: from.u8()?, message: Field::read(from)? },
            4 => Up::Started { rank: from.u32()?, pid: from.i32()?, place: Field::read(from)? },
            5 => match (from.u32()?, from.u8()?) {
                (rank, stream @ 0..=1) => Up::Output { rank, stream, bytes: piece(from)? },
                _ => return Err(Malformed("output of no stream")),
            },
            6 => Up::Ended { rank: from.u32()?, pid: from.i32()?, ending: Field::read(from)? },
            7 => Up::InputTaken(from.u32()?),
            8 => Up::InputClosed,
            9 => Up::Rows(from.list(ANY, Field::read)?),
            10 => Up::Meeting(Field::read(from)?),
            11 => Up::Alive,
            12 => Up::Done,
            13 => Up::Notice(Field::read(from)?),
            14 => Up::Missed { number: from.u32()?, reason: Field::read(from)? },
            15 => Up::NoWayBack(Field::read(from)?),
            _ => return Err(Malformed("a frame of unknown kind")),
        })
    }
}

/// A frame without fields.
fn empty(to: &mut Writer, kind: u8) {
    to.u8(kind);
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
pub(crate) mod tests;
