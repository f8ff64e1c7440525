//! State that layers above keep with a rank: values of any type, one of each.

use crate::os::cancel;
use crate::sync::Mutex;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::OnceLock;

/// What a layer above keeps with a rank.
pub trait Extension: Any + Send + Sync {
    /// The rank has left. Its segments end behind this: nothing may use them any more.
    fn has_left(&self) {}
}

/// Values by type, in a list that only grows, so that looking one up takes no lock.
#[derive(Default)]
pub(super) struct Extensions {
    first: OnceLock<Box<Node>>,
    /// Held while one is made.
    making: Mutex<()>,
}

struct Node {
    /// The type of the value, where no call is needed to ask for it.
    id: TypeId,
    value: Box<dyn Extension>,
    next: OnceLock<Box<Node>>,
}

impl Extensions {
    /// The value of this type, made if there is none.
    #[inline(always)]
    pub(super) fn get<T: Extension>(&self, make: impl FnOnce() -> T) -> &T {
        match self.find() {
            Ok(found) => found,
            Err(_) => self.make(make),
        }
    }

    #[cold]
    #[inline(never)]
    fn make<T: Extension>(&self, make: impl FnOnce() -> T) -> &T {
        // Hash tables ask for random numbers.
        let _uncancelled = cancel::hold_off();
        let _making = self.making.lock();
        match self.find() {
            Ok(found) => found,
            Err(end) => {
                let value = Box::new(make());
                let pointer: *const T = &raw const *value;
                // Nobody else appends while the lock is held.
                let id = TypeId::of::<T>();
                let _ = end.set(Box::new(Node { id, value, next: OnceLock::new() }));
                // SAFETY: the value stays in its box, and that in the list, as long as `self`
                // lives.
                unsafe { &*pointer }
            }
        }
    }

    /// Tells all of them that the rank has left.
    pub(super) fn tell_of_leaving(&self) {
        let mut place = &self.first;
        while let Some(node) = place.get() {
            node.value.has_left();
            place = &node.next;
        }
    }

    /// The value of this type, or the end of the list.
    #[inline(always)]
    fn find<T: Extension>(&self) -> Result<&T, &OnceLock<Box<Node>>> {
        let mut place = &self.first;
        while let Some(node) = place.get() {
            if node.id == TypeId::of::<T>() {
                let value: *const dyn Extension = &raw const *node.value;
                // SAFETY: of this type, and in its box as long as the list.
                return Ok(unsafe { &*value.cast::<T>() });
            }
            place = &node.next;
        }
        Err(place)
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Extension for u32 {}
    impl Extension for String {}
    impl Extension for Box<u64> {}

    #[test]
    fn each_type_has_one_value_which_is_made_once() {
        let extensions = Extensions::default();
        let one: &u32 = extensions.get(|| 1);
        let text: &String = extensions.get(|| "two".to_owned());
        assert_eq!((*one, text.as_str()), (1, "two"));
        assert!(std::ptr::eq(one, extensions.get(|| 3u32)));
        assert!(std::ptr::eq(text, extensions.get(String::new)));
    }

    #[test]
    fn threads_that_ask_at_once_get_the_same_value() {
        let extensions = Extensions::default();
        let make = || extensions.get(|| Box::new(0u64)) as *const Box<u64> as usize;
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().expect("an address")).collect()
        });
        assert!(seen.iter().all(|address| *address == seen[0]));
    }
}
