//! When small requests are held back so that several share a system call (cork and flush).
//!
//! A send of 8 bytes costs the kernel a microsecond or two, whatever it carries. The first few
//! requests of a burst are sent at once, for latency; from then on requests are held back until
//! enough bytes or time have come together, or something waits.

/// Requests at a distance below this follow each other closely, in nanoseconds: a loop that posts
/// takes less, a program that computes in between takes more.
const CLOSE_NS: u64 = 1500;
/// How many have to follow each other closely before one is held back. With fewer, a ping-pong of
/// short bursts would wait for the progress thread.
const BURST: u32 = 6;
/// How long requests are held back at most while others follow, in nanoseconds, and how many bytes
/// of them: beyond 8 KiB a send costs more by its bytes than by its call.
const CORK_NS: u64 = 50_000;
const CORK_BYTES: usize = 8 * 1024;
/// A caller whose posts follow each other within this time posts all the time, in nanoseconds.
const SOON_NS: u64 = 100_000;

/// A request that is about to be posted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Post {
    /// When, in nanoseconds of the monotonic clock.
    pub(crate) now_ns: u64,
    /// Its payload is copied behind its frame.
    pub(crate) small: bool,
    /// The socket has no room, so that it waits anyway.
    pub(crate) blocked: bool,
    /// Bytes of frames that wait in front of it.
    pub(crate) queued_bytes: usize,
}

/// What to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    /// It is held back; else all that waits is flushed.
    pub(crate) cork: bool,
    /// It follows soon after another one: its caller posts all the time.
    pub(crate) soon: bool,
    /// Since the post before, in nanoseconds.
    pub(crate) interval_ns: u64,
}

/// The posts of one connection.
#[derive(Debug, Default)]
pub(crate) struct Coalescing {
    /// When the last post ended.
    posted_ns: u64,
    /// How many have followed each other closely.
    burst: u32,
    /// Since when some are held back.
    corked_since_ns: Option<u64>,
    /// Whether the progress thread has been told that some are.
    pub(crate) announced: bool,
}

impl Coalescing {
    /// Decides on a post.
    pub(crate) fn on_post(&mut self, post: Post) -> Decision {
        let Post { now_ns, small, blocked, queued_bytes } = post;
        let interval_ns = now_ns.saturating_sub(self.posted_ns);
        self.posted_ns = now_ns;
        self.burst = if interval_ns < CLOSE_NS { self.burst.saturating_add(1) } else { 0 };
        let soon = interval_ns < SOON_NS;
        let cork = small && self.burst >= BURST && !blocked && {
            let since_ns = *self.corked_since_ns.get_or_insert(now_ns);
            queued_bytes < CORK_BYTES && now_ns.saturating_sub(since_ns) < CORK_NS
        };
        Decision { cork, soon, interval_ns }
    }

    /// A post that was not held back has ended: the time of its system call is no pause of the
    /// caller.
    pub(crate) fn on_sent(&mut self, now_ns: u64) {
        self.posted_ns = now_ns;
    }

    /// All that was held back has been handed to the kernel, or is about to be.
    pub(crate) fn on_flush(&mut self) {
        self.corked_since_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts at a fixed distance until one is held back or `limit` were not.
    fn first_held(distance_ns: u64, small: bool, limit: u32) -> Option<u32> {
        let mut posts = Coalescing::default();
        let mut now_ns = 1_000_000_000;
        (0..limit).find(|_| {
            now_ns += distance_ns;
            let post = Post { now_ns, small, blocked: false, queued_bytes: 0 };
            posts.on_post(post).cork
        })
    }

    #[test]
    fn the_seventh_of_a_burst_of_small_requests_is_held_back() {
        assert_eq!(first_held(CLOSE_NS - 1, true, 100), Some(BURST));
        assert_eq!(first_held(CLOSE_NS, true, 100), None);
        assert_eq!(first_held(1, false, 100), None);
    }

    #[test]
    fn they_are_flushed_after_so_many_bytes_or_so_much_time_or_where_they_wait_anyway() {
        let burst = || {
            let mut posts = Coalescing { burst: BURST, ..Coalescing::default() };
            posts.on_sent(1000);
            posts
        };
        let post = Post { now_ns: 1001, small: true, blocked: false, queued_bytes: 0 };
        assert!(burst().on_post(post).cork);
        assert!(!burst().on_post(Post { blocked: true, ..post }).cork);
        assert!(!burst().on_post(Post { queued_bytes: CORK_BYTES, ..post }).cork);
        let mut posts = burst();
        let held = (1..).map(|step| Post { now_ns: 1000 + step * 1000, ..post });
        let flushed = held.take_while(|post| posts.on_post(*post).cork).count() as u64;
        assert_eq!(flushed * 1000, CORK_NS, "they follow each other within CLOSE_NS");
        posts.on_flush();
        let again = Post { now_ns: 1000 + CORK_NS + 2000, ..post };
        assert!(posts.on_post(again).cork, "the next ones are held back anew");
    }

    #[test]
    fn a_caller_that_posts_all_the_time_is_told_so() {
        let mut posts = Coalescing::default();
        let post = |now_ns| Post { now_ns, small: true, blocked: false, queued_bytes: 0 };
        assert!(!posts.on_post(post(1_000_000)).soon);
        assert_eq!(
            posts.on_post(post(1_000_000 + SOON_NS - 1)),
            Decision { cork: false, soon: true, interval_ns: SOON_NS - 1 }
        );
        posts.on_sent(3_000_000);
        assert!(!posts.on_post(post(3_000_000 + SOON_NS)).soon);
    }
}
