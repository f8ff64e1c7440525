//! From a failure in words to a `gaspi_return_t`, and the words kept for `gaspi_error_detail`.

use crate::logging;
use crate::types::*;
use gaspi_core::Error;
use std::any::Any;
use std::borrow::Cow;
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the body of a procedure returns.
pub(crate) type Outcome = Result<(), Failure>;

/// Why a procedure of the C interface did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library below says why.
    Core(Error),
    /// The pointer argument of this name is NULL.
    Null(&'static str),
    /// No runtime: before init or after term.
    NotInitialised,
    /// No runtime: this process was forked from the one that had it.
    Forked,
    /// There is a runtime, and the call is allowed only without.
    Initialised,
    /// Whatever else makes the call impossible, in words.
    Rejected(String),
    /// Ordinary outcome of a call of this layer that may wait.
    Timeout,
    /// Memory from malloc, this many bytes.
    Memory(usize),
    /// A buffer of no bytes.
    NoRoom,
}

impl From<Error> for Failure {
    #[inline]
    fn from(error: Error) -> Failure {
        Failure::Core(error)
    }
}

impl Failure {
    /// The number that C sees.
    pub(crate) fn code(&self) -> gaspi_return_t {
        match self {
            Failure::Core(error) => core_code(error),
            Failure::Null(_) => GASPI_ERR_NULLPTR,
            Failure::NotInitialised | Failure::Forked => GASPI_ERR_NOINIT,
            Failure::Initialised => GASPI_ERR_INITED,
            Failure::Rejected(_) => GASPI_ERROR,
            Failure::Timeout => GASPI_TIMEOUT,
            Failure::Memory(_) => GASPI_ERR_MEMALLOC,
            Failure::NoRoom => GASPI_ERR_INV_SIZE,
        }
    }

    /// Whether this is how calls end every day: nothing to log.
    fn is_ordinary(&self) -> bool {
        matches!(self.code(), GASPI_TIMEOUT | GASPI_QUEUE_FULL)
    }

    fn words(&self) -> Cow<'static, str> {
        match self {
            Failure::Core(error) => error.to_string().into(),
            Failure::Null(argument) => format!("argument {argument} is NULL").into(),
            Failure::NotInitialised => {
                "this process is not part of a job; call gaspi_proc_init first".into()
            }
            Failure::Forked => "this process was forked from a rank and is not one itself; \
                 use the library in the parent, or exec first"
                .into(),
            Failure::Initialised => {
                "not allowed after gaspi_proc_init; call gaspi_proc_term first".into()
            }
            Failure::Rejected(reason) => reason.clone().into(),
            Failure::Timeout => "timeout".into(),
            Failure::Memory(size) => format!("malloc of {size} bytes failed").into(),
            Failure::NoRoom => "size is 0; a text needs at least its final zero byte".into(),
        }
    }
}

fn core_code(error: &Error) -> gaspi_return_t {
    match error {
        Error::Timeout { .. } => GASPI_TIMEOUT,
        Error::QueueFull { .. } => GASPI_QUEUE_FULL,
        Error::Config { .. } | Error::ConfigMismatch { .. } => GASPI_ERR_CONFIG,
        Error::Environment { .. } => GASPI_ERR_ENV,
        Error::NotInitialised => GASPI_ERR_NOINIT,
        Error::SegmentSize { .. } => GASPI_ERR_INV_SEGSIZE,
        Error::InvalidSegment { .. } => GASPI_ERR_INV_SEG,
        Error::InvalidGroup { .. } => GASPI_ERR_INV_GROUP,
        Error::InvalidRank { .. } => GASPI_ERR_INV_RANK,
        Error::InvalidQueue { .. } => GASPI_ERR_INV_QUEUE,
        Error::LocalOffset { .. } => GASPI_ERR_INV_LOC_OFF,
        Error::RemoteOffset { .. } => GASPI_ERR_INV_REM_OFF,
        Error::CommSize { .. } => GASPI_ERR_INV_COMMSIZE,
        Error::NotificationValue => GASPI_ERR_INV_NOTIF_VAL,
        Error::NotificationRange { .. } => GASPI_ERR_INV_NOTIF_ID,
        Error::Number { .. } => GASPI_ERR_INV_NUM,
        Error::Size { .. } => GASPI_ERR_INV_SIZE,
        Error::TooManySegments { .. } => GASPI_ERR_MANY_SEG,
        Error::TooManyGroups { .. } => GASPI_ERR_MANY_GRP,
        Error::Null { .. } => GASPI_ERR_NULLPTR,
        Error::Unaligned { .. } => GASPI_ERR_UNALIGN_OFF,
        Error::ActiveCollective { .. } => GASPI_ERR_ACTIVE_COLL,
        Error::Memory { .. } => GASPI_ERR_MEMALLOC,
        Error::TooManyFiles { .. } => GASPI_ERR_EMFILE,
        // Mismatches, deaths, refusals, failed requests: the words tell which.
        _ => GASPI_ERROR,
    }
}

/// Runs the body of procedure `call` and turns what comes of it, a panic too, into a number.
#[inline(always)]
pub(crate) fn boundary(call: &'static str, body: impl FnOnce() -> Outcome) -> gaspi_return_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => GASPI_SUCCESS,
        Ok(Err(failure)) => report(call, &failure),
        Err(panic) => panicked(call, panic),
    }
}

/// The same for procedures that return something else.
pub(crate) fn plain_boundary<T>(call: &'static str, otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        panicked(call, panic);
        otherwise
    })
}

#[cold]
#[inline(never)]
fn report(call: &'static str, failure: &Failure) -> gaspi_return_t {
    let code = failure.code();
    let words = failure.words();
    keep(&format!("gaspi_{call}: {words}"));
    if !failure.is_ordinary() {
        logging::report(call, &words);
    }
    code
}

#[cold]
#[inline(never)]
fn panicked(call: &'static str, panic: Box<dyn Any + Send>) -> gaspi_return_t {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic");
    let words = format!("defect of the library: {words}; please report it");
    keep(&format!("gaspi_{call}: {words}"));
    logging::report(call, &words);
    // Dropping an arbitrary payload may panic in turn.
    std::mem::forget(panic);
    GASPI_ERROR
}

/// Bytes of a thread's last error, the final zero byte included.
const DETAIL_BYTES: usize = 1024;

thread_local! {
    // Constant and without a destructor, so that it works in destructors that run after main.
    static DETAIL: UnsafeCell<[u8; DETAIL_BYTES]> = const { UnsafeCell::new([0; DETAIL_BYTES]) };
}

/// Copies as much of `text` as fits, at a character boundary, and ends it with a zero byte.
fn copy_text(text: &[u8], into: &mut [u8]) {
    let Some(room) = into.len().checked_sub(1) else { return };
    let mut size = text.len().min(room);
    // Bytes 10xxxxxx continue a character.
    while size < text.len() && size > 0 && text[size] & 0xc0 == 0x80 {
        size -= 1;
    }
    into[..size].copy_from_slice(&text[..size]);
    into[size] = 0;
}

fn keep(text: &str) {
    DETAIL.with(|detail| {
        // SAFETY: the buffer belongs to this thread, and no reference to it outlives a closure.
        let buffer = unsafe { &mut *detail.get() };
        copy_text(text.as_bytes(), buffer);
    });
}

/// The text of a return code.
fn text(code: gaspi_return_t) -> &'static CStr {
    const TEXTS: [&CStr; 30] = [
        c"general error",
        c"success",
        c"timeout",
        c"too many open files",
        c"incorrect environment vars",
        c"Invalid/In use internal port",
        c"Invalid parameter in configuration (gaspi_config_t)",
        c"Invalid function before initialization",
        c"Invalid function after initialization",
        c"NULL pointer reference",
        c"Invalid segment size",
        c"Invalid segment",
        c"Invalid group",
        c"Invalid rank",
        c"Invalid queue",
        c"Invalid local offset",
        c"Invalid remote offset",
        c"Invalid size for communication",
        c"Invalid notification value (must be > 0)",
        c"Invalid notification id",
        c"Invalid number count",
        c"Invalid size",
        c"Too many segments",
        c"Too many groups",
        c"Queue is full",
        c"Unaligned (8 bytes) offset",
        c"Other collective is still active",
        c"Device operation error",
        c"SN operation failed",
        c"Memory allocation failed",
    ];
    // The first one is -1.
    i64::from(code)
        .checked_add(1)
        .and_then(|index| usize::try_from(index).ok())
        .and_then(|index| TEXTS.get(index).copied())
        .unwrap_or(c"unknown")
}

procedures! {
    /// GASPI.h: text of a return code, from malloc.
    fn print_error(error_code: gaspi_return_t, error_message: *mut gaspi_string_t) {
        let out = out!(error_message);
        let text = text(error_code);
        // SAFETY: strdup reads up to the zero byte of a constant.
        let copy = unsafe { libc::strdup(text.as_ptr()) };
        if copy.is_null() {
            return Err(Failure::Memory(text.count_bytes() + 1));
        }
        out.set(copy);
        Ok(())
    }

    /// gaspi_collectives.h: the thread's last error in words.
    fn error_detail(text: *mut gaspi_char, size: gaspi_size_t) {
        not_null!(text);
        if size == 0 {
            return Err(Failure::NoRoom);
        }
        let room = usize::try_from(size).map_or(DETAIL_BYTES, |size| size.min(DETAIL_BYTES));
        DETAIL.with(|detail| {
            // SAFETY: the buffer belongs to this thread, and nothing writes it here.
            let kept = unsafe { &*detail.get() };
            let kept = CStr::from_bytes_until_nul(kept).unwrap_or_default();
            // SAFETY: the caller made room for `size` bytes, and `room` is at most that.
            let into = unsafe { std::slice::from_raw_parts_mut(text.cast::<u8>(), room) };
            copy_text(kept.to_bytes(), into);
        });
        Ok(())
    }
}

plain_procedures! {
    /// GASPI_Ext.h: text of a return code.
    fn error_str(error_code: gaspi_return_t) -> gaspi_string_t {
        text(error_code).as_ptr().cast_mut()
    } else c"unknown".as_ptr().cast_mut();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_char;

    fn detail() -> String {
        let mut buffer = [1 as c_char; 2000];
        // SAFETY: the buffer has the stated size.
        unsafe { error_detail(buffer.as_mut_ptr(), 2000) }.unwrap();
        // SAFETY: the text ends with a zero byte.
        unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn texts_cover_every_code() {
        assert_eq!(text(-1), c"general error");
        assert_eq!(text(0), c"success");
        assert_eq!(text(GASPI_QUEUE_FULL), c"Queue is full");
        assert_eq!(text(GASPI_ERR_MEMALLOC), c"Memory allocation failed");
        for code in [29, -2, i32::MIN, i32::MAX] {
            assert_eq!(text(code), c"unknown");
        }
    }

    #[test]
    fn a_panic_becomes_an_error_with_words() {
        assert_eq!(boundary("barrier", || panic!("broken {}", 7)), GASPI_ERROR);
        assert_eq!(detail(), "gaspi_barrier: defect of the library: broken 7; please report it");
        assert_eq!(plain_boundary("delay", 5, || panic!("again")), 5);
    }

    #[test]
    fn a_failure_keeps_its_words_and_success_leaves_them() {
        assert_eq!(boundary("proc_rank", || Err(Failure::Null("rank"))), GASPI_ERR_NULLPTR);
        assert_eq!(boundary("proc_rank", || Ok(())), GASPI_SUCCESS);
        assert_eq!(detail(), "gaspi_proc_rank: argument rank is NULL");
    }

    #[test]
    fn a_detail_that_is_too_long_is_cut_between_characters() {
        let mut small = [1u8; 5];
        copy_text("abcdé".as_bytes(), &mut small);
        assert_eq!(&small, b"abcd\0");
        copy_text("abcé".as_bytes(), &mut small);
        assert_eq!(&small, b"abc\0\0");
        assert!(boundary("x", || Err(Failure::Rejected("é".repeat(2000)))) == GASPI_ERROR);
        assert!(detail().len() < DETAIL_BYTES);
        let mut one = [1 as c_char];
        // SAFETY: one byte, as stated.
        assert!(unsafe { error_detail(one.as_mut_ptr(), 1) }.is_ok());
        assert_eq!(one[0], 0);
    }

    #[test]
    fn a_detail_without_room_is_an_error() {
        let mut one = [1 as c_char];
        // SAFETY: nothing is written.
        assert!(matches!(unsafe { error_detail(one.as_mut_ptr(), 0) }, Err(Failure::NoRoom)));
        // SAFETY: nothing is written.
        let null = unsafe { error_detail(std::ptr::null_mut(), 9) };
        assert!(matches!(null, Err(Failure::Null("text"))));
    }
}
