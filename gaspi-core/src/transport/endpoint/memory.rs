//! Memory that this rank's device knows, and the keys of peers' memory that it can use.

use super::Endpoints;
use crate::error::{Error, Result};
use crate::segment::Segment;
use crate::segment::prepared::Prepared;
use crate::wire::message::MemoryKey;
use std::ops::Range;
use std::sync::Arc;

impl Endpoints {
    /// The keys by which ranks of other nodes reach a segment without this library.
    ///
    /// # Errors
    /// The device does not take its memory, and nothing else may carry data.
    pub(crate) fn export(&self, segment: &Segment) -> Result<Vec<MemoryKey>> {
        let Some(device) = &self.device else { return Ok(Vec::new()) };
        match device.prepare(segment) {
            Ok(key) => Ok(vec![key]),
            Err(reason) if device.forced || device.atomics().is_some() => Err(Error::System {
                call: format!("registering {} with the RDMA device", segment.id),
                reason,
            }),
            Err(reason) => {
                log::warn!("{} is reached by TCP: {reason}", segment.id);
                Ok(Vec::new())
            }
        }
    }

    /// Makes a part of a segment known to the device, for data of channels, if it carries that;
    /// `what` names the memory.
    ///
    /// # Errors
    /// The device does not take it, and nothing else may carry data.
    pub(crate) fn register_part(
        &self,
        segment: &Arc<Segment>,
        bytes: Range<u64>,
        what: &str,
    ) -> Result<Option<Arc<Prepared>>> {
        let Some(device) = &self.device else { return Ok(None) };
        match device.register_part(segment, bytes).transpose() {
            None => Ok(None),
            Some(Ok(prepared)) => Ok(Some(Arc::new(prepared))),
            Some(Err(reason)) if device.forced => {
                let call = format!("registering {what} with the RDMA device");
                Err(Error::System { call, reason })
            }
            Some(Err(reason)) => {
                log::warn!("{what} is not used by the RDMA device: {reason}");
                Ok(None)
            }
        }
    }

    /// Which of a peer's keys this rank's device can use.
    pub(crate) fn usable_key(&self, keys: &[MemoryKey]) -> Option<MemoryKey> {
        self.device.as_ref().and_then(|_| keys.first().copied())
    }

    /// Makes memory known to the device for requests of this rank that only read it, if there is a
    /// device that takes it.
    pub(crate) fn register_source(&self, start: *const u8, len: u64) -> Option<Arc<Prepared>> {
        let registered = self.device.as_ref()?.register_source(start, len);
        let refused = |reason: &String| {
            log::warn!("data of {len} bytes is copied before the RDMA device sends it: {reason}");
        };
        registered.inspect_err(refused).ok().map(Arc::new)
    }

    /// Whether the device can take data from this segment.
    pub(crate) fn can_use(&self, segment: &Segment) -> bool {
        self.device.as_ref().is_some_and(|device| device.can_use(segment))
    }
}
