//! The lines by which few words reach all members of a group.

use super::*;

#[derive(Debug)]
struct Member<const HOW: u8> {
    lines: [ArrivalSlot<W64<HOW>>; 2],
    stages: [Payload; 2],
}

impl<const HOW: u8> Default for Member<HOW> {
    fn default() -> Member<HOW> {
        let line = || ArrivalSlot {
            sequence: W64::default(),
            signature: W64::default(),
            payload: Default::default(),
        };
        Member { lines: [line(), line()], stages: Default::default() }
    }
}

/// `ranks` members take `steps` steps over `lines` alternating lines.
fn agreement<const HOW: u8>(ranks: usize, steps: u64, lines: u64) {
    let members: Arc<Vec<Member<HOW>>> = Arc::new((0..ranks).map(|_| Member::default()).collect());
    let text = |member: usize, step: u64| 100 * step + member as u64;
    let take_part = move |members: &[Member<HOW>], me: usize| {
        for step in 1..=steps {
            let parity = (step % lines) as usize;
            members[me].stages[parity].write(text(me, step));
            members[me].lines[parity].publish(step, 7, &[text(me, step)]);
            for (other, member) in members.iter().enumerate().filter(|(other, _)| *other != me) {
                let line = &member.lines[parity];
                let mut signature = None;
                until(|| {
                    signature = match line.poll(step) {
                        Poll::Arrived(signature) => Some(signature),
                        Poll::Missing | Poll::Passed => None,
                    };
                    signature.is_some()
                });
                assert_eq!(signature, Some(7));
                assert_eq!(line.payload()[0], text(other, step));
                assert_eq!(member.stages[parity].read(), text(other, step));
            }
        }
    };
    let threads: Vec<_> =
        (1..ranks).map(|me| spawn(&members, move |members| take_part(members, me))).collect();
    take_part(&members, 0);
    for thread in threads {
        thread.join().expect("member");
    }
}

#[test]
fn agreement_lines() {
    holds(|| agreement::<AS_WRITTEN>(2, 3, 2));
}

#[test]
fn agreement_lines_of_three() {
    // Three that wait for each other have more interleavings than anybody can run: as many as fit.
    let mut builder = builder();
    builder.max_duration = builder.max_duration.or(Some(std::time::Duration::from_secs(15)));
    builder.check(|| agreement::<AS_WRITTEN>(3, 3, 2));
}

#[test]
fn agreement_lines_weakened() {
    breaks(|| agreement::<NO_RELEASE>(2, 3, 2));
    breaks(|| agreement::<NO_ACQUIRE>(2, 3, 2));
    breaks(|| agreement::<AS_WRITTEN>(2, 3, 1));
    breaks(|| agreement::<NO_RELEASE>(3, 3, 2));
    breaks(|| agreement::<NO_ACQUIRE>(3, 3, 2));
    breaks(|| agreement::<AS_WRITTEN>(3, 3, 1));
}
