//! Frames encoded and decoded, truncated, and made of random bytes.

use super::*;
use crate::mutated::mutated;

fn os(text: &[u8]) -> OsString {
    OsString::from_vec(text.to_vec())
}

pub(crate) fn plan() -> Assignment {
    Assignment {
        job: "0123456789abcdef".to_owned(),
        size: 9,
        ranks: vec![0, 3, 8],
        machines: 3,
        host: "[fd77::1]".to_owned(),
        first: Command { program: os(b"./first"), arguments: vec![] },
        others: Command { program: os(b"sh"), arguments: vec![os(b"-c"), os(b""), os(b"\xff\n'")] },
        environment: Some(Environment {
            variables: vec![(os(b"MINE"), os(b"a=b")), (os(b"EMPTY"), os(b""))],
            directory: "/tmp/d \u{e4}".into(),
            umask: 0o027,
            limits: [1024, u64::MAX, 0],
        }),
        machine_file: Some("/tmp/hosts".into()),
        bind: Some(Bind::Numa),
        numa: true,
        bind_memory: true,
        variables: vec![Variable { name: os(b"GPU"), values: vec![os(b"0"), os(b"")] }],
        debug: false,
    }
}

fn downs() -> Vec<Down> {
    let bare = Assignment { environment: None, machine_file: None, bind: None, ..plan() };
    vec![
        Down::Plan(Box::new(plan())),
        Down::Plan(Box::new(bare)),
        Down::Start,
        Down::Input(b"input".to_vec()),
        Down::InputEnd,
        Down::Signal(15),
        Down::Part(false),
        Down::Part(true),
        Down::Show,
        Down::Taken(70_000),
        Down::Meeting(vec![0, 1, 255]),
        Down::Refused("not wanted".to_owned()),
        Down::Reach(Errand {
            shell: vec![os(b"ssh"), os(b"-T")],
            hosts: vec![(7, "n07".to_owned()), (9, "n09".to_owned())],
        }),
    ]
}

fn ups() -> Vec<Up> {
    let waits = vec![Waiting {
        call: "barrier".to_owned(),
        object: "group 0".to_owned(),
        since: Duration::from_millis(1234),
        awaited: vec![1, 2],
        in_part: true,
    }];
    let pairs = "2 RDMA connections up".to_owned();
    let row = Row { pid: 7, state: "joined".to_owned(), doing: String::new(), waits, pairs };
    vec![
        Up::Hello { version: VERSION, machine: None },
        Up::Hello { version: VERSION, machine: Some("boot 0".to_owned()) },
        Up::Hello { version: VERSION + 1, machine: None },
        Up::Notice("a limit".to_owned()),
        Up::Ready,
        Up::Failed { status: 127, message: "program x was not found".to_owned() },
        Up::Started { rank: 3, pid: 4711, place: "on core 0".to_owned() },
        Up::Output { rank: 3, stream: 1, bytes: vec![0, 10, 200] },
        Up::Ended { rank: 3, pid: 4711, ending: Ending::Exited(3) },
        Up::Ended { rank: 3, pid: 4711, ending: Ending::Killed { signal: 11, core: true } },
        Up::Ended { rank: 3, pid: 4711, ending: Ending::Lost },
        Up::InputTaken(5),
        Up::InputClosed,
        Up::Rows(vec![(3, row.clone()), (8, Row { waits: vec![], ..row })]),
        Up::Meeting(vec![]),
        Up::Alive,
        Up::Done,
        Up::Missed { number: 7, reason: "no way".to_owned() },
        Up::NoWayBack("no way".to_owned()),
    ]
}

fn there_and_back<T: Frame + PartialEq + std::fmt::Debug>(frames: Vec<T>) {
    for frame in frames {
        let mut bytes = frame.encode();
        for cut in 0..bytes.len() {
            assert!(matches!(T::decode(&bytes[..cut]), Ok(None)), "{frame:?} cut at {cut}");
        }
        let len = bytes.len();
        bytes.push(77);
        assert_eq!(T::decode(&bytes), Ok(Some((frame, len))));
    }
}

#[test]
fn frames_there_and_back() {
    there_and_back(downs());
    there_and_back(ups());
}

#[test]
fn mutated_frames_are_refused_or_understood_but_never_more() {
    let good: Vec<Vec<u8>> =
        downs().iter().map(Frame::encode).chain(ups().iter().map(Frame::encode)).collect();
    mutated(&good, |bytes| {
        // No panic, and what is understood can be said again.
        if let Ok(Some((frame, _))) = Down::decode(bytes) {
            assert_eq!(Down::decode(&frame.encode()).expect("again").expect("whole").0, frame);
        }
        if let Ok(Some((frame, _))) = Up::decode(bytes) {
            assert_eq!(Up::decode(&frame.encode()).expect("again").expect("whole").0, frame);
        }
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let huge = ((FRAME_MAX + 1) as u32).to_le_bytes();
    assert!(Down::decode(&huge).is_err());
    assert!(Up::decode(&[0, 0, 0, 0]).is_err());
    let refused = |plan: Assignment| Down::decode(&Down::Plan(Box::new(plan)).encode()).is_err();
    assert!(refused(Assignment { ranks: vec![], ..plan() }));
    assert!(refused(Assignment { ranks: vec![3, 3], ..plan() }));
    assert!(refused(Assignment { ranks: vec![9], ..plan() }));
    assert!(refused(Assignment { size: 70_000, ..plan() }));
    let variable = |name: &[u8], values| vec![Variable { name: os(name), values }];
    assert!(refused(Assignment { variables: variable(b"", vec![os(b"x")]), ..plan() }));
    assert!(refused(Assignment { variables: variable(b"A", vec![]), ..plan() }));
    assert!(refused(Assignment { machine_file: Some(os(b"a\0b").into()), ..plan() }));
    let long = vec![0; PIECE_MAX + 1];
    assert!(Down::decode(&Down::Input(long).encode()).is_err());
    assert!(Down::decode(&Down::Signal(0).encode()).is_err());
    let hosts = vec![(0, "-oProxyCommand=x".to_owned())];
    assert!(Down::decode(&Down::Reach(Errand { shell: vec![], hosts }).encode()).is_err());
    // A list that claims to be long costs nothing.
    let mut rows = Up::Rows(vec![]).encode();
    rows[5..9].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Up::decode(&rows).is_err());
}

/// Two sides of one version may come from different builds.
#[test]
fn bytes_on_the_wire_stay_the_same() {
    let downs = downs();
    let ups = ups();
    let encoded = downs.iter().map(Frame::encode).chain(ups.iter().map(Frame::encode));
    let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let actual: Vec<String> = encoded.map(hex).collect();
    let expected: Vec<&str> = include_str!("protocol_golden.txt").lines().collect();
    assert_eq!(actual, expected, "\n{}", actual.join("\n"));
}

/// What users read when the other side makes no sense.
#[test]
fn nonsense_is_named() {
    let down = |body: &[u8]| {
        let bytes = [&(body.len() as u32).to_le_bytes(), body].concat();
        Down::decode(&bytes).expect_err("nonsense").0
    };
    let up = |body: &[u8]| {
        let bytes = [&(body.len() as u32).to_le_bytes(), body].concat();
        Up::decode(&bytes).expect_err("nonsense").0
    };
    let piece = [&[3][..], &(PIECE_MAX as u32 + 1).to_le_bytes(), &[0; PIECE_MAX + 1]].concat();
    assert_eq!(down(&[]), "a frame of impossible length");
    assert_eq!(down(&[2, 0]), "bytes behind the end of a frame");
    assert_eq!(down(&[5, 1]), "a short frame");
    assert_eq!(down(&[9, 2, 0, 0, 0, 1]), "a short frame");
    assert_eq!(down(&[6, 2]), "a truth value that is none");
    assert_eq!(down(&piece), "a piece that is too long");
    assert_eq!(down(&[5, 65, 0, 0, 0]), "a signal that is none");
    assert_eq!(down(&[99]), "a frame of unknown kind");
    assert_eq!(up(&[13, 1, 0, 0, 0, 0xff]), "a text that is not UTF-8");
    assert_eq!(up(&[13, 9, 0, 0, 0, 0xff]), "a short frame");
    assert_eq!(up(&[5, 0, 0, 0, 0, 2]), "output of no stream");
    assert_eq!(up(&[6, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0]), "an end that is none");
}
