//! System calls of the benchmark, as safe functions.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Numbers of the cores that the calling thread may use, ascending.
pub(crate) fn cores() -> Vec<usize> {
    numbers(&gaspi_core::os::affinity::mask())
}

/// The numbers of the bits that are set, ascending.
pub(crate) fn numbers(words: &[u64]) -> Vec<usize> {
    let bits = words.iter().enumerate().flat_map(|(index, word)| {
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit)
    });
    bits.collect()
}

/// The bits of these numbers, set.
pub(crate) fn bits(numbers: &[usize]) -> Vec<u64> {
    let mut words = vec![0; numbers.iter().max().map_or(0, |last| last / 64 + 1)];
    for number in numbers {
        words[number / 64] |= 1 << (number % 64);
    }
    words
}

/// Binds the calling thread to these cores, as far as its control group has them.
pub(crate) fn bind(cores: &[usize]) -> io::Result<()> {
    let words = bits(cores);
    // SAFETY: the kernel reads the given number of bytes from the vector.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, words.len() * 8, words.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets another process of this core run.
pub(crate) fn yield_now() {
    // SAFETY: has no arguments and no effect on memory.
    unsafe { libc::sched_yield() };
}

/// Sleeps while the word has this value, at most for `time`; may wake without a reason. Says
/// whether it slept and was woken.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, time: Duration) -> bool {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: word and time live during the call; the word is in memory that processes share.
    let slept = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time)
    };
    slept == 0
}

/// Wakes all that sleep on the word, and says whether there was one.
pub(crate) fn futex_wake(word: &AtomicU32) -> bool {
    // SAFETY: the word lives during the call.
    let woken =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    woken > 0
}

/// Sleeps until something can be received, at most for `time`; may wake without a reason. Says
/// whether something can be.
pub(crate) fn await_readable(fd: RawFd, time: Duration) -> bool {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = libc::c_int::try_from(time.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one entry, which lives during the call.
    unsafe { libc::poll(&raw mut wanted, 1, time) > 0 }
}

/// Random bytes.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Addresses of the peers that this process is connected to.
pub(crate) fn connected() -> Vec<IpAddr> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let peers = names.filter_map(|fd: RawFd| {
        // SAFETY: a descriptor that is no socket, or closed by now, only makes the call fail.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let peer = socket2::SockRef::from(&fd).peer_addr().ok()?.as_socket()?;
        Some(peer.ip().to_canonical())
    });
    peers.collect()
}

/// Memory that has no name.
pub(crate) fn memory_file(size: usize) -> io::Result<File> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"gaspi-bench".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size as u64)?;
    Ok(file)
}

/// Maps a file for reading and writing, shared with all who do; never unmapped.
pub(crate) fn map(file: &File, size: usize) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address.cast()) }
}

/// Removes a mapping.
///
/// # Safety
/// This memory may not be used any more.
pub(crate) unsafe fn unmap(address: *mut u8, size: usize) {
    // SAFETY: by the contract of this function.
    unsafe { libc::munmap(address.cast(), size) };
}

/// The time that all threads of this process have computed.
pub(crate) fn cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// A time that all processes of this host agree on.
pub(crate) fn host_time() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: kernel writes within.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default());
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

/// Has the process of a command get SIGTERM when the calling thread ends, however that ends.
pub(crate) fn end_with_caller(command: &mut Command) {
    let caller = std::process::id();
    let tie = move || {
        // SAFETY: no pointers.
        let tied = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0) };
        if tied != 0 {
            return Err(io::Error::last_os_error());
        }
        if std::os::unix::process::parent_id() != caller {
            // The caller has ended already.
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    };
    // SAFETY: it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(tie) };
}

/// Ends this process as by `kill -9`.
pub(crate) fn kill_self() -> ! {
    // SAFETY: this process alone ends.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("nothing survives SIGKILL")
}
