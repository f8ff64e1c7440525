//! Cards of two processes, which are this program started again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use libibverbs_sys as sys;

use crate::rig::{ALL, Make, Rank, STEPS, Send, guarded, open};

/// What one process tells the other: its GID, pair, address and key.
const MARK: &str = "@";

fn start(folder: &std::path::Path, part: &str, options: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["processes::part", "--exact", "--ignored", "--nocapture"]);
    command.env("GASPI_MOCK_DIR", folder).env("GASPI_TEST_PART", part);
    command.env("GASPI_MOCK_OPTIONS", options);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn requests_reach_another_process_and_answers_come_back() {
    between_two("");
}

#[test]
fn they_do_so_where_bytes_are_placed_when_a_completion_forces_it() {
    for seed in 1..=10 {
        between_two(&format!("placement=2,shuffle=1,seed={seed}"));
    }
}

fn between_two(options: &str) {
    guarded(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut children = ["0", "1"].map(|part| start(folder.path(), part, options));
        let mut outputs = children.each_mut().map(|child| {
            BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok)
        });
        // Lines of each are for the other one, until both end.
        for _ in 0..3 {
            let lines = outputs.each_mut().map(|lines| {
                let own = |line: String| line.split_once(MARK).map(|(_, text)| text.to_string());
                lines.find_map(own).expect("a part ended early")
            });
            for (child, line) in children.iter_mut().rev().zip(lines) {
                writeln!(child.stdin.as_mut().unwrap(), "{line}").unwrap();
            }
        }
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
    });
}

fn say(text: &str) {
    println!("\n{MARK}{text}");
}

fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_string()
}

#[test]
#[ignore = "a part of the test above, which starts it"]
fn part() {
    guarded(|| {
        let first = std::env::var("GASPI_TEST_PART").unwrap() == "0";
        let mut rank = Rank::on(open(), Make::default());
        rank.pair();
        let gid = u128::from_be_bytes(rank.gid().1);
        say(&format!("{gid} {} {} {}", rank.number(0), rank.address(0), rank.remote_key()));
        let told = hear();
        let words: Vec<&str> = told.split(' ').collect();
        let gid: u128 = words[0].parse().unwrap();
        let (peer, remote): (u32, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        let key: u32 = words[3].parse().unwrap();
        let mut all = rank.attributes(&rank, 0);
        (all.dest_qp_num, all.ah_attr.grh.dgid.raw) = (peer, gid.to_be_bytes());
        (all.timeout, all.qp_access_flags) = (20, ALL);
        for (state, mask) in STEPS {
            all.qp_state = state;
            assert_eq!(rank.modify(0, &mut all, mask), 0);
        }
        if first { initiate(&mut rank, remote, key) } else { respond(&mut rank) }
    });
}

/// Goes on when both have come here.
fn meet() {
    say("ready");
    assert_eq!(hear(), "ready");
}

fn initiate(rank: &mut Rank, remote: u64, key: u32) {
    meet();
    rank.set(64, &[7; 512]);
    let to = |id, opcode, offset, length| {
        let send = Send::new(id, opcode, rank, rank, (offset, length));
        Send { remote: remote + offset as u64, key, ..send }
    };
    let write = to(1, sys::IBV_WR_RDMA_WRITE, 64, 512).flags(0);
    let mut add = to(2, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, 1024, 8).flags(0);
    add.operands = (5, 0);
    let read = to(3, sys::IBV_WR_RDMA_READ, 2048, 8).flags(0);
    // The fence has it wait for the answer, which it carries back.
    let fence = sys::IBV_SEND_FENCE;
    let back =
        Send { remote: remote + 3072, ..to(4, sys::IBV_WR_RDMA_WRITE, 2048, 8).flags(fence) };
    // Three messages for two receives: the last one waits until the peer has more.
    let message = to(4, sys::IBV_WR_SEND, 64, 8);
    assert!(rank.post_list(0, &[write, add, read, back, message, message, message]).is_ok());
    for _ in 0..3 {
        let found = rank.next();
        assert_eq!((found.wr_id, found.status), (4, sys::IBV_WC_SUCCESS));
    }
    assert_eq!(rank.bytes(1024, 8), 37_u64.to_ne_bytes());
    assert_eq!(rank.bytes(2048, 8), [9; 8]);
    let wrong = Send { key: key ^ 1, ..to(5, sys::IBV_WR_RDMA_WRITE, 64, 8) };
    assert_eq!(rank.post(0, &wrong), 0);
    assert_eq!(rank.next().status, sys::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(rank.post(0, &wrong), 0);
    assert_eq!(rank.next().status, sys::IBV_WC_WR_FLUSH_ERR);
    meet();
}

fn respond(rank: &mut Rank) {
    rank.set(1024, &37_u64.to_ne_bytes());
    rank.set(2048, &[9; 8]);
    assert_eq!(rank.receive(0, 1, 0, 16), 0);
    assert_eq!(rank.receive(0, 2, 16, 16), 0);
    meet();
    assert_eq!(rank.next().wr_id, 1);
    assert_eq!(rank.bytes(64, 512), [7; 512]);
    assert_eq!(rank.bytes(1024, 8), 42_u64.to_ne_bytes());
    assert_eq!(rank.bytes(3072, 8), [9; 8]);
    assert_eq!(rank.next().wr_id, 2);
    assert_eq!(rank.bytes(16, 8), [7; 8]);
    assert_eq!(rank.receive(0, 3, 0, 16), 0);
    assert_eq!(rank.next().wr_id, 3);
    while rank.state(0) != sys::IBV_QPS_ERR {
        std::thread::yield_now();
    }
    // What a process has not sent when it ends is lost.
    meet();
}
