//! What has become of requests: collected with a lane's lock, told without it.

use crate::ids::Rank;
use crate::transport::tcp::connection::Connection;
use crate::transport::{RequestFailure, Upcalls};
use crate::wire::frame::Frame;
use crate::wire::message::{Pairing, Stream};
use std::collections::VecDeque;
use std::sync::Arc;

/// Requests by their stream, in the order in which they ended. The first one lies here: the end of
/// a lone request allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Counts {
    first: Option<(Stream, u32)>,
    others: Vec<(Stream, u32)>,
}

impl Counts {
    /// Counts a request of a stream.
    pub(super) fn add(&mut self, stream: Stream) {
        match self.others.last_mut().or(self.first.as_mut()) {
            Some((last, count)) if *last == stream => *count += 1,
            _ => self.push((stream, 1)),
        }
    }

    fn push(&mut self, counted: (Stream, u32)) {
        match &self.first {
            None => self.first = Some(counted),
            Some(_) => self.others.push(counted),
        }
    }

    /// Takes all of another one, behind its own.
    pub(super) fn append(&mut self, other: &mut Counts) {
        other.take().for_each(|counted| self.push(counted));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = Stream> {
        self.first.iter().chain(&self.others).map(|(stream, _)| *stream)
    }

    /// Takes all of it.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Stream, u32)> {
        self.first.take().into_iter().chain(self.others.drain(..))
    }
}

/// What has become of requests, to be told without the lane's lock.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) done: Counts,
    lost: Vec<Lost>,
}

/// What was lost of a stream.
#[derive(Debug)]
struct Lost {
    stream: Stream,
    /// As the queue counts.
    count: u32,
    requests: u32,
    /// Whether the rank knows that it will be told.
    is_marked: bool,
}

/// Why a lane's pair is to be taken down.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) again: Again,
    pub(super) cause: Cause,
    /// Nothing comes by it any more, nor is anything sent.
    pub(super) is_stopped: bool,
}

/// What ends a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Error,
    /// Requests were flushed without an error before: the error is somewhere else.
    Flush,
    /// Connections leave it, and nothing has failed.
    Return,
}

/// When another attempt at a pair need not meet what this one has met, if that has not been up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    AtOnce,
    /// After a while.
    Later,
    /// Once something has changed.
    NotByTime,
}

impl Failure {
    /// An error whose pair was not stopped yet.
    pub(super) fn new(reason: &str, again: Again) -> Failure {
        Failure { reason: reason.to_owned(), again, cause: Cause::Error, is_stopped: false }
    }
}

impl Ended {
    /// Counts what is lost: so many requests, counted by the queue as `count`.
    pub(super) fn lose(&mut self, stream: Stream, count: u32, requests: u32) {
        match self.lost.last_mut() {
            Some(last) if last.stream == stream => {
                last.count += count;
                last.requests += requests;
            }
            _ => self.lost.push(Lost { stream, count, requests, is_marked: false }),
        }
    }

    /// With the lock of the lane that requests were lost on: nothing is posted behind them.
    pub(super) fn mark(&mut self, up: &dyn Upcalls, peer: Rank) {
        for lost in self.lost.iter_mut().filter(|lost| !lost.is_marked) {
            up.losing(peer, lost.stream);
            lost.is_marked = true;
        }
    }

    /// Tells the rank.
    pub(super) fn tell(mut self, up: &dyn Upcalls, peer: Rank) {
        if let Some((stream, count)) = self.done.first.take() {
            up.completed(peer, stream, count, Ok(()));
        }
        for (stream, count) in self.done.others {
            up.completed(peer, stream, count, Ok(()));
        }
        for Lost { stream, count, requests, .. } in self.lost {
            up.completed(peer, stream, count, Err(RequestFailure::LostRun { requests }));
        }
    }
}

/// What is to be told to the peer, in order, and whether somebody does.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) messages: VecDeque<Pairing>,
    /// What is said on connections, ahead of that.
    pub(super) beside: VecDeque<(Arc<Connection>, Frame)>,
    pub(super) telling: bool,
    /// Whether connections that the pair has carried go on without it.
    pub(super) goes_back: bool,
}
