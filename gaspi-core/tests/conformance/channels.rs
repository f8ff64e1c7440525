//! Channels: what collectives are built on.

use super::*;

const SPEC: ChannelSpec = ChannelSpec { slots: 4, message_bytes: 256, stage_bytes: 512 };
const HEADER: usize = 64;

fn open(rt: &Runtime) -> Channel {
    rt.channel_open(GroupId::ALL, SPEC, LIMIT).expect("a channel")
}

fn fill(slice: &PeerSlice<'_>, bytes: &[u8]) {
    assert!(bytes.len() <= slice.len());
    // SAFETY: inside of the slice, which nobody else uses now.
    unsafe { slice.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

fn read(slice: &PeerSlice<'_>, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    assert!(bytes <= slice.len());
    // SAFETY: as above.
    unsafe { slice.as_ptr().copy_to_nonoverlapping(found.as_mut_ptr(), bytes) };
    found
}

/// A message that tells pair, index and length.
fn message(from: usize, to: usize, index: u64) -> Vec<u8> {
    let len = HEADER + (index as usize * 37 + from * 11 + to) % 257;
    let mut bytes = vec![(index as u8) ^ (from as u8) << 4 ^ to as u8; len];
    bytes[..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..16].copy_from_slice(&(len as u64).to_ne_bytes());
    bytes
}

/// Waits as an executor does.
fn until<T>(channel: &Channel, mut attempt: impl FnMut() -> Option<T>) -> Result<T> {
    let found = channel.wait_for(LIMIT.deadline(), || {
        if let Some(found) = attempt() {
            return Some(Ok(found));
        }
        let failed = channel.check().err()?;
        Some(attempt().ok_or(failed))
    });
    found.unwrap_or_else(|| Err(Error::Timeout { pending: "a member".to_owned() }))
}

fn send(channel: &Channel, to: usize, index: u64) -> Result<()> {
    let slots = u64::from(channel.spec().slots);
    until(channel, || (index < channel.taken(to) + slots).then_some(()))?;
    let bytes = message(channel.me(), to, index);
    fill(&channel.outgoing(to, index), &bytes);
    channel.send(to, index, bytes.len() as u64)
}

fn receive(channel: &Channel, from: usize, index: u64) -> Result<()> {
    until(channel, || (channel.received(from) > index).then_some(()))?;
    let expected = message(from, channel.me(), index);
    assert_eq!(read(&channel.incoming(from, index), expected.len()), expected, "{from} {index}");
    channel.take(from, index + 1);
    Ok(())
}

/// Every member sends to every one, itself included.
fn exchange(channel: &Channel, rounds: std::ops::Range<u64>) {
    let members = 0..channel.ranks().len();
    for index in rounds {
        for to in members.clone() {
            send(channel, to, index).expect("sent");
        }
        for from in members.clone() {
            receive(channel, from, index).expect("received");
        }
    }
}

#[test]
fn messages_between_all_pairs_arrive_in_order_and_whole() {
    for size in [1, 2, 3, 5, 8] {
        run(size, |rt| {
            let channel = open(rt);
            assert_eq!(channel.ranks()[channel.me()], rt.rank());
            exchange(&channel, 0..2000 / u64::from(size));
            meet(rt);
        });
    }
}
