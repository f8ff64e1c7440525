//! Arguments of the collective operations: from C's to those of gaspi-collectives.
//!
//! This file checks what has to be known before a pointer is used or an address computed.
//! gaspi-collectives checks the rest, for Rust programs too.

use super::reductions::Reductions;
use crate::error::Failure;
use crate::types::*;
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{Blocks, Combination, DataType, Mode, Operation, Request, SimpleRequest};
use gaspi_core::{Error, GroupId, Rank, Runtime};
use std::ffi::{CStr, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

/// More bytes than any version of [`gaspi_coll_options_t`] will have.
const OPTIONS_BYTES_MAX: u64 = 4096;

/// The buffers of a call, as passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) send: *const c_void,
    pub(crate) receive: *mut c_void,
}

/// The layout of the buffers of an operation in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InPlace {
    /// Contribution and result are the same memory.
    Same,
    /// The contribution is a block of the result, this many bytes behind its start.
    OwnBlockOfReceive(u64),
    /// The result is a block of the contribution.
    OwnBlockOfSend(u64),
}

/// Counts and displacements as C passes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lists {
    pub(crate) counts: *const u64,
    pub(crate) displacements: *const u64,
}

/// The elements of each buffer that this rank uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) send: u64,
    pub(crate) receive: u64,
}

impl Buffers {
    /// Whether the argument says "in place".
    fn says_in_place<T>(pointer: *const T) -> bool {
        pointer.addr() == GASPI_COLL_IN_PLACE
    }

    /// The buffers of the operation: null exactly where it uses none.
    pub(crate) fn resolve(self, used: Used, in_place: InPlace) -> Result<Buffers, Failure> {
        let Buffers { mut send, mut receive } = self;
        if used.send == 0 {
            send = ptr::null();
        }
        if used.receive == 0 {
            receive = ptr::null_mut();
        }
        match in_place {
            _ if Buffers::says_in_place(send) && used.receive == 0 => {
                return Err(Failure::Rejected(
                    "send is GASPI_COLL_IN_PLACE, but this rank has no receive".to_owned(),
                ));
            }
            _ if Buffers::says_in_place(receive) && used.send == 0 => {
                return Err(Failure::Rejected(
                    "receive is GASPI_COLL_IN_PLACE, but this rank has no send".to_owned(),
                ));
            }
            InPlace::Same if Buffers::says_in_place(send) => send = receive,
            InPlace::OwnBlockOfReceive(bytes) if Buffers::says_in_place(send) => {
                send = receive.wrapping_byte_add(bytes as usize);
            }
            InPlace::OwnBlockOfSend(bytes) if Buffers::says_in_place(receive) => {
                receive = send.cast_mut().wrapping_byte_add(bytes as usize);
            }
            _ => {}
        }
        for (name, pointer, wanted) in
            [("send", send, used.send), ("receive", receive.cast_const(), used.receive)]
        {
            if Buffers::says_in_place(pointer) {
                return Err(Failure::Rejected(format!(
                    "{name} cannot be GASPI_COLL_IN_PLACE in this operation"
                )));
            }
            if pointer.is_null() && wanted > 0 {
                return Err(Failure::Null(name));
            }
        }
        Ok(Buffers { send, receive })
    }
}

/// A request of this kind with all else empty.
pub(crate) fn request(collective: Collective) -> Request {
    Request {
        collective,
        send: ptr::null(),
        receive: ptr::null_mut(),
        count: 0,
        blocks: Vec::new(),
        combination: Combination::BuiltIn(DataType::U8, Operation::Sum),
        root: Rank(0),
        algorithm: None,
        mode: None,
        background: false,
    }
}

/// A request without options, for buffers that are used whole; `None` if it is invalid or not
/// simple.
#[inline]
pub(crate) fn simple(
    collective: Collective,
    (buffers, used): (Buffers, Used),
    count: u64,
    (datatype, op): (gaspi_coll_datatype_t, gaspi_coll_op_t),
    root: gaspi_rank_t,
) -> Option<SimpleRequest> {
    let (ty, op) = (data_type(datatype)?, operation(op)?);
    let Buffers { send, receive } = buffers.resolve(used, InPlace::Same).ok()?;
    let (send, receive, root) = (send.cast(), receive.cast(), Rank(root));
    let (algorithm, mode) = (None, None);
    Some(SimpleRequest { collective, send, receive, count, ty, op, root, algorithm, mode })
}

pub(crate) fn data_type(number: gaspi_coll_datatype_t) -> Option<DataType> {
    Some(match number {
        GASPI_COLL_TYPE_I8 => DataType::I8,
        GASPI_COLL_TYPE_U8 => DataType::U8,
        GASPI_COLL_TYPE_I16 => DataType::I16,
        GASPI_COLL_TYPE_U16 => DataType::U16,
        GASPI_COLL_TYPE_I32 => DataType::I32,
        GASPI_COLL_TYPE_U32 => DataType::U32,
        GASPI_COLL_TYPE_I64 => DataType::I64,
        GASPI_COLL_TYPE_U64 => DataType::U64,
        GASPI_COLL_TYPE_F16 => DataType::F16,
        GASPI_COLL_TYPE_BF16 => DataType::Bf16,
        GASPI_COLL_TYPE_F32 => DataType::F32,
        GASPI_COLL_TYPE_F64 => DataType::F64,
        _ => return None,
    })
}

pub(crate) fn operation(number: gaspi_coll_op_t) -> Option<Operation> {
    Some(match number {
        GASPI_COLL_OP_SUM => Operation::Sum,
        GASPI_COLL_OP_PRODUCT => Operation::Product,
        GASPI_COLL_OP_MIN => Operation::Min,
        GASPI_COLL_OP_MAX => Operation::Max,
        GASPI_COLL_OP_AND => Operation::And,
        GASPI_COLL_OP_OR => Operation::Or,
        GASPI_COLL_OP_XOR => Operation::Xor,
        GASPI_COLL_OP_AVERAGE => Operation::Average,
        _ => return None,
    })
}

/// The error for an unknown type.
pub(crate) fn strange_type(number: gaspi_coll_datatype_t) -> Failure {
    Failure::Rejected(match number {
        GASPI_COLL_TYPE_USER => "GASPI_COLL_TYPE_USER is the type of elements that an operation \
             of gaspi_coll_op_create combines; bytes that are moved are GASPI_COLL_TYPE_U8"
            .to_owned(),
        GASPI_TYPE_INT..=GASPI_TYPE_ULONG => {
            format!("data type {number} is one of gaspi_allreduce; use GASPI_COLL_TYPE_I8 to _F64")
        }
        _ => format!("data type {number} does not exist; use GASPI_COLL_TYPE_I8 to _F64"),
    })
}

/// Elements that are only moved.
pub(crate) fn moved(datatype: gaspi_coll_datatype_t) -> Result<Combination, Failure> {
    let ty = data_type(datatype).ok_or_else(|| strange_type(datatype))?;
    Ok(Combination::BuiltIn(ty, Operation::Sum))
}

/// Elements that are combined.
pub(crate) fn combined(
    rt: &Runtime,
    datatype: gaspi_coll_datatype_t,
    op: gaspi_coll_op_t,
) -> Result<Combination, Failure> {
    if let Some(op) = operation(op) {
        let ty = data_type(datatype).ok_or_else(|| strange_type(datatype))?;
        return Ok(Combination::BuiltIn(ty, op));
    }
    let reducer = Reductions::of(rt).get(op)?;
    if datatype != GASPI_COLL_TYPE_USER {
        return Err(Failure::Rejected(format!(
            "operation {op} was made by gaspi_coll_op_create: the data type has to be \
             GASPI_COLL_TYPE_USER, not {datatype}"
        )));
    }
    Ok(Combination::User(reducer))
}

/// Bytes of `blocks` blocks of `count` elements.
pub(crate) fn bytes(count: u64, blocks: u64, element_bytes: u64) -> Result<u64, Failure> {
    count
        .checked_mul(element_bytes)
        .and_then(|bytes| bytes.checked_mul(blocks))
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| {
            Failure::Core(Error::Number {
                number: count,
                reason: format!(
                    "{blocks} x so many elements of {element_bytes} bytes are more than memory \
                     can be"
                ),
            })
        })
}

/// The members of a group, and the place of this rank among them.
pub(crate) struct Members {
    pub(crate) size: u64,
    pub(crate) me: usize,
}

impl Members {
    /// Where the block of this rank begins among blocks of `count` elements, in bytes.
    pub(crate) fn own_block(&self, count: u64, element_bytes: u64) -> Result<u64, Failure> {
        bytes(count, self.size, element_bytes).map(|all| all / self.size * self.me as u64)
    }

    /// Of a group that has this rank.
    pub(crate) fn of(rt: &Runtime, group: gaspi_group_t) -> Result<Members, Failure> {
        let ranks = rt.group_ranks(GroupId(group))?;
        let me = ranks.iter().position(|rank| *rank == rt.rank()).ok_or_else(|| {
            let reason = "this rank is not a member".to_owned();
            Error::InvalidGroup { group: GroupId(group), reason }
        })?;
        Ok(Members { size: ranks.len() as u64, me })
    }
}

impl Lists {
    /// Reads lists of one number per member.
    ///
    /// # Safety
    /// Each list is null or points to `members` numbers.
    pub(crate) unsafe fn read(self, members: u64, name: &'static str) -> Result<Blocks, Failure> {
        let list = |pointer: *const u64| {
            (0..members as usize)
                // SAFETY: the list has `members` numbers, by the contract of this function; C does
                // not promise alignment.
                .map(|at| unsafe { pointer.add(at).read_unaligned() })
                .collect::<Vec<u64>>()
        };
        if self.counts.is_null() {
            return Err(Failure::Null(name));
        }
        let displacements = match self.displacements.is_null() {
            true => Vec::new(),
            false => list(self.displacements),
        };
        Ok(Blocks { counts: list(self.counts), displacements })
    }
}

/// The elements of all blocks.
pub(crate) fn total(blocks: &Blocks, element_bytes: u64) -> Result<u64, Failure> {
    let mut total: u64 = 0;
    for count in &blocks.counts {
        total = total.saturating_add(*count);
    }
    bytes(total, 1, element_bytes).map(|_| total)
}

/// Where a block begins, in bytes.
pub(crate) fn beginning(
    blocks: &Blocks,
    member: usize,
    element_bytes: u64,
) -> Result<u64, Failure> {
    if blocks.counts[member] == 0 {
        return Ok(0);
    }
    let first = match blocks.displacements.get(member) {
        Some(displacement) => *displacement,
        None => {
            blocks.counts[..member].iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
        }
    };
    bytes(first, 1, element_bytes)
}

/// The operation of a name, the X of gaspi_coll_X.
pub(crate) fn collective(name: &str) -> Result<Collective, Failure> {
    // Operations with blocks that differ are not kinds of their own in gaspi-collectives.
    let base = match name {
        "allgatherv" | "alltoallv" => name.trim_end_matches('v'),
        _ => name,
    };
    Collective::ALL.into_iter().find(|known| known.name() == base).ok_or_else(|| {
        let known = Collective::ALL.map(Collective::name).join(", ");
        Failure::Rejected(format!("there is no operation {name:?}; there are {known}"))
    })
}

/// Names of the algorithms of an operation.
pub(crate) fn algorithms(collective: Collective) -> Vec<&'static str> {
    Algorithm::ALL
        .into_iter()
        .filter(|algorithm| algorithm.serves(collective))
        .map(Algorithm::name)
        .collect()
}

/// The algorithm of a name.
pub(crate) fn algorithm(collective: Collective, name: &str) -> Result<Algorithm, Failure> {
    name.parse().ok().filter(|known: &Algorithm| known.serves(collective)).ok_or_else(|| {
        let known = algorithms(collective).join(", ");
        Failure::Rejected(format!("{collective} has no algorithm {name:?}; it has {known}"))
    })
}

/// The mode of a number; `None` is the default.
pub(crate) fn mode(number: gaspi_uint) -> Result<Option<Mode>, Failure> {
    match number {
        GASPI_COLL_MODE_DEFAULT => Ok(None),
        GASPI_COLL_MODE_FAST => Ok(Some(Mode::Fast)),
        GASPI_COLL_MODE_STABLE => Ok(Some(Mode::Stable)),
        _ => Err(Failure::Rejected(format!(
            "options: mode {number} does not exist; there are GASPI_COLL_MODE_DEFAULT, _FAST and \
             _STABLE"
        ))),
    }
}

/// Options of any kind, which begin with their size.
///
/// # Safety
/// They consist of integers and pointers, of which zeroes are valid.
pub(crate) unsafe trait Versioned: Copy {
    /// Bytes of each version of the header before the one that this library is built for, the
    /// oldest first.
    const FORMER: &[usize];
}

// SAFETY: integers and a pointer.
unsafe impl Versioned for gaspi_coll_options_t {
    /// 1001 had no mode.
    const FORMER: &[usize] = &[offset_of!(gaspi_coll_options_t, mode)];
}

// SAFETY: integers and a pointer.
unsafe impl Versioned for gaspi_fusion_options_t {
    const FORMER: &[usize] = &[];
}

/// Reads options. Those that an older header does not have are zero.
///
/// # Safety
/// `options` points to as many bytes as its first word says.
pub(crate) unsafe fn read_options<T: Versioned>(
    options: *const T,
    name: &str,
    remedy: &str,
) -> Result<T, Failure> {
    let known = size_of::<T>();
    // SAFETY: the size comes first in every version; C does not promise alignment.
    let size = unsafe { options.cast::<usize>().read_unaligned() };
    let refuse = |reason: &str| {
        let reason = format!("{reason}; {remedy}");
        Failure::Core(Error::Size { size: size as u64, reason })
    };
    let is_former = T::FORMER.contains(&size);
    if size < known && !is_former || size as u64 > OPTIONS_BYTES_MAX {
        return Err(refuse(&format!("{name} does not have so many bytes")));
    }
    for at in known..size {
        // SAFETY: inside of the size in its first word.
        if unsafe { options.cast::<u8>().add(at).read() } != 0 {
            return Err(refuse(&format!(
                "byte {at} of the options is set, which this version of the library does not know"
            )));
        }
    }
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: C contract. At most as many bytes as there are at either end.
    unsafe {
        let to = read.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(options.cast(), to, size.min(known));
    }
    // SAFETY: the trait's promise: the rest is zeroes.
    Ok(unsafe { read.assume_init() })
}

/// Reads the options into a request.
///
/// # Safety
/// `options` is null or points to as many bytes as its first word says.
pub(crate) unsafe fn optioned(
    mut request: Request,
    options: *const gaspi_coll_options_t,
) -> Result<Request, Failure> {
    if options.is_null() {
        return Ok(request);
    }
    let (name, remedy) = ("gaspi_coll_options_t", "begin with GASPI_COLL_OPTIONS_INIT");
    // SAFETY: the caller's promise.
    let options = unsafe { read_options(options, name, remedy) }?;
    if options.background > 1 || options.reserved != 0 || options.reserved2 != 0 {
        return Err(Failure::Rejected(format!(
            "options: background is {}, reserved is {}, reserved2 is {}; they have to be 0 or 1, 0 \
             and 0",
            options.background, options.reserved, options.reserved2
        )));
    }
    request.background = options.background == 1;
    request.mode = mode(options.mode)?;
    if !options.algorithm.is_null() {
        // SAFETY: the header asks for a text that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(options.algorithm) };
        request.algorithm = Some(algorithm(request.collective, &name.to_string_lossy())?);
    }
    Ok(request)
}

const _: () = assert!(offset_of!(gaspi_coll_options_t, size) == 0);
const _: () = assert!(offset_of!(gaspi_fusion_options_t, size) == 0);

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::zeroed;

    const SEND: *const c_void = 0x1000 as *const c_void;
    const RECEIVE: *mut c_void = 0x2000 as *mut c_void;
    const IN_PLACE: *mut c_void = GASPI_COLL_IN_PLACE as *mut c_void;
    const BOTH: Used = Used { send: 3, receive: 3 };

    fn resolved(
        send: *const c_void,
        receive: *mut c_void,
        used: Used,
        in_place: InPlace,
    ) -> Option<(usize, usize)> {
        let buffers = Buffers { send, receive }.resolve(used, in_place).ok()?;
        Some((buffers.send.addr(), buffers.receive.addr()))
    }

    #[test]
    fn in_place_is_where_each_operation_says() {
        assert_eq!(resolved(SEND, RECEIVE, BOTH, InPlace::Same), Some((0x1000, 0x2000)));
        assert_eq!(resolved(IN_PLACE, RECEIVE, BOTH, InPlace::Same), Some((0x2000, 0x2000)));
        let own = InPlace::OwnBlockOfReceive(16);
        assert_eq!(resolved(IN_PLACE, RECEIVE, BOTH, own), Some((0x2010, 0x2000)));
        let own = InPlace::OwnBlockOfSend(16);
        assert_eq!(resolved(SEND, IN_PLACE, BOTH, own), Some((0x1000, 0x1010)));
        // The other buffer cannot say it.
        assert_eq!(resolved(SEND, IN_PLACE, BOTH, InPlace::Same), None);
        assert_eq!(resolved(IN_PLACE, RECEIVE, BOTH, InPlace::OwnBlockOfSend(0)), None);
        assert_eq!(resolved(IN_PLACE, IN_PLACE, BOTH, InPlace::Same), None);
    }

    #[test]
    fn a_buffer_that_is_not_used_may_be_anything_and_one_that_is_may_not_be_null() {
        let receives = Used { send: 0, receive: 3 };
        assert_eq!(resolved(ptr::null(), RECEIVE, receives, InPlace::Same), Some((0, 0x2000)));
        assert_eq!(resolved(IN_PLACE, RECEIVE, receives, InPlace::Same), Some((0, 0x2000)));
        let sends = Used { send: 3, receive: 0 };
        assert_eq!(resolved(SEND, RECEIVE, sends, InPlace::Same), Some((0x1000, 0)));
        assert_eq!(resolved(IN_PLACE, RECEIVE, sends, InPlace::Same), None);
        for (send, receive) in [(ptr::null(), RECEIVE), (SEND, ptr::null_mut())] {
            let failure = Buffers { send, receive }.resolve(BOTH, InPlace::Same);
            assert!(matches!(failure, Err(Failure::Null(_))), "{failure:?}");
        }
    }

    #[test]
    fn bytes_that_memory_cannot_have_are_refused() {
        assert_eq!(bytes(5, 3, 8).unwrap(), 120);
        assert_eq!(bytes((1 << 63) - 1, 1, 1).unwrap(), (1 << 63) - 1);
        for (count, blocks, size) in [(1 << 61, 1, 4), (1 << 60, 2, 4), (u64::MAX, 2, 1)] {
            let failure = bytes(count, blocks, size).unwrap_err();
            assert_eq!(failure.code(), GASPI_ERR_INV_NUM);
        }
        let blocks = Blocks { counts: vec![u64::MAX, 2], displacements: Vec::new() };
        assert!(total(&blocks, 1).is_err() && beginning(&blocks, 1, 1).is_err());
        let blocks = Blocks { counts: vec![3, 2], displacements: vec![7, 0] };
        assert_eq!((total(&blocks, 4).unwrap(), beginning(&blocks, 0, 4).unwrap()), (5, 28));
        // Where nothing is, it does not matter.
        let blocks = Blocks { counts: vec![0, 2], displacements: vec![u64::MAX, 0] };
        assert_eq!(beginning(&blocks, 0, 4).unwrap(), 0);
    }

    /// The request of these bytes of options, with the first eight replaced by `size`.
    fn read(size: u64, tail: &[u8]) -> Result<Request, Failure> {
        let mut bytes = vec![0; size_of::<gaspi_coll_options_t>()];
        bytes.extend_from_slice(tail);
        bytes[..8].copy_from_slice(&size.to_ne_bytes());
        // SAFETY: `size` is at most the length, or refused by the first look.
        unsafe { optioned(request(Collective::Allreduce), bytes.as_ptr().cast()) }
    }

    #[test]
    fn options_of_later_versions_are_taken_as_long_as_they_say_nothing_new() {
        assert!(read(32, &[]).is_ok());
        assert!(read(40, &[0; 8]).is_ok());
        let last = &[0, 0, 0, 0, 0, 0, 0, 1][..];
        for (size, tail) in [(40, last), (33, &[1]), (0, &[]), (23, &[]), (31, &[]), (4097, &[])] {
            assert_eq!(read(size, tail).unwrap_err().code(), GASPI_ERR_INV_SIZE, "{size}");
        }
    }

    #[test]
    fn options_of_a_former_version_have_no_mode() {
        let mut options = [24_u64, 0, 1, u64::MAX];
        // SAFETY: no more than the first 24 bytes are looked at.
        let read = |options: &[u64]| unsafe {
            optioned(request(Collective::Allreduce), options.as_ptr().cast())
        };
        let former = read(&options).unwrap();
        assert_eq!((former.mode, former.background), (None, true));
        options[0] = 32;
        assert!(matches!(read(&options), Err(Failure::Rejected(_))), "all of it is read now");
        options[3] = GASPI_COLL_MODE_STABLE.into();
        assert_eq!(read(&options).unwrap().mode, Some(Mode::Stable));
        options[3] = 3;
        let Err(Failure::Rejected(words)) = read(&options) else { panic!("there is no mode 3") };
        assert!(words.contains("mode 3 does not exist"), "{words}");
    }

    #[test]
    fn options_name_their_algorithm() {
        // SAFETY: all of it are integers and a pointer that may be null.
        let mut options: gaspi_coll_options_t = unsafe { zeroed() };
        options.size = size_of_val(&options);
        options.background = 1;
        options.algorithm = c"ring".as_ptr();
        // SAFETY: the options are whole.
        let read = unsafe { optioned(request(Collective::Allreduce), &raw const options) };
        let read = read.unwrap();
        assert_eq!((read.algorithm, read.background), (Some(Algorithm::Ring), true));
        // SAFETY: the options are whole.
        let other = unsafe { optioned(request(Collective::Barrier), &raw const options) };
        let Err(Failure::Rejected(words)) = other else { panic!("a ring is no barrier") };
        assert!(words.contains("\"ring\"") && words.contains("dissemination"), "{words}");
        options.reserved = 1;
        // SAFETY: the options are whole.
        assert!(unsafe { optioned(request(Collective::Allreduce), &raw const options) }.is_err());
    }

    #[test]
    fn every_operation_has_its_name_in_c() {
        for known in Collective::ALL {
            assert_eq!(collective(known.name()).unwrap(), known);
        }
        assert_eq!(collective("alltoallv").unwrap(), Collective::Alltoall);
        assert!(collective("barrierv").is_err() && collective("").is_err());
    }
}
