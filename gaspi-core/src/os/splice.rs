//! Memory handed to a socket page by page instead of copied into it: by way of a pipe.
//!
//! `vmsplice` gets memory that peers may write, and so is called by hand; so are the calls about
//! signals, which rustix leaves to the C library.

use super::socket::Piece;
use rustix::pipe::{self, PipeFlags, SpliceFlags};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Bytes that a pipe is asked to hold: what a user may have without privileges (fs.pipe-max-size).
const WANTED: usize = 1024 * 1024;
/// With less than a pipe holds by default, going by way of one does not pay. Users who have many
/// get smaller ones (fs.pipe-user-pages-soft).
const LEAST: usize = 64 * 1024;

/// A pipe on the way from memory to a socket.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes that are in it.
    held: usize,
}

impl Pipe {
    /// An empty one.
    ///
    /// # Errors
    /// Descriptors ran out, or this user has so many pipes that they hold next to nothing.
    pub fn new() -> io::Result<Pipe> {
        let (read, write) = pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Where that is refused, its size decides.
        let _ = pipe::fcntl_setpipe_size(&write, WANTED);
        if !pipe::fcntl_getpipe_size(&write).is_ok_and(|size| size >= LEAST) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Pipe { read, write, held: 0 })
    }

    /// Bytes that have been put in and not been taken out.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Puts as much of a piece in as there is room for, without a copy: the receiver at the end
    /// sees what the memory holds then.
    ///
    /// # Errors
    /// The kernel's: such calls may be forbidden here, or unknown.
    ///
    /// # Safety
    /// The piece is readable.
    pub unsafe fn fill(&mut self, piece: Piece) -> io::Result<usize> {
        let vector = libc::iovec { iov_base: piece.pointer.cast(), iov_len: piece.len };
        // SAFETY: the caller vouches for the piece.
        let put = unsafe {
            let flags = libc::SPLICE_F_NONBLOCK;
            libc::vmsplice(self.write.as_raw_fd(), &raw const vector, 1, flags)
        };
        let put = usize::try_from(put).map_err(|_| io::Error::last_os_error())?;
        self.held += put;
        Ok(put)
    }

    /// Moves as much as there is room for into a socket, and says how much.
    ///
    /// # Errors
    /// As those of [`send`](super::socket::send).
    pub fn drain(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let (mut moved, mut end) = (0, Ok(()));
        let quiet = Quiet::new();
        while self.held > 0 {
            let flags = SpliceFlags::NONBLOCK;
            match pipe::splice(&self.read, None, fd, None, self.held, flags) {
                Ok(taken) => {
                    self.held -= taken;
                    moved += taken;
                }
                Err(error) => {
                    end = Err(io::Error::from(error));
                    break;
                }
            }
        }
        // Also where something was moved before the stream broke, which is then no error yet.
        let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        quiet.end(end.as_ref().is_err_and(broken));
        if moved > 0 { Ok(moved) } else { end.map(|()| 0) }
    }
}

/// Whether such calls are forbidden or unknown here.
pub fn is_refused(error: &io::Error) -> bool {
    let refusals = [libc::EINVAL, libc::ENOSYS, libc::EPERM, libc::EACCES, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|number| refusals.contains(&number))
}

/// This thread gets no SIGPIPE for now: splice() has no flag against it.
struct Quiet {
    pipe: libc::sigset_t,
    before: libc::sigset_t,
}

impl Quiet {
    fn new() -> Quiet {
        // SAFETY: all zeroes is a valid set.
        let mut pipe: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = pipe;
        // SAFETY: the sets live on this stack.
        unsafe {
            libc::sigemptyset(&raw mut pipe);
            libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        }
        Quiet { pipe, before }
    }

    /// Takes the signal back, if one was raised that the program does not block anyway.
    fn end(self, raised: bool) {
        // SAFETY: the sets and the time live on this stack.
        unsafe {
            if raised && libc::sigismember(&raw const self.before, libc::SIGPIPE) == 0 {
                let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                let nothing = std::ptr::null_mut();
                libc::sigtimedwait(&raw const self.pipe, nothing, &raw const at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::{self, Mapping};
    use crate::os::socket::{accept, connect, listen, receive_bytes};
    use std::os::fd::AsFd;

    /// A stream under a name of its own, and memory with pages of their own numbers.
    fn ground(name: &str, pages: usize) -> (OwnedFd, OwnedFd, Mapping) {
        let name = format!("gaspi-splice-{name}-{}", std::process::id());
        let listener = listen(&name).expect("listener");
        let client = connect(&name).expect("connection");
        let server = accept(listener.as_fd()).expect("accept").expect("a connection waits");
        let bytes = 4096 * pages as u64;
        let file = memory::create(c"spliced", bytes, false).expect("file");
        let mapping = Mapping::new(file.as_fd(), 0, bytes).expect("mapping");
        for page in 0..pages {
            // SAFETY: within the mapping.
            unsafe { mapping.as_ptr().add(4096 * page).write_bytes(page as u8 + 1, 4096) };
        }
        (client, server, mapping)
    }

    #[test]
    fn pages_arrive_in_order_whatever_there_is_room_for() {
        let (client, server, mapping) = ground("order", 200);
        let mut pipe = Pipe::new().expect("pipe");
        let (start, len) = (100, 4096 * 200 - 200);
        let mut got = vec![0u8; len];
        let (mut put, mut taken, mut full) = (0, 0, false);
        while taken < len {
            if pipe.held() == 0 && put < len {
                let pointer = mapping.as_ptr().wrapping_add(start + put);
                // SAFETY: within the mapping.
                put += unsafe { pipe.fill(Piece { pointer, len: len - put }) }.expect("fill");
            }
            match pipe.drain(client.as_fd()) {
                Ok(moved) => assert!(moved > 0 || pipe.held() == 0),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            full |= pipe.held() > 0;
            let pointer = got[taken..].as_mut_ptr();
            // SAFETY: the rest of the buffer.
            let more =
                unsafe { receive_bytes(server.as_fd(), Piece { pointer, len: len - taken }) };
            taken += more.unwrap_or(0);
        }
        assert!(full, "a socket takes less than that at once");
        let page = |at: usize| ((start + at) / 4096 + 1) as u8;
        assert!(got.iter().enumerate().all(|(at, byte)| *byte == page(at)));
    }

    #[test]
    fn a_broken_pipe_is_an_error_and_no_signal() {
        let (client, server, mapping) = ground("broken", 1);
        let mut pipe = Pipe::new().expect("pipe");
        let piece = Piece { pointer: mapping.as_ptr(), len: 4096 };
        // SAFETY: the mapping.
        assert_eq!(unsafe { pipe.fill(piece) }.expect("fill"), 4096);
        drop(server);
        // SAFETY: a plain change of the disposition, which tests of this process do not use:
        // without care the signal would end it.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let error = pipe.drain(client.as_fd()).expect_err("closed");
        // SAFETY: a plain change of the disposition.
        unsafe { libc::signal(libc::SIGPIPE, before) };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_stream_that_breaks_half_way_raises_no_signal() {
        const PAGES: usize = 64;
        let (_, _, mapping) = ground("half", PAGES);
        // SAFETY: a plain change of the disposition.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        for _ in 0..200 {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
            let address = listener.local_addr().expect("address");
            let client = std::net::TcpStream::connect(address).expect("connection");
            let (server, _) = listener.accept().expect("accept");
            let mut pipe = Pipe::new().expect("pipe");
            let piece = Piece { pointer: mapping.as_ptr(), len: 4096 * PAGES };
            // SAFETY: the mapping.
            let put = unsafe { pipe.fill(piece) }.expect("fill");
            // Its first bytes are answered by a reset, while the next ones are on their way.
            drop(server);
            while pipe.held() > 0 && pipe.drain(client.as_fd()).is_ok() {}
            assert!(pipe.held() > 0, "{put} bytes went to nobody");
        }
        // SAFETY: a plain change of the disposition.
        unsafe { libc::signal(libc::SIGPIPE, before) };
    }
}
