//! Whole pages of private memory, for what a device uses.
//!
//! On kernels that do not copy memory of devices when the program forks, such pages are missing in
//! its children: nothing else of the program is to lie on them.

use crate::os::memory::PAGE;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

/// Bytes that have their pages to themselves.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: it owns its memory, which are bytes.
unsafe impl Send for Pages {}
// SAFETY: a shared one is only read.
unsafe impl Sync for Pages {}

impl Pages {
    /// So many bytes of zeroes, on at least one page.
    pub(crate) fn zeroed(len: usize) -> Pages {
        let page = PAGE as usize;
        let layout = Layout::from_size_align(len.max(1).next_multiple_of(page), page);
        let layout = layout.unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()));
        // SAFETY: the layout has at least a page.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        let start = start.unwrap_or_else(|| handle_alloc_error(layout));
        Pages { start, len, layout }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: allocated with at least so many bytes, and initialised by zeroes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with at least so many bytes, and borrowed by nobody else.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and given back once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_their_pages_to_themselves() {
        for len in [0, 1, 4095, 4096, 4097, 65_536] {
            let mut pages = Pages::zeroed(len);
            assert_eq!((pages.as_ptr() as u64 % PAGE, pages.len()), (0, len));
            assert!(pages.layout.size() as u64 >= PAGE);
            assert_eq!(pages.layout.size() as u64 % PAGE, 0);
            assert!(pages.iter().all(|byte| *byte == 0));
            pages.fill(1);
        }
    }
}
