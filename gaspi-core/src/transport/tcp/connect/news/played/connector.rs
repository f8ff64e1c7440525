//! What happens to a rank, as its connector and its progress thread handle it.

use super::*;

impl Job {
    pub(super) fn happens(&mut self, event: Event) {
        match event {
            Event::Bytes(side, bytes) => self.hear(side, &bytes),
            Event::Ended(side) => self.ended(side),
            Event::Silent(side) => {
                if let Some(of) = self.end_watch(side) {
                    self.fell_silent(of, self.sides[side].conversation.rank);
                }
            }
            Event::Asks(by, to, purpose, since) => match self.ranks[to.index()].stage {
                _ if self.host_of(to).is_silent => {
                    self.after(DEAD_AFTER, Event::Unanswered(by, to, purpose));
                }
                Stage::Gone => self.after(HOP, Event::Refused(by, to, purpose, since)),
                // The challenge, and the proof.
                _ => self.after(2 * HOP, Event::Proved(by, to, purpose, since)),
            },
            Event::Refused(by, to, purpose, since) => self.refused(by, to, purpose, since),
            Event::Unanswered(by, to, purpose) => self.unanswered(by, to, purpose),
            Event::Proved(by, to, purpose, since) => self.proved(by, to, purpose, since),
            Event::Done(by, to, purpose, side) => self.done(by, to, purpose, side),
            Event::Again(by, to, purpose, since) => {
                let now = self.now;
                self.ranks[by.index()].later.retain(|(at, of, _)| *of != to || *at > now);
                if self.runs(by) && self.record(by).takes_part(to) {
                    self.begin(by, to, purpose, since);
                }
                self.turn(by);
            }
            Event::ProcessEnded(of, rank) => {
                if self.runs(of) {
                    self.note_death(of, rank);
                    self.turn(of);
                }
            }
            Event::Leaves(rank) => self.leave(rank),
            Event::Dies(rank) => self.kill(rank),
            Event::Look(rank) => {
                self.turn(rank);
                if self.leaves(rank) {
                    self.after(LOOK, Event::Look(rank));
                }
            }
        }
    }

    /// A turn of the progress thread.
    pub(super) fn turn(&mut self, me: Rank) {
        if !self.runs(me) {
            return;
        }
        self.follow_ends(me);
        let leaves = self.leaves(me);
        let now = self.began + self.now;
        let sides = self.ranks[me.index()].sides.clone();
        let sizes = (self.per_host, self.ranks.len());
        let Job { ranks, hosts, sides: all, .. } = self;
        let Played { ends, of_others, .. } = &mut ranks[me.index()];
        let record = known(me, of_others, &hosts[me.index() / sizes.0], sizes);
        let leaving = leaves.then(|| sides.iter().map(|side| &all[*side].conversation));
        let Due { news, parent, children } = ends.due(&record, leaving, now);
        let unreachable = ends.is_unreachable();
        for (child, patience) in children {
            if !self.has_keepalive(me, child) {
                self.later(me, child, Purpose::Keepalive, (patience, self.now + patience));
            }
        }
        if !news.is_empty() {
            self.counted.until = self.now;
            for side in self.ranks[me.index()].sides.clone() {
                self.sides[side].conversation.say(&news);
                self.flush(side);
            }
        }
        let is_heard = self.ranks[me.index()].ends.is_heard(self.conversations(me));
        if let Some(parent) = parent.filter(|_| !leaves || !is_heard)
            && !unreachable
            && !self.is_about_to_watch(me, parent)
        {
            self.begin(me, parent, Purpose::Keepalive, self.now);
        }
        let of_me = &self.ranks[me.index()];
        let connects = of_me.dials.iter().any(|(_, purpose)| *purpose == Purpose::Keepalive);
        if let Stage::Leaves { since } = of_me.stage
            && (self.now >= since + LAST_WORD
                || !connects && !of_me.ends.has_to_stay(self.conversations(me)))
        {
            self.leaving.push(self.now - since);
            let dead = &self.host_of(me).dead;
            let heard = self.conversations(me).filter(|of| of.is_heard());
            let heard = heard.map(|of| of.rank).filter(|of| !dead.contains(of)).collect();
            self.heard_by.insert(me, heard);
            self.go(me);
        }
    }

    /// Watches other processes of the host in the place of those that have ended.
    fn follow_ends(&mut self, me: Rank) {
        while self.ranks[me.index()].processes != self.host_of(me).processes {
            self.ranks[me.index()].processes = self.host_of(me).processes;
            let all = self.of_host(me);
            let ended = all.filter(|rank| {
                let gone = self.ranks[rank.index()].stage == Stage::Gone;
                gone && self.record(me).takes_part(*rank) && self.watches(me, *rank)
            });
            for rank in ended.collect::<Vec<_>>() {
                self.note_death(me, rank);
            }
        }
    }

    /// Whether a rank watches the process of another one, by what it knows.
    pub(super) fn watches(&self, of: Rank, rank: Rank) -> bool {
        let (record, all) = (self.record(of), self.of_host(of).collect::<Vec<_>>());
        let me = (of.index() % self.per_host).min(all.len());
        let ring = all[me..].iter().chain(&all[..me]).skip(1);
        let others: Vec<Rank> = ring.copied().filter(|rank| record.takes_part(*rank)).collect();
        let watched = watching::watched(others.len());
        self.runs(of) && watched.into_iter().any(|at| others[at] == rank)
    }

    fn hear(&mut self, side: usize, bytes: &[u8]) {
        let me = self.sides[side].of;
        if !self.runs(me) || !self.sides[side].is_open {
            return;
        }
        let mut all = Vec::new();
        self.sides[side].conversation.take(bytes, &mut all).expect("what ranks say");
        self.counted.messages += all.len();
        self.counted.bytes += bytes.len();
        self.ranks[me.index()].heard += all.len();
        let of = self.sides[side].conversation.rank;
        let ends = &self.ranks[me.index()].ends;
        let (before, told) = (ends.is_before(of), ends.told().len());
        self.sides[side].conversation.hear(&all, before, told);
        self.flush(side);
        for said in all {
            match Heard::of(of, said, &self.record(me)) {
                Some(Heard::Died(rank)) => self.note_death(me, rank),
                Some(Heard::Step(rank, last)) => {
                    self.ranks[me.index()].of_others.steps.insert(rank, last);
                }
                Some(Heard::Left(rank)) => {
                    let record = self.record(me);
                    if record.is_remote(rank) && record.takes_part(rank) {
                        let of = &mut self.ranks[me.index()].of_others;
                        of.left.insert(rank);
                        of.goodbyes.push(rank);
                    }
                }
                None => {}
            }
        }
        self.turn(me);
    }

    /// The other side has closed, or said its last word.
    fn ended(&mut self, side: usize) {
        let (me, of) = (self.sides[side].of, self.sides[side].conversation.rank);
        if self.sides[side].conversation.takes_leave {
            self.sides[side].conversation.closed = true;
        } else if self.end_watch(side).is_some() {
            match self.record(me).takes_part(of) {
                true => self.begin(me, of, Purpose::Probe, self.now),
                false => self.watch_by_another(me, of),
            }
        }
        self.turn(me);
    }

    /// Has the host of one that has left watched by the next rank of it, where that is to connect
    /// with this one: it may have died meanwhile.
    fn watch_by_another(&mut self, me: Rank, than: Rank) {
        let mut others = self.of_host(than).filter(|rank| self.record(me).takes_part(*rank));
        let next = others.next().filter(|rank| self.ranks[me.index()].ends.is_neighbour(*rank));
        if let Some(rank) = next.filter(|rank| !self.has_keepalive(me, *rank)) {
            self.later(me, rank, Purpose::Keepalive, (REPLACED, self.now + REPLACED));
        }
    }

    fn refused(&mut self, by: Rank, to: Rank, purpose: Purpose, since: Duration) {
        self.counted.refused += 1;
        if !self.end_dial(by, to, purpose) {
            return;
        }
        let (leaves, now, waits) = (self.leaves(by), self.began + self.now, self.now - since);
        let again = (AGAIN, since);
        let (ends, record) = self.ends_of(by);
        match purpose {
            _ if leaves && (purpose == Purpose::Keepalive || ends.has_refused(to)) => {
                ends.refuses(to, now);
            }
            Purpose::Keepalive if ends.is_early(to, waits) => self.later(by, to, purpose, again),
            Purpose::Keepalive if ends.may_have_left(to, &record, now) => {
                self.later(by, to, Purpose::Probe, (NEWS_LIMIT, since));
            }
            _ => self.note_death(by, to),
        }
        self.turn(by);
    }

    fn unanswered(&mut self, by: Rank, to: Rank, purpose: Purpose) {
        if !self.end_dial(by, to, purpose) {
            return;
        }
        match purpose {
            Purpose::Probe => self.note_death(by, to),
            Purpose::Keepalive => self.fell_silent(by, to),
        }
        self.turn(by);
    }

    /// Both sides of an attempt have proved who they are.
    fn proved(&mut self, by: Rank, to: Rank, purpose: Purpose, since: Duration) {
        if !self.runs(to) || !self.runs(by) {
            if self.end_dial(by, to, purpose) {
                let pause = match purpose {
                    Purpose::Keepalive => self.ranks[by.index()].ends.pause_with(to),
                    Purpose::Probe => AGAIN,
                };
                self.later(by, to, purpose, (pause, since));
            }
            return;
        }
        let [first, second] = [self.sides.len(), self.sides.len() + 1];
        if purpose == Purpose::Keepalive {
            for (of, rank, other) in [(by, to, second), (to, by, first)] {
                let conversation = Conversation::new(rank);
                let (is_open, last_at) = (true, Duration::ZERO);
                self.sides.push(Side { of, other, conversation, is_open, last_at });
            }
        }
        self.after(HOP, Event::Done(by, to, purpose, first));
        if purpose == Purpose::Keepalive {
            self.keep_watch(second);
        }
        self.turn(to);
    }

    fn done(&mut self, by: Rank, to: Rank, purpose: Purpose, side: usize) {
        let runs = self.end_dial(by, to, purpose);
        match purpose {
            Purpose::Keepalive if !runs => {
                self.sides[side].is_open = false;
                self.after(HOP, Event::Ended(self.sides[side].other));
                return;
            }
            _ if !runs => return,
            Purpose::Keepalive => {
                self.ranks[by.index()].ends.does_not_refuse(to);
                self.counted.made += 1;
                self.keep_watch(side);
            }
            Purpose::Probe => {
                self.ranks[by.index()].ends.does_not_refuse(to);
                self.begin(by, to, Purpose::Keepalive, self.now);
            }
        }
        self.turn(by);
    }

    /// A host does not answer: all of it are dead.
    fn fell_silent(&mut self, me: Rank, rank: Rank) {
        for rank in self.of_host(rank) {
            self.note_death(me, rank);
        }
        self.turn(me);
    }
}
