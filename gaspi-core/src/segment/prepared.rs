//! What a device has made of the memory of a segment, so that it can read and write it by itself.
//!
//! Prepared before its first use, for a peer or for a request of this rank, and released before the
//! segment's delete returns.

use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::wire::message::MemoryKey;
use std::fmt::Debug;

/// Memory that a device knows. What is kept with it takes it from the device when it is dropped.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// What requests of this rank name it by.
    pub(crate) local_key: u32,
    /// What peers do.
    pub(crate) key: MemoryKey,
    pub(crate) registration: Registration,
}

/// What a device keeps of memory, until it is dropped.
pub(crate) type Registration = Box<dyn Debug + Send + Sync>;

/// A word that says that there is a key in its lower half.
const HAS_KEY: u64 = 1 << 32;

/// What has been made of a segment, once.
#[derive(Debug, Default)]
pub(crate) struct PreparedMemory {
    local_key: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Untried,
    Known {
        key: MemoryKey,
        _registration: Registration,
    },
    /// The device does not take it, or it is not to be used any more; why.
    Refused(String),
}

impl PreparedMemory {
    /// What requests of this rank name the memory by, if it has been prepared.
    #[inline(always)]
    pub(crate) fn local_key(&self) -> Option<u32> {
        let word = self.local_key.load(Ordering::Acquire);
        (word & HAS_KEY != 0).then_some(word as u32)
    }

    /// Prepares it unless that has been tried; what peers name it by.
    ///
    /// # Errors
    /// Why the device does not take it, the first time as later.
    pub(crate) fn prepare(
        &self,
        make: impl FnOnce() -> Result<Prepared, String>,
    ) -> Result<MemoryKey, String> {
        let mut state = self.state.lock();
        if let State::Untried = *state {
            *state = match make() {
                Ok(Prepared { local_key, key, registration }) => {
                    self.local_key.store(HAS_KEY | u64::from(local_key), Ordering::Release);
                    State::Known { key, _registration: registration }
                }
                Err(reason) => State::Refused(reason),
            };
        }
        match &*state {
            State::Known { key, .. } => Ok(*key),
            State::Refused(reason) => Err(reason.clone()),
            State::Untried => Err(String::new()),
        }
    }

    /// What peers name the memory by, if it has been prepared.
    pub(crate) fn key(&self) -> Option<MemoryKey> {
        match *self.state.lock() {
            State::Known { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Whether nothing has asked for it to be prepared yet.
    pub(crate) fn is_untried(&self) -> bool {
        matches!(*self.state.lock(), State::Untried)
    }

    /// Why the device does not know it, if it was asked.
    pub(crate) fn refusal(&self) -> Option<String> {
        match &*self.state.lock() {
            State::Refused(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Whether a device knows it.
    pub(crate) fn is_known(&self) -> bool {
        self.key().is_some()
    }

    /// Takes it from the device, for good.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        self.local_key.store(0, Ordering::Release);
        *state = State::Refused("its segment was deleted".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn prepared(registration: &Arc<()>) -> Result<Prepared, String> {
        let key = MemoryKey { device: 0, key: 7, address: 4096 };
        Ok(Prepared { local_key: 0, key, registration: Box::new(Arc::clone(registration)) })
    }

    #[test]
    fn memory_is_prepared_once_and_released_for_good() {
        let (memory, registration) = (PreparedMemory::default(), Arc::new(()));
        assert_eq!(memory.local_key(), None);
        let key = memory.prepare(|| prepared(&registration));
        assert_eq!(key, memory.prepare(|| Err("a second time".to_owned())));
        assert_eq!(key.ok(), memory.key());
        assert_eq!((memory.local_key(), memory.is_known()), (Some(0), true));
        memory.release();
        assert_eq!((memory.local_key(), memory.is_known()), (None, false));
        assert_eq!(Arc::strong_count(&registration), 1, "the device does not know it any more");
        assert!(memory.prepare(|| prepared(&registration)).is_err());
    }

    #[test]
    fn a_refusal_is_kept() {
        let memory = PreparedMemory::default();
        let refusal = || "ulimit -l is 64 KiB".to_owned();
        assert_eq!((memory.is_untried(), memory.refusal()), (true, None));
        assert_eq!(memory.prepare(|| Err(refusal())), Err(refusal()));
        assert_eq!((memory.is_untried(), memory.refusal()), (false, Some(refusal())));
        assert_eq!(memory.prepare(|| prepared(&Arc::new(()))), Err(refusal()));
        assert_eq!(memory.local_key(), None);
    }
}
