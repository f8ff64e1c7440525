//! Broadcasts of many pieces in one call: the weights of a model.
//!
//! Pieces of up to [`PACKED_MAX`] bytes are packed, the others travel from and to where they lie.
//! What travels is broadcasts of the group, started one behind the other. All carry a hash of the
//! whole list, so that lists that differ are found by the first one.

use std::sync::Arc;

use gaspi_core::{Error, GroupId, Rank, Result, Runtime, Timeout, may_wait};

use crate::algorithms::Algorithm;
use crate::checked_request::CheckedRequest;
use crate::collective::Collective;
use crate::datatype::{DataType, Operation as Combines};
use crate::engine::{Engine, GroupContext, Operation};
use crate::exec::pack::PackBuffers;
use crate::kernel::{Source, Target};
use crate::mode::Mode;
use crate::operations::MemoryTerms;
use crate::request::{Combination, Request};
use crate::signature::mix;

/// Most bytes of a piece that is packed. Copying so many takes about as long as what a broadcast of
/// its own costs besides its bytes.
const PACKED_MAX: u64 = 64 << 10;

/// A pack is full from so many bytes on.
const PACK_BYTES: u64 = 1 << 20;

/// A piece of memory that the root of a list gives to all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it is: read at the root, written at the others. May be null without elements.
    pub data: *mut u8,
    /// Elements.
    pub count: u64,
    /// Their type.
    pub ty: DataType,
}

// SAFETY: the pointer is only used under the promises of who hands it over.
unsafe impl Send for Piece {}
// SAFETY: the pointer is only used under the promises of who hands it over.
unsafe impl Sync for Piece {}

/// A broadcast of many pieces. All but `background` and the addresses are the same on all ranks.
#[derive(Clone, Debug)]
pub struct BroadcastList {
    /// The pieces, of any types and lengths.
    pub pieces: Vec<Piece>,
    /// The rank that gives them.
    pub root: Rank,
    /// The algorithm of each broadcast; `None` leaves the choice to the library.
    pub algorithm: Option<Algorithm>,
    /// Moving data has the same bits in all of them; the ranks have to agree nevertheless.
    pub mode: Option<Mode>,
    /// Whether a thread of the library drives it while no thread tests or waits.
    pub background: bool,
}

impl BroadcastList {
    /// Bytes of each piece.
    ///
    /// # Errors
    /// [`Error::Number`], [`Error::Null`]; [`Error::Size`] if pieces share memory.
    fn bytes(&self) -> Result<Vec<u64>> {
        let mut end = 0u64;
        let bytes = self.pieces.iter().enumerate().map(|(index, piece)| {
            let bytes = piece.count.checked_mul(piece.ty.bytes().into());
            let all = bytes.and_then(|bytes| end.checked_add(bytes));
            end = all.filter(|all| i64::try_from(*all).is_ok()).ok_or_else(|| {
                let reason = format!("piece {index} exceeds the address space");
                Error::Number { number: piece.count, reason }
            })?;
            if piece.data.is_null() && piece.count > 0 {
                return Err(Error::Null { what: "piece" });
            }
            Ok(bytes.unwrap_or(0))
        });
        let bytes: Vec<u64> = bytes.collect::<Result<_>>()?;
        let mut places: Vec<(u64, u64, usize)> = Vec::with_capacity(bytes.len());
        for (index, (piece, bytes)) in self.pieces.iter().zip(&bytes).enumerate() {
            if *bytes > 0 {
                places.push((piece.data as u64, *bytes, index));
            }
        }
        places.sort_unstable();
        match places.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            None => Ok(bytes),
            Some(pair) => {
                let reason = format!("pieces {} and {} share memory", pair[0].2, pair[1].2);
                Err(Error::Size { size: pair[0].1, reason })
            }
        }
    }

    /// What the ranks have to have in common of the pieces.
    fn words(&self) -> Vec<u64> {
        self.pieces.iter().flat_map(|piece| [piece.count, piece.ty.code()]).collect()
    }

    /// A hash of what a continued call must have in common with the one before.
    fn arguments(&self) -> u64 {
        let addresses: Vec<u64> = self.pieces.iter().map(|piece| piece.data as u64).collect();
        let algorithm = self.algorithm.map_or(0, |algorithm| 1 + algorithm as u64);
        let mode = self.mode.map_or(0, |mode| 1 + mode as u64);
        mix(&[mix(&self.words()), mix(&addresses), self.root.0.into(), algorithm, mode])
    }

    fn request(&self, data: *mut u8, bytes: u64) -> Request {
        Request {
            collective: Collective::Broadcast,
            send: data,
            receive: data,
            count: bytes,
            blocks: Vec::new(),
            combination: Combination::BuiltIn(DataType::U8, Combines::Sum),
            root: self.root,
            algorithm: self.algorithm,
            mode: self.mode,
            background: self.background,
        }
    }
}

/// The pieces of each broadcast. One that has several is packed. There is at least one broadcast.
fn parts(bytes: &[u64]) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = Vec::new();
    // The pack that is being filled, and its bytes.
    let mut open: Option<(usize, u64)> = None;
    for (piece, bytes) in bytes.iter().enumerate() {
        match open {
            _ if *bytes > PACKED_MAX => parts.push(vec![piece]),
            Some((pack, filled)) => {
                parts[pack].push(piece);
                open = Some((pack, filled + bytes)).filter(|(_, filled)| *filled < PACK_BYTES);
            }
            None => {
                parts.push(vec![piece]);
                open = Some((parts.len() - 1, *bytes));
            }
        }
    }
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    parts
}

/// Gives the pieces of the root to all, and waits until this rank has, or has given, all. After a
/// timeout, call again with the same arguments to continue.
///
/// # Errors
/// Those of [`run`](crate::run); [`Error::Mismatch`] also if the lists differ; [`Error::Size`]
/// if pieces share memory.
///
/// # Safety
/// Each piece is readable (at the root) or writable (elsewhere). Until the operation has ended,
/// nobody else writes to the former or uses the latter.
pub unsafe fn run_broadcast_list(
    rt: &Runtime,
    group: GroupId,
    list: &BroadcastList,
    timeout: Timeout,
) -> Result<()> {
    may_wait(timeout, "the broadcast of a list")?;
    let (engine, deadline) = (Engine::of(rt), timeout.deadline());
    let context = engine.context(rt, group, timeout)?;
    let occupied = |active: &str| Error::ActiveCollective { group, active: active.to_owned() };
    let Some(mut interrupted) = context.list.try_lock() else {
        return Err(occupied("a broadcast of a list by another thread"));
    };
    let arguments = list.arguments();
    let operation = match interrupted.take() {
        Some((former, operation)) if former == arguments => operation,
        Some(former) => {
            *interrupted = Some(former);
            return Err(occupied("a broadcast of another list"));
        }
        None => {
            // Nothing begins while an operation that was interrupted has not been continued.
            context.executor.continued(arguments)?;
            // SAFETY: the caller's promise.
            unsafe { start_parts(rt, &context, list, MemoryTerms::OF_C) }?
        }
    };
    let outcome = operation.wait(&engine.shared, deadline);
    if outcome.as_ref().is_err_and(Error::is_timeout) {
        *interrupted = Some((arguments, operation));
    }
    outcome
}

/// Starts it. All members start the operations of a group in the same order.
///
/// # Errors
/// Those of [`run_broadcast_list`] that come from arguments, and [`Error::Timeout`] before the
/// first operation of the group.
///
/// # Safety
/// That of [`run_broadcast_list`], until the operation has ended.
pub(crate) unsafe fn start(
    rt: &Runtime,
    group: GroupId,
    list: &BroadcastList,
    terms: MemoryTerms,
    timeout: Timeout,
) -> Result<Operation> {
    let context = Engine::of(rt).context(rt, group, timeout)?;
    // SAFETY: the caller's promise.
    unsafe { start_parts(rt, &context, list, terms) }
}

/// Starts all its broadcasts.
///
/// # Safety
/// That of [`start`].
unsafe fn start_parts(
    rt: &Runtime,
    context: &GroupContext,
    list: &BroadcastList,
    terms: MemoryTerms,
) -> Result<Operation> {
    let engine = Engine::of(rt);
    let (bytes, words) = (list.bytes()?, list.words());
    if list.background {
        engine.start_background_thread()?;
    }
    let in_all = InAll { words: &words, bytes: bytes.iter().sum() };
    let mut started: Option<Operation> = None;
    for part in parts(&bytes) {
        let mut packed = PackBuffers::default();
        let data = match part[..] {
            [piece] => list.pieces[piece].data,
            // SAFETY: the caller's promise.
            _ => unsafe { pack(list, rt.rank() == list.root, &part, &bytes, &mut packed) },
        };
        let request = list.request(data, part.iter().map(|piece| bytes[*piece]).sum());
        // SAFETY: the caller's promise; what is packed lives as long as the operation.
        let begun = unsafe { start_part(engine, context, (&request, in_all), packed, terms) };
        match (&mut started, begun) {
            (None, begun) => started = Some(begun?),
            (Some(started), Ok(begun)) => started.append(begun),
            // Those before may have ended well.
            (Some(started), Err(error)) => {
                started.fail(error);
                break;
            }
        }
    }
    started.ok_or(Error::NotInitialised)
}

/// Has pieces packed, at the root, or unpacked. Returns where they are packed.
///
/// # Safety
/// That of [`start`].
unsafe fn pack(
    list: &BroadcastList,
    is_root: bool,
    part: &[usize],
    bytes: &[u64],
    packed: &mut PackBuffers,
) -> *mut u8 {
    let pieces = part.iter().map(|piece| (list.pieces[*piece].data, bytes[*piece] as usize));
    let pieces = pieces.filter(|(_, bytes)| *bytes > 0);
    let source = if is_root {
        // SAFETY: the caller promises that the pieces are readable.
        let read = pieces.map(|(data, bytes)| unsafe { Source::new(data, bytes) });
        packed.take_input(read.collect())
    } else {
        // SAFETY: the caller promises that the pieces are writable.
        let written = pieces.map(|(data, bytes)| unsafe { Target::new(data, bytes) });
        packed.take_output(written.collect()).source()
    };
    source.start().cast_mut()
}

/// What the broadcasts of a list know of all its pieces.
#[derive(Clone, Copy)]
struct InAll<'a> {
    /// What the ranks have to have in common of them.
    words: &'a [u64],
    bytes: u64,
}

/// Starts one of its broadcasts, whose signature has a hash of all pieces.
///
/// # Safety
/// That of [`start`].
unsafe fn start_part(
    engine: &Engine,
    context: &GroupContext,
    (request, list): (&Request, InAll<'_>),
    mut packed: PackBuffers,
    terms: MemoryTerms,
) -> Result<Operation> {
    let call = CheckedRequest::new(engine, request, &context.executor)?.part_of(list.bytes);
    let plan = call.cached_plan(engine, context)?;
    // SAFETY: the caller's promise.
    let buffers = unsafe { call.buffers(&plan, &mut packed) }?;
    let (count, background) = (request.count, request.background);
    let signature = call.signature_of(&plan, count, list.words);
    let completion = Arc::new(terms.completion(signature, background));
    packed.pack();
    context.executor.start(&completion, &plan, &call.arithmetic(), buffers)?;
    engine.shared.notify_started(&context.executor, background);
    Ok(Operation::new(completion, Arc::clone(&context.executor), None, packed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_packed_and_large_ones_travel_alone() {
        let (small, large) = (PACKED_MAX, PACKED_MAX + 1);
        assert_eq!(parts(&[]), [vec![]; 1]);
        assert_eq!(parts(&[0, 0]), [[0, 1]]);
        assert_eq!(parts(&[large]), [[0]]);
        assert_eq!(parts(&[small, large, 1, large, 0]), [vec![0, 2, 4], vec![1], vec![3]]);
        let many = parts(&[small; 40]);
        assert_eq!(many.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 8]);
        assert!(many.into_iter().flatten().eq(0..40));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let piece = |data: usize, count| Piece { data: data as *mut u8, count, ty: DataType::F32 };
        let list = |pieces: &[Piece]| BroadcastList {
            pieces: pieces.to_vec(),
            root: Rank(0),
            algorithm: None,
            mode: None,
            background: false,
        };
        let bytes = |pieces: &[Piece]| list(pieces).bytes();
        assert_eq!(bytes(&[piece(64, 4), piece(80, 1), piece(0, 0)]).unwrap(), [16, 4, 0]);
        assert!(matches!(bytes(&[piece(64, 4), piece(0, 1)]), Err(Error::Null { .. })));
        assert!(matches!(bytes(&[piece(64, 1 << 62)]), Err(Error::Number { .. })));
        let both = [piece(64, 1 << 60), piece(64, 1 << 60)];
        assert!(matches!(bytes(&both), Err(Error::Number { .. })));
        let error = bytes(&[piece(80, 1), piece(64, 5)]).unwrap_err();
        assert!(error.to_string().contains("pieces 1 and 0 share memory"), "{error}");
        let list = list(&[piece(64, 4), piece(80, 1)]);
        let other = BroadcastList { pieces: vec![piece(64, 4), piece(96, 1)], ..list.clone() };
        assert_ne!(list.arguments(), other.arguments());
    }
}
