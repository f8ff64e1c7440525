//! What peers answer: requests are noted before they are handed over, and fail with the connection
//! that they travel on.

use super::EndpointTable;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::sync::Ordering;
use crate::transport::tcp::connection::{Connection, Posted, Unsent};
use crate::transport::tcp::requests::{GetTarget, PendingCall, Request, RequestKey, finish};
use crate::transport::tcp::send_queue::{Item, Outgoing};
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::frame::{Frame, RemoteAddress, Stream};
use std::sync::Arc;

impl EndpointTable {
    /// Posts a get, which is answered by data.
    pub(crate) fn post_get(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        stream: Stream,
        remote: RemoteAddress,
        get_target: GetTarget,
    ) -> Result<()> {
        let request = self.requests.number();
        let (queue, size) = (stream.queue, get_target.size);
        let get = Request::Get { queue, generation: stream.generation, get_target };
        let item = Item::Frame(Frame::Get { request, stream, remote, size });
        self.ask(up, rank, request, get, item, |connection, item| {
            connection.post(&self.sets.data, queue, item)
        })
    }

    /// Sends a frame that will be answered.
    pub(crate) fn request(
        &self,
        up: &dyn Upcalls,
        rank: Rank,
        request: Request,
        item: impl FnOnce(u64) -> std::io::Result<Outgoing>,
    ) -> Result<()> {
        let id = self.requests.number();
        if let Request::Call(call) = &request {
            call.request.store(id, Ordering::Relaxed);
        }
        let item = item(id).map_err(|error| Error::os("duplicating a descriptor", &error))?;
        self.ask(up, rank, id, request, item, |connection, item| {
            connection.send(&self.sets.data, item).map(|()| Posted::default())
        })
    }

    /// Takes note of a request, and hands it over as [`EndpointTable::hand`].
    #[allow(clippy::too_many_arguments, reason = "what `hand` takes, and the request")]
    fn ask<T>(
        &self,
        up: &dyn Upcalls,
        peer: Rank,
        id: u64,
        request: Request,
        item: T,
        hand_over: impl Fn(&Connection, T) -> Result<Posted, Unsent<T>>,
    ) -> Result<()> {
        self.requests.insert(id, peer, request);
        let handed = self.hand(up, peer, item, |connection, item| {
            // Before it is sent: should the connection end, it fails with it.
            self.requests.travels_on(id, connection.token);
            hand_over(connection, item)
        });
        handed.inspect_err(|_| {
            self.requests.withdraw(id);
        })
    }

    /// Fails everything that `peer` has not answered on a connection.
    pub(super) fn fail_requests(&self, up: &dyn Upcalls, peer: Rank, token: u64) {
        for request in self.requests.take_lost(token) {
            finish(up, peer, request, Err(RequestFailure::Lost));
        }
    }

    /// Starts a call, or continues one whose timeout ran out.
    pub(crate) fn call(
        &self,
        up: &dyn Upcalls,
        key: RequestKey,
        rank: Rank,
        item: impl FnOnce(u64) -> std::io::Result<Outgoing>,
    ) -> Result<Arc<PendingCall>> {
        if let Some(call) = self.requests.continued(&key) {
            return Ok(call);
        }
        let call = Arc::new(PendingCall::default());
        self.request(up, rank, Request::Call(Arc::clone(&call)), item)?;
        Ok(call)
    }
}
