//! Fences whose cost is paid by the rare side.
//!
//! "Store a flag, then look whether somebody sleeps" needs a full fence between the store and the
//! load. Notifications do not pay for it: the sleeper, or the thread that frees memory, makes the
//! kernel execute one on every running thread that takes part, by membarrier(2). Where the kernel
//! refuses, both sides execute the fence themselves.

use super::{AtomicBool, Ordering};
use std::sync::atomic::{compiler_fence, fence};

const CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process for all fences, best while it has one thread only: then the kernel does
/// it at once, while with several it waits some ten milliseconds for all cores to have switched.
pub(crate) fn prepare() {
    prepare_private();
    register_global();
}

/// Whether the kernel offers what [`heavy_global`] needs to make the frequent side's fence free.
pub fn is_offered() -> bool {
    // SAFETY: asks for the commands that there are; touches no memory of ours.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    let needed = i64::from(CMD_GLOBAL_EXPEDITED | CMD_REGISTER_GLOBAL_EXPEDITED);
    commands >= 0 && commands & needed == needed
}

/// Registers this process as one whose threads take part in [`heavy_global`]. False where the
/// kernel refuses; every process of the node then has to use the full fence on both sides.
pub fn register_global() -> bool {
    membarrier(CMD_REGISTER_GLOBAL_EXPEDITED) && membarrier(CMD_GLOBAL_EXPEDITED)
}

/// A full fence here and, where the kernel offers it, on every running thread of all registered
/// processes.
pub fn heavy_global() {
    fence(Ordering::SeqCst);
    membarrier(CMD_GLOBAL_EXPEDITED);
}

/// Which fence the frequent side has to execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Light {
    /// All sleepers use membarrier: keeping the compiler from reordering is enough.
    Compiler,
    /// Some process cannot use membarrier.
    Full,
}

impl Light {
    /// The fence of the frequent side, between its store and its load.
    #[inline]
    pub fn fence(self) {
        match self {
            Light::Compiler => compiler_fence(Ordering::SeqCst),
            Light::Full => fence(Ordering::SeqCst),
        }
    }
}

/// Whether threads of this process can be fenced by membarrier: a fact about the process.
static PRIVATE_FENCES: AtomicBool = AtomicBool::new(false);

/// Finds out how threads of this process are fenced; before the first of the functions below.
#[cold]
pub(super) fn prepare_private() {
    if !fences_are_light() {
        PRIVATE_FENCES.store(membarrier(CMD_REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed);
    }
}

/// Whether the frequent side's fence within a process costs nothing.
#[inline(always)]
pub(crate) fn fences_are_light() -> bool {
    PRIVATE_FENCES.load(Ordering::Relaxed)
}

/// The frequent side's fence within a process.
#[inline(always)]
pub(super) fn light_private() {
    if fences_are_light() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The rare side's fence within a process.
pub(crate) fn heavy_private() {
    fence(Ordering::SeqCst);
    if fences_are_light() {
        membarrier(CMD_PRIVATE_EXPEDITED);
    }
}
