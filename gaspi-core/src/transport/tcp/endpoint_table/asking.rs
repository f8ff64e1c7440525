//! What peers answer: requests are noted before they are handed over, and fail with the connection
//! that they travel on.

use super::EndpointTable;
use crate::error::{Error, Result};
use crate::ids::{QueueId, Rank};
use crate::transport::requests::{GetTarget, PendingCall, Request, RequestKey, finish};
use crate::transport::tcp::connection::{Connection, Posted, Unsent};
use crate::transport::tcp::send_queue::{Item, Outgoing};
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::frame::Frame;
use crate::wire::message::{RemoteAddress, RemoteCall, Stream};
use std::cell::Cell;
use std::os::fd::BorrowedFd;
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
        let get = Request::Get { stream, get_target };
        let item = Item::Frame(Frame::Get { request, stream, remote, size });
        self.ask(up, rank, request, get, item, |connection, item, accepted| {
            connection.post(&self.sets.data, queue, item, accepted)
        })
    }

    /// A queue was purged, whose requests have this generation from now on: older ones that have
    /// not begun to be sent are forgotten. Else a program that purges again and again while its
    /// peer is slow would have them all sent, and kept in memory until then.
    pub(crate) fn purge(&self, up: &dyn Upcalls, queue: QueueId, generation: u32) {
        let writes = self.requests.targets_of(queue);
        let open = self.connections.where_peer(|_| true);
        for connection in open.into_iter().chain(self.connections.being_made()) {
            let Some(peer) = connection.peer().map(Rank) else { continue };
            let dropped = connection.drop_purged(&self.sets.data, queue, generation);
            if dropped.is_empty() {
                continue;
            }
            // They were under way until now.
            for stream in dropped.puts {
                up.completed(peer, stream, 1, Ok(()));
            }
            for number in dropped.gets {
                if let Some(get) = self.requests.answered(number, peer) {
                    finish(up, peer, get, Ok(0));
                }
            }
            self.let_go(up, &connection);
        }
        for segment in writes {
            // Data that is just being received there: what comes later is not expected any more.
            drop(segment.accept());
        }
    }

    /// Hands a request over as [`EndpointTable::hand`], and takes note of it before it is sent.
    #[allow(clippy::too_many_arguments, reason = "what `hand` takes, and the request")]
    fn ask<T>(
        &self,
        up: &dyn Upcalls,
        peer: Rank,
        id: u64,
        request: Request,
        item: T,
        hand_over: impl Fn(&Connection, T, &dyn Fn()) -> Result<Posted, Unsent<T>>,
    ) -> Result<()> {
        let request = Cell::new(Some(request));
        self.hand(up, peer, item, |connection, item| {
            // It fails with the connection that takes it, but not with one that does not.
            hand_over(connection, item, &|| {
                if let Some(request) = request.take() {
                    self.requests.insert(id, (peer, connection.token), request);
                }
            })
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
        call: RemoteCall,
        files: &[BorrowedFd<'_>],
    ) -> Result<Arc<PendingCall>> {
        if let Some(call) = self.requests.continued(&key) {
            return Ok(call);
        }
        let id = self.requests.number();
        let pending = Arc::new(PendingCall::new(id));
        let has_data = call.has_data();
        let (frame, request) = (Frame::of_call(id, call), Request::Call(Arc::clone(&pending)));
        if files.is_empty() {
            let item = (&frame, has_data);
            self.ask(up, rank, id, request, item, |connection, item, accepted| {
                connection.send_frame(&self.sets.data, item, accepted).map(|()| Posted::default())
            })?;
            return Ok(pending);
        }
        let item = Outgoing::with_descriptors(&frame, files)
            .map_err(|error| Error::os("duplicating a descriptor", &error))?;
        let item = if has_data { item.of_data() } else { item };
        self.ask(up, rank, id, request, item, |connection, item, accepted| {
            connection.send(&self.sets.data, item, accepted).map(|()| Posted::default())
        })?;
        Ok(pending)
    }

    /// Answers a request that came on a connection, if that is still there: without it the asker
    /// knows already that its request has failed.
    pub(crate) fn answer(&self, connection: u64, request: u64, outcome: Result<u64, String>) {
        if let Some(connection) = self.connections.get(connection) {
            let answer = Frame::Reply { request, outcome };
            connection.answer_frame(&self.sets.data, &answer, false);
        }
    }
}
