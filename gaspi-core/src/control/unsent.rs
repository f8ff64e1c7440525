//! Arrivals with data of the program, where devices alone may carry that. They wait for a device
//! that carries their connection (`transport/tcp/send_queue/withheld.rs`): a step is over here once
//! this rank's own have gone, and fails where they cannot go.

use super::call::GroupCall;
use super::{CallKind, has_data};
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::runtime::Inner;
use crate::timeout::Deadline;
use crate::transport::verbs::Verbs;
use crate::wait::{Call, waiting_group};
use crate::wire::message::Arrival;

impl GroupCall<'_> {
    /// Whether data of this rank waits.
    #[inline]
    fn may_withhold(&self) -> bool {
        self.inner.endpoints.stream.connections.withhold_any()
    }

    /// The members for which data waits, with the device that is to carry it.
    fn withheld(&self) -> Option<(Verbs<'_>, impl Iterator<Item = Rank> + '_)> {
        let inner: &Inner = self.inner;
        let verbs = inner.endpoints.verbs(inner).filter(|_| self.may_withhold())?;
        let waits = |rank: &Rank| inner.endpoints.stream.connections.withholds(*rank);
        Some((verbs, self.ranks().iter().copied().filter(waits)))
    }

    /// Why this step fails here, if data for a member cannot be sent. The members are told, so that
    /// it fails for all that have not come to its end; what is tried next begins anew.
    #[inline]
    pub(super) fn cannot_send(&mut self, step: u64) -> Option<Error> {
        if has_data(self.key.signature) { self.find_unsent(step) } else { None }
    }

    fn find_unsent(&mut self, step: u64) -> Option<Error> {
        if let Some(failure) = self.failure() {
            return Some(failure);
        }
        let failure = {
            let (verbs, mut members) = self.withheld()?;
            members.find_map(|rank| self.inner.cannot_carry(verbs, rank))?
        };
        if let Some((verbs, members)) = self.withheld() {
            let refused = |rank: &Rank| verbs.carries_messages_to(*rank).is_err();
            members.filter(refused).for_each(|rank| verbs.forget_refusal(rank));
        }
        let signature = CallKind::CannotSend as u64;
        let (words, stage) = (Vec::new(), Vec::new());
        let arrival = Arrival { group: self.group, step, signature, words, stage };
        self.inner.send_arrival(self.ranks_shared(), arrival);
        self.set_failure(failure.clone());
        Some(failure)
    }

    /// Waits until the data of this rank's arrival has gone.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Refused`] if it cannot go; this rank has left.
    #[inline]
    pub(super) fn hand_over(
        &mut self,
        deadline: impl FnOnce() -> Deadline,
        step: u64,
    ) -> Result<()> {
        if has_data(self.key.signature) && (self.may_withhold() || self.failure().is_some()) {
            self.await_devices(deadline(), step)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn await_devices(&mut self, deadline: Deadline, step: u64) -> Result<()> {
        let (inner, waiting) = (self.inner, waiting_group(Call::Collective, self.group));
        let gone = inner.until(deadline, waiting, || {
            let failed = inner.check_open().err().or_else(|| self.cannot_send(step));
            failed.map(Err).or_else(|| self.awaited().is_none().then_some(Ok(())))
        });
        gone.unwrap_or_else(|| {
            self.awaited().map_or(Ok(()), |rank| Err(Inner::awaits_device(rank)))
        })
    }

    /// A member for which data waits.
    fn awaited(&self) -> Option<Rank> {
        self.withheld().and_then(|(_, mut members)| members.next())
    }
}
