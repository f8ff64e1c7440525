//! A hub and its relays, joined by bytes in memory, with ranks on real sockets.

use super::*;
use crate::bootstrap::cards::tests::{all, mapped};
use crate::bootstrap::exchange::tests::{GUARD, client, inode, unique};
use crate::bootstrap::job::{Job, ServerLocation};
use crate::bootstrap::{Client, LauncherEvent, StartStage, Table, system};
use crate::timeout::{Deadline, Timeout};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// One machine for rank 0, two with two ranks each.
const HOSTS: [&str; 5] = ["a", "b", "b", "c", "c"];

enum Order {
    Gone { host: usize, rank: Rank, how: &'static str },
    Started { host: usize, rank: Rank, pid: i32 },
    Cut { host: usize },
    Show(mpsc::Sender<Vec<Option<i32>>>),
}

/// Three hosts in one thread that carries their bytes, in pieces, until it is told to stop.
struct Machines {
    names: Vec<String>,
    orders: mpsc::Sender<Order>,
    requests: mpsc::Receiver<(usize, Request)>,
    thread: thread::JoinHandle<()>,
}

/// Carries what has to go between the hub and relay `host`, in pieces of `piece` bytes.
fn carry(hosts: &mut [Server], host: usize, link: RelayId, piece: usize) {
    loop {
        let down: Vec<u8> = hosts[0].take(link).iter().flat_map(|frame| frame.to_vec()).collect();
        let up: Vec<u8> =
            hosts[host].take(Server::UPSTREAM).iter().flat_map(|frame| frame.to_vec()).collect();
        if down.is_empty() && up.is_empty() {
            return;
        }
        for piece in down.chunks(piece) {
            hosts[host].feed(Server::UPSTREAM, piece).expect("the hub is understood");
        }
        for piece in up.chunks(piece) {
            hosts[0].feed(link, piece).expect("the relay is understood");
        }
    }
}

impl Machines {
    fn start(id: &str) -> Machines {
        let hub = Server::hub(id, HOSTS.map(str::to_owned).to_vec()).expect("hub");
        let mut hosts = vec![hub, Server::relay().expect("relay"), Server::relay().expect("relay")];
        let ranks = [&[Rank(1), Rank(2)][..], &[Rank(3), Rank(4)]];
        let links = ranks.map(|ranks| hosts[0].add_relay(ranks));
        let names = hosts.iter().map(|host| host.name().to_owned()).collect();
        let (orders, taken) = mpsc::channel();
        let (tell, requests) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut cut = [false; 2];
            loop {
                let tick = Some(Duration::from_millis(2));
                let fds: Vec<_> = hosts.iter().map(|host| (host.as_fd(), false)).collect();
                system::wait(&fds, Deadline::Never, tick);
                for (number, host) in hosts.iter_mut().enumerate() {
                    for request in host.serve() {
                        let _ = tell.send((number, request));
                    }
                }
                for (number, link) in links.into_iter().enumerate().filter(|(n, _)| !cut[*n]) {
                    carry(&mut hosts, number + 1, link, 7 + 100 * number);
                }
                match taken.try_recv() {
                    Ok(Order::Gone { host, rank, how }) => hosts[host].gone(rank, how),
                    Ok(Order::Started { host, rank, pid }) => hosts[host].started(rank, pid),
                    Ok(Order::Cut { host }) => {
                        cut[host - 1] = true;
                        hosts[0].cut(links[host - 1], "the connection to host b was lost");
                    }
                    Ok(Order::Show(to)) => {
                        let pid = |rank| hosts[0].presence(Rank(rank)).map(|found| found.pid);
                        let _ = to.send((0..5).map(pid).collect());
                    }
                    Err(mpsc::TryRecvError::Empty) => {}
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
                for (number, host) in hosts.iter_mut().enumerate() {
                    for request in host.requests() {
                        let _ = tell.send((number, request));
                    }
                }
            }
        });
        Machines { names, orders, requests, thread }
    }

    fn host_of(rank: u16) -> usize {
        usize::from(rank).div_ceil(2)
    }

    fn job(&self, id: &str, rank: u16) -> Job {
        let server = ServerLocation::Launcher(self.names[Machines::host_of(rank)].clone());
        let hosts = HOSTS.map(Arc::from).into();
        Job { server, hosts, spans_hosts: true, ..Job::in_process(id, Rank(rank), 5) }
    }

    fn order(&self, order: Order) {
        self.orders.send(order).expect("machines");
    }

    fn stop(self) {
        drop(self.orders);
        self.thread.join().expect("machines");
    }
}

/// All ranks meet, each in a thread of its own.
fn meet(machines: &Machines, id: &str) -> Vec<Table> {
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..5)
            .map(|rank| {
                let job = machines.job(id, rank);
                scope.spawn(move || client(&job).poll(GUARD.deadline()).expect("table"))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("rank")).collect()
    })
}

#[test]
fn ranks_of_several_machines_meet_and_meet_again() {
    let id = unique("machines");
    let machines = Machines::start(&id);
    let mut former = Vec::new();
    for _ in 0..3 {
        let tables = meet(&machines, &id);
        for (rank, table) in tables.iter().enumerate() {
            assert_eq!((all(&table.cards), table.key), (all(&tables[0].cards), tables[0].key));
            let own = table.cards.at(Rank(rank as u16));
            assert_eq!((own.rank().index(), own.host()), (rank, HOSTS[rank]));
            for (other, card) in table.cards.iter().enumerate() {
                let same = HOSTS[rank] == HOSTS[other];
                assert_eq!(own.node() == card.node(), same, "{rank} {other}");
                assert_eq!(own.machine() == card.machine(), same, "{rank} {other}");
                assert_eq!(inode(&table.area) == inode(&tables[other].area), same);
                let cards = [table, &tables[other]].map(|table| mapped(&table.cards).inode);
                assert_eq!(cards[0] == cards[1], same);
            }
        }
        let areas: Vec<u64> = tables.iter().map(|table| inode(&table.area)).collect();
        assert!(areas.iter().all(|area| !former.contains(area)), "each round has fresh areas");
        former.extend(areas);
        let (to, pids) = mpsc::channel();
        machines.order(Order::Show(to));
        let pid = std::process::id() as i32;
        assert_eq!(pids.recv().expect("pids"), [Some(pid); 5]);
    }
    machines.stop();
}

fn next_event(table: &mut Table) -> LauncherEvent {
    loop {
        if let Some(news) = table.membership.next_event() {
            return news;
        }
        let fd = table.membership.as_fd().expect("a launcher");
        system::wait(&[(fd, false)], Deadline::Never, Some(Duration::from_secs(60)));
    }
}

#[test]
fn a_death_is_told_on_all_machines_and_leaving_is_not() {
    let id = unique("death");
    let machines = Machines::start(&id);
    for rank in 0..5 {
        let pid = std::process::id() as i32;
        machines.order(Order::Started { host: Machines::host_of(rank), rank: Rank(rank), pid });
    }
    let mut tables = meet(&machines, &id);
    // The last one leaves and ends, then rank 2 dies.
    drop(tables.pop());
    machines.order(Order::Gone { host: 2, rank: Rank(4), how: "exit status 0" });
    machines.order(Order::Gone { host: 1, rank: Rank(2), how: "signal 9" });
    let died = LauncherEvent::Died { rank: Rank(2), how: "signal 9".to_owned() };
    for rank in [0, 1, 3] {
        assert_eq!(next_event(&mut tables[rank]), died, "rank {rank}");
        assert_eq!(tables[rank].membership.next_event(), None);
    }
    // A machine is lost with all its ranks.
    machines.order(Order::Cut { host: 1 });
    for rank in [0, 3] {
        let how = "the connection to host b was lost".to_owned();
        assert_eq!(next_event(&mut tables[rank]), LauncherEvent::Died { rank: Rank(1), how });
    }
    machines.stop();
}

#[test]
fn kills_go_to_the_machine_of_the_rank() {
    let id = unique("kill");
    let machines = Machines::start(&id);
    let tables = meet(&machines, &id);
    for (from, rank) in [(1, 3), (3, 0), (0, 4), (1, 2)] {
        tables[from].membership.request_kill(Rank(rank)).expect("request");
        let (host, request) =
            machines.requests.recv_timeout(Duration::from_secs(60)).expect("request");
        let Request::Kill { rank: killed, process } = request else { panic!("{request:?}") };
        assert_eq!((host, killed), (Machines::host_of(rank), Rank(rank)));
        assert!(!system::readable(process.expect("it has joined").as_fd()));
    }
    machines.stop();
}

#[test]
fn an_incomplete_meeting_names_hosts_and_stages_everywhere() {
    let id = unique("incomplete");
    let machines = Machines::start(&id);
    machines.order(Order::Started { host: 2, rank: Rank(4), pid: 4711 });
    let mut ranks: Vec<Client> = (0..4).map(|rank| client(&machines.job(&id, rank))).collect();
    for rank in &mut ranks {
        assert!(rank.poll(Deadline::Now).expect_err("incomplete").is_timeout());
    }
    let expected = format!(
        "timeout while waiting for rank 4 on c (process 4711 has not called proc_init) to join job \
         {id} (5 ranks)"
    );
    for rank in &mut ranks {
        while rank.poll(Timeout::Millis(5).deadline()).expect_err("incomplete").to_string()
            != expected
        {}
    }
    machines.order(Order::Gone { host: 2, rank: Rank(4), how: "exit status 3" });
    for rank in &mut ranks {
        let text = rank.poll(GUARD.deadline()).expect_err("ended").to_string();
        assert!(
            text.contains("rank 4 on c has ended before it joined the job (exit status 3)"),
            "{text}"
        );
    }
    machines.stop();
}

#[test]
fn a_host_that_cannot_be_reached_ends_the_start() {
    let mut hub = Server::hub("j", HOSTS.map(str::to_owned).to_vec()).expect("hub");
    let link = hub.add_relay(&[Rank(1), Rank(2)]);
    hub.stage(&[Rank(1), Rank(2)], StartStage::Reaching);
    hub.cut(link, "ssh: connect to host b port 22: No route to host");
    assert!(hub.take(link).is_empty(), "there is no link any more");
    let server = ServerLocation::Launcher(hub.name().to_owned());
    let job = Job { server, ..Job::in_process("j", Rank(0), 5) };
    let mut rank = client(&job);
    assert!(rank.poll(Deadline::Now).expect_err("not served").is_timeout());
    hub.serve();
    let text = rank.poll(GUARD.deadline()).expect_err("ended").to_string();
    assert!(text.contains("rank 1 on b has ended before it joined"), "{text}");
    assert!(text.contains("No route to host"), "{text}");
}

#[test]
fn other_versions_and_nonsense_on_a_link_are_told() {
    let mut hub = Server::hub("j", HOSTS.map(str::to_owned).to_vec()).expect("hub");
    let mut relay = Server::relay().expect("relay");
    let other = ToHub::Hello { version: relay_protocol::VERSION + 1 }.encode();
    let link = hub.add_relay(&[]);
    let text = hub.feed(link, &other).expect_err("another version").to_string();
    assert!(text.contains("use one version of the library and of gaspi_run"), "{text}");
    let link = hub.add_relay(&[]);
    let text = hub.feed(link, b"Welcome to host b!\n").expect_err("no agent").to_string();
    assert!(text.contains("not understood"), "{text}");
    assert!(relay.feed(Server::UPSTREAM, &[1; 64]).is_err());
    // The link of a number that there is not.
    assert_eq!(hub.feed(77, b"anything"), Ok(()));
}

#[test]
fn a_relay_that_loses_its_hub_tells_those_who_wait() {
    let mut relay = Server::relay().expect("relay");
    let server = ServerLocation::Launcher(relay.name().to_owned());
    let mut rank = client(&Job { server, ..Job::in_process("j", Rank(0), 5) });
    assert!(rank.poll(Deadline::Now).expect_err("not served").is_timeout());
    relay.serve();
    assert!(!relay.take(Server::UPSTREAM).is_empty());
    relay.cut(Server::UPSTREAM, "gaspi_run has ended");
    let text = rank.poll(GUARD.deadline()).expect_err("no hub").to_string();
    assert!(text.contains("gaspi_run has ended"), "{text}");
}

#[test]
fn waiting_ranks_are_reminded_of() {
    let mut hub = Server::hub("j", HOSTS.map(str::to_owned).to_vec()).expect("hub");
    let server = ServerLocation::Launcher(hub.name().to_owned());
    let mut rank = client(&Job { server, ..Job::in_process("j", Rank(0), 5) });
    assert!(rank.poll(Deadline::Now).expect_err("not served").is_timeout());
    assert!(hub.serve().is_empty());
    let text = loop {
        system::wait(&[(hub.as_fd(), false)], GUARD.deadline(), None);
        match hub.serve().pop() {
            Some(Request::Missing { text }) => break text,
            other => assert!(other.is_none(), "{other:?}"),
        }
    };
    assert_eq!(text, "ranks 1-2 on b (not seen yet), ranks 3-4 on c (not seen yet)");
}
