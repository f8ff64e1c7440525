//! Messages between two members while all are between two steps of a call: chunks of data, each
//! with its number among those of its sender to its receiver. This is what has come; `windows.rs`
//! has what a call does with them.
//!
//! They belong to the step that all have arrived at before, which begins a window. A member that
//! arrives at the next step has taken all of its own, so chunks of one window at most are kept.

use super::leaders::CHUNK_TAGS;
use crate::ids::{GroupId, Rank};
use crate::sync::Mutex;
use crate::wire::message::Lines;
use std::collections::HashMap;

/// Chunks that a member may send another one in a window.
pub const CHUNKS_MAX: usize = 128;

/// What has come in the present window of a group.
#[derive(Debug, Default)]
struct Window {
    step: u64,
    /// Windows up to this step are over here.
    ended: u64,
    /// By sender and number; `None` once taken: a chunk may come again.
    chunks: HashMap<(Rank, u8), Option<Vec<u64>>>,
}

/// What has come for all groups.
#[derive(Debug)]
pub(crate) struct Chunks(Box<[Mutex<Window>]>);

impl Chunks {
    pub(crate) fn new(groups: u32) -> Chunks {
        Chunks((0..groups).map(|_| Mutex::default()).collect())
    }

    /// A chunk has come, if that is what the message is.
    pub(super) fn hear(&self, group: GroupId, peer: Rank, message: &mut Lines) -> bool {
        let Some(number) = message.tag.checked_sub(CHUNK_TAGS) else { return false };
        let mut window = self.0[group.index()].lock();
        if message.step > window.step {
            window.step = message.step;
            window.chunks.clear();
        }
        if message.step == window.step && message.step > window.ended {
            let lines = &mut message.lines;
            window.chunks.entry((peer, number)).or_insert_with(|| Some(std::mem::take(lines)));
        }
        true
    }

    pub(super) fn has(&self, group: GroupId, step: u64, of: (Rank, u8)) -> bool {
        let window = self.0[group.index()].lock();
        window.step == step && matches!(window.chunks.get(&of), Some(Some(_)))
    }

    pub(super) fn take(&self, group: GroupId, step: u64, of: (Rank, u8)) -> Option<Vec<u64>> {
        let mut window = self.0[group.index()].lock();
        if window.step == step { window.chunks.get_mut(&of)?.take() } else { None }
    }

    pub(super) fn end(&self, group: GroupId, step: u64) {
        let mut window = self.0[group.index()].lock();
        window.ended = window.ended.max(step);
        if window.step <= step {
            // A new table would ask for random numbers: a system call.
            window.chunks.clear();
            window.chunks.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId(1);

    fn chunk(step: u64, number: u8, word: u64) -> Lines {
        Lines { step, tag: CHUNK_TAGS + number, signature: 2, lines: vec![word] }
    }

    #[test]
    fn a_chunk_is_taken_once_in_its_window_however_often_it_comes() {
        let chunks = Chunks::new(2);
        let of = (Rank(3), 5);
        assert!(chunks.hear(GROUP, Rank(3), &mut chunk(8, 5, 70)));
        assert!(chunks.hear(GROUP, Rank(3), &mut chunk(8, 5, 71)));
        assert!(!chunks.has(GROUP, 7, of) && !chunks.has(GROUP, 8, (Rank(2), 5)));
        assert!(chunks.has(GROUP, 8, of));
        assert_eq!(chunks.take(GROUP, 8, of), Some(vec![70]));
        chunks.hear(GROUP, Rank(3), &mut chunk(8, 5, 70));
        assert!(!chunks.has(GROUP, 8, of));
        assert_eq!(chunks.take(GROUP, 8, of), None);
    }

    #[test]
    fn nothing_is_kept_of_windows_that_are_over() {
        let chunks = Chunks::new(2);
        let of = (Rank(0), 0);
        chunks.hear(GROUP, Rank(0), &mut chunk(8, 0, 1));
        // This rank has not come to step 10 yet.
        chunks.hear(GROUP, Rank(0), &mut chunk(10, 0, 2));
        chunks.end(GROUP, 9);
        chunks.hear(GROUP, Rank(0), &mut chunk(8, 0, 1));
        assert!(!chunks.has(GROUP, 8, of));
        assert_eq!(chunks.take(GROUP, 10, of), Some(vec![2]));
        chunks.end(GROUP, 11);
        chunks.hear(GROUP, Rank(0), &mut chunk(11, 0, 3));
        assert!(chunks.0[GROUP.index()].lock().chunks.is_empty());
    }

    #[test]
    fn messages_of_leaders_are_left_to_them() {
        let mut message = Lines { tag: CHUNK_TAGS - 1, ..chunk(8, 0, 1) };
        assert!(!Chunks::new(2).hear(GROUP, Rank(0), &mut message));
        assert_eq!(message.lines, [1]);
    }
}
