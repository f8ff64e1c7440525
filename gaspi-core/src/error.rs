//! What can go wrong, with everything a person needs to act on it.
//!
//! One variant per cause that a caller may want to tell apart; the texts name rank, object and
//! remedy. `Timeout` and `QueueFull` are ordinary outcomes, and errors only since every caller has
//! to look at them.

use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};
use crate::os::limits;
use std::borrow::Cow;

/// The result of every procedure of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a procedure did not do what it was asked.
///
/// Sizes and offsets are in bytes. A rank, segment, group, queue, notification or handle is the one
/// that was passed, or the one that the text of the error is about.
#[allow(missing_docs, reason = "each text says what the fields of its variant are")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The timeout ran out; calling again with the same arguments continues. `pending` says what
    /// was waited for.
    #[error("timeout{}{pending}", if pending.is_empty() { "" } else { " while waiting for " })]
    Timeout {
        /// What had not happened yet. Empty where a program polls and nobody would read it.
        pending: String,
    },
    /// The queue holds `queue_size_max` requests; wait on it, then post again.
    #[error("{queue} holds {limit} requests that were not waited for; call wait, then post again")]
    QueueFull { queue: QueueId, limit: u32 },
    /// A value of the configuration is outside of what is accepted.
    #[error("configuration field {field}: {reason}")]
    Config {
        field: &'static str,
        /// What is wrong and what is accepted.
        reason: String,
    },
    /// Ranks were started with configurations that do not fit together.
    #[error(
        "configuration field {field} is {left_value} on {left} and {right_value} on {right}; \
         it must be the same on all ranks"
    )]
    ConfigMismatch {
        field: String,
        left: Rank,
        left_value: String,
        right: Rank,
        right_value: String,
    },
    /// The environment variables that describe the job make no sense.
    #[error("environment: {reason}")]
    Environment {
        /// Which variables, what is wrong, what to do.
        reason: String,
    },
    /// The ranks of the job could not meet.
    #[error("the ranks of the job could not meet: {reason}")]
    Meeting {
        /// Which rank or host failed, and why.
        reason: String,
    },
    /// The procedure may not be called before the rank has joined its job, or after it left.
    #[error("this rank is not part of a job (before init, after term, or in a forked child)")]
    NotInitialised,
    /// A segment of size zero was asked for.
    #[error("invalid segment size {size}: {reason}")]
    SegmentSize { size: u64, reason: String },
    /// The segment does not exist, exists already, or its id is out of range.
    #[error("{segment}: {reason}")]
    InvalidSegment { segment: SegmentId, reason: String },
    /// The group does not exist, or is not in the state that the call needs.
    #[error("{group}: {reason}")]
    InvalidGroup { group: GroupId, reason: String },
    /// The rank does not exist or may not be used here.
    #[error("{rank}: {reason}")]
    InvalidRank { rank: Rank, reason: String },
    /// The queue does not exist.
    #[error("{queue} does not exist: queues are {reason}")]
    InvalidQueue { queue: QueueId, reason: String },
    /// The local offset lies outside of the segment.
    #[error("local offset {offset} is outside of {segment}, which has {size} bytes")]
    LocalOffset { segment: SegmentId, offset: u64, size: u64 },
    /// The remote offset lies outside of the segment.
    #[error("remote offset {offset} is outside of {segment} of {rank}, which has {size} bytes")]
    RemoteOffset { rank: Rank, segment: SegmentId, offset: u64, size: u64 },
    /// The transfer is too large or runs past the end of a segment.
    #[error("transfer of {size} bytes: {reason}")]
    CommSize { size: u64, reason: String },
    /// A notification value of 0.
    #[error("a notification value must be greater than 0")]
    NotificationValue,
    /// A notification id outside of the notification space.
    #[error("{notification} does not exist: ids are below {limit} (notification_num)")]
    NotificationRange {
        /// The id (or the last id of the range) as passed.
        notification: NotificationId,
        limit: u32,
    },
    /// A count outside of its limits.
    #[error("number {number}: {reason}")]
    Number { number: u64, reason: String },
    /// A size outside of its limits.
    #[error("size {size}: {reason}")]
    Size { size: u64, reason: String },
    /// All segments are in use.
    #[error("{limit} segments exist already, which is segment_max")]
    TooManySegments { limit: u32 },
    /// All groups are in use.
    #[error("{limit} groups exist already, which is group_max")]
    TooManyGroups { limit: u32 },
    /// All queues are in use.
    #[error("{limit} queues exist already, which is the maximum")]
    TooManyQueues { limit: u32 },
    /// The offset of an atomic is not a multiple of 8.
    #[error("offset {offset} of an atomic is not a multiple of 8 bytes")]
    Unaligned { offset: u64 },
    /// Another collective, or the same with other arguments, is not finished on this group.
    #[error("{group}: {active} is not finished; continue it with the same arguments first")]
    ActiveCollective { group: GroupId, active: String },
    /// Ranks called different collectives, or the same one with different arguments.
    #[error("the ranks of {group} do not agree: {difference}")]
    Mismatch { group: GroupId, difference: String },
    /// A pointer is null where memory is needed.
    #[error("the {what} buffer is null")]
    Null { what: &'static str },
    /// What was asked for does not exist in this combination.
    #[error("{reason}")]
    Unsupported { reason: String },
    /// No operation has this handle, or it may not be used so now.
    #[error("operation {handle:#x}: {reason}")]
    InvalidOperation { handle: u64, reason: String },
    /// A reduction by an operation that the type of the elements does not have.
    #[error("{operation} is not defined for {element_type}, only for integers")]
    UndefinedOperation { operation: String, element_type: String },
    /// A user-defined reduction reported a failure.
    #[error("the reduction function failed on {rank}")]
    Reduction { rank: Rank },
    /// A rank that this call needs has died.
    #[error("{rank} has died on {host}{}; {pending} cannot complete", died_first(*first))]
    RankDied {
        rank: Rank,
        host: String,
        /// Who died before all others, as far as this rank knows, where that is another one.
        first: Option<Rank>,
        /// What needs it.
        pending: String,
    },
    /// A rank that this call needs has left the job by proc_term.
    #[error("{rank} has left the job by proc_term; {pending} cannot complete")]
    RankLeft {
        rank: Rank,
        /// What needs it.
        pending: String,
    },
    /// Requests of a queue failed; `reason` is the first failure. They are off the queue now.
    #[error(
        "{queue}: {}: {reason}; wait again for the rest, or call queue_purge",
        requests_failed(*failed)
    )]
    RequestFailed { queue: QueueId, failed: u32, reason: String },
    /// The target refused the request or could not carry it out.
    #[error("{rank} refused: {reason}")]
    Refused { rank: Rank, reason: String },
    /// There is not enough memory.
    #[error("{needed} bytes of memory are needed, {available} are available: {reason}")]
    Memory {
        needed: u64,
        /// Bytes that may be used.
        available: u64,
        /// Which limit, and how to raise it.
        reason: String,
    },
    /// Descriptors ran out.
    #[error("{call}: too many open files; raise the limit with ulimit -n")]
    TooManyFiles {
        /// What needs them.
        call: Cow<'static, str>,
    },
    /// The operating system refused something that should work.
    #[error("{call}: {reason}")]
    System { call: String, reason: String },
}

/// The head of what is said of requests that failed.
fn requests_failed(count: u32) -> String {
    match count {
        1 => "1 request failed".to_owned(),
        _ => format!("{count} requests failed, the first"),
    }
}

/// What is said behind a death if another one came before it.
pub(crate) fn died_first(first: Option<Rank>) -> String {
    first.map_or(String::new(), |first| format!(" ({first} died first)"))
}

impl Error {
    /// The same of a call that could not complete because of the end of a rank; other errors stay.
    pub(crate) fn with_pending(self, call: &str) -> Error {
        let pending = call.to_owned();
        match self {
            Error::RankDied { rank, host, first, .. } => {
                Error::RankDied { rank, host, first, pending }
            }
            Error::RankLeft { rank, .. } => Error::RankLeft { rank, pending },
            other => other,
        }
    }

    /// Whether this is the ordinary outcome of a timeout that ran out.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Timeout { .. })
    }

    /// A failed system call, with the reason in `errno`.
    pub(crate) fn last_os(call: impl Into<String>) -> Error {
        Error::os(call, &std::io::Error::last_os_error())
    }

    /// A failed system call.
    pub(crate) fn os(call: impl Into<String>, source: &std::io::Error) -> Error {
        if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            return Error::TooManyFiles { call: Cow::Borrowed("opening a descriptor") };
        }
        Error::System { call: call.into(), reason: source.to_string() }
    }

    /// Bytes that could not be mapped.
    pub(crate) fn mapping(what: &str, bytes: u64, source: &std::io::Error) -> Error {
        let Some(libc::ENOMEM) = source.raw_os_error() else { return Error::os(what, source) };
        let call = format!("{what} of {bytes} bytes");
        Error::System { call, reason: limits::no_mapping(bytes) }
    }

    /// A thread that could not be started.
    #[doc(hidden)]
    pub fn thread(what: &str, source: &std::io::Error) -> Error {
        let reason = match source.raw_os_error() {
            Some(libc::EAGAIN) => limits::no_thread(),
            _ => source.to_string(),
        };
        Error::System { call: format!("starting {what}"), reason }
    }
}
