//! A wrapper around the carrier of a rank that delays what is posted, by a seed: for tests.
//!
//! Some requests to a peer are held back, with all that is posted to that peer behind them, so that
//! order is kept. A thread hands them over a little later. Meanwhile other peers are ahead, calls
//! have returned and their memory may have changed hands: whatever a program or the library takes
//! for done before it is told so shows. Messages of channels find no room at times.

use crate::error::Result;
use crate::ids::Rank;
use crate::sync::{Mutex, MutexGuard};
use crate::transport::endpoint::{Carrier, Departure, Endpoint};
use crate::transport::payload::Payload;
use crate::transport::random::Random;
use crate::transport::requests::GetTarget;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::endpoint_table::EndpointTable;
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::message::{Message, Put, RemoteAddress, Stream};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Of so many requests one begins to be held back.
const HELD: u64 = 4;
/// Of so many messages of channels one finds no room at first.
const FULL: u64 = 8;
/// The longest delay.
const DELAY: Duration = Duration::from_millis(2);

/// A request that is held back.
#[derive(Debug)]
enum Held {
    Put(Put, Option<Payload>, Departure),
    Get(Stream, RemoteAddress, GetTarget),
    Message(Message),
}

#[derive(Debug)]
struct State {
    random: Random,
    held: HashMap<Rank, VecDeque<Held>>,
    /// Whether somebody waits for room.
    refused: bool,
}

/// What is held back, of one rank.
#[derive(Debug)]
pub(crate) struct Faults(Mutex<State>);

impl Faults {
    pub(crate) fn new(seed: u64) -> Faults {
        let state = State { random: Random::new(seed), held: HashMap::new(), refused: false };
        Faults(Mutex::new(state))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Starts the thread that hands over what is held back, for as long as the rank exists.
    pub(crate) fn start<U: Upcalls + 'static>(
        rank: &Arc<U>,
        of: impl Fn(&U) -> Option<(&Faults, &EndpointTable)> + Send + 'static,
    ) {
        let rank: Weak<U> = Arc::downgrade(rank);
        std::thread::spawn(move || {
            while let Some(rank) = rank.upgrade() {
                let Some((faults, stream)) = of(&rank) else { return };
                faults.release(&*rank, stream);
                let pause = faults.state().random.below(DELAY.as_micros() as u64);
                drop(rank);
                std::thread::sleep(Duration::from_micros(pause));
            }
        });
    }

    /// Hands over all that is held back.
    pub(crate) fn release(&self, up: &dyn Upcalls, stream: &EndpointTable) {
        let (peers, refused): (Vec<Rank>, bool) = {
            let mut state = self.state();
            (state.held.keys().copied().collect(), std::mem::take(&mut state.refused))
        };
        for peer in &peers {
            // With the lock: nothing overtakes it.
            let mut state = self.state();
            let held = state.held.remove(peer).unwrap_or_default();
            for request in held {
                let endpoint = Endpoint { peer: *peer, up, carrier: Carrier::Stream(stream) };
                hand_over(endpoint, request);
            }
        }
        if refused || !peers.is_empty() {
            up.ranks().wake_own();
        }
    }

    /// Whether a lane that is idle goes by the wrapped carrier for once.
    pub(crate) fn steps_aside(&self) -> bool {
        self.state().random.once_in(2)
    }

    /// Whether nothing to `peer` is held back.
    pub(crate) fn has_none(&self, peer: Rank) -> bool {
        !self.state().held.contains_key(&peer)
    }

    /// Whether a message of a channel finds no room.
    pub(crate) fn is_full(&self, peer: Rank) -> bool {
        let mut state = self.state();
        let full = state.held.contains_key(&peer) || state.random.once_in(FULL);
        state.refused |= full;
        full
    }

    /// Holds a request back, or has it posted at once.
    fn post(&self, endpoint: Endpoint<'_>, request: Held) -> Result<()> {
        endpoint.up.ranks().check_alive(endpoint.peer, "a connection to it")?;
        let mut state = self.state();
        if let Some(held) = state.held.get_mut(&endpoint.peer) {
            held.push_back(request);
        } else if state.random.once_in(HELD) {
            state.held.insert(endpoint.peer, VecDeque::from([request]));
        } else {
            // With the lock, as in `release`.
            return post(endpoint, request);
        }
        Ok(())
    }

    pub(crate) fn put(
        &self,
        endpoint: Endpoint<'_>,
        put: Put,
        payload: Option<Payload>,
        departure: Departure,
    ) -> Result<()> {
        self.post(endpoint, Held::Put(put, payload, departure))
    }

    pub(crate) fn get(
        &self,
        endpoint: Endpoint<'_>,
        stream: Stream,
        remote: RemoteAddress,
        to: GetTarget,
    ) -> Result<()> {
        self.post(endpoint, Held::Get(stream, remote, to))
    }

    pub(crate) fn send(&self, endpoint: Endpoint<'_>, message: &Message) -> Result<()> {
        self.post(endpoint, Held::Message(message.clone()))
    }
}

fn post(endpoint: Endpoint<'_>, request: Held) -> Result<()> {
    match request {
        Held::Put(put, payload, departure) => endpoint.put(put, payload, departure),
        Held::Get(stream, remote, to) => endpoint.get(stream, remote, to),
        Held::Message(message) => endpoint.send(&message),
    }
}

/// Posts what its caller takes for posted: should that fail, the request has. What a rank that has
/// ended meanwhile has not been told is lost with it, as what is under way on its connection.
fn hand_over(endpoint: Endpoint<'_>, request: Held) {
    let stream = match &request {
        Held::Put(put, ..) => Some(put.stream),
        Held::Get(stream, ..) => Some(*stream),
        Held::Message(_) => None,
    };
    if let (Err(error), Some(stream)) = (post(endpoint, request), stream) {
        let failure = match endpoint.up.ranks().liveness(endpoint.peer) {
            liveness::DEAD | liveness::LEFT => RequestFailure::Lost,
            _ => RequestFailure::Refused(error.to_string()),
        };
        endpoint.up.completed(endpoint.peer, stream, 1, Err(failure));
    }
}
