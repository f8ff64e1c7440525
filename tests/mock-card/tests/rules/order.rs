//! What is visible when, and what completes when.

use gaspi_mock_card::Options;
use libibverbs_sys as sys;

use crate::rig::{Make, Rank, Send, connect, guarded, still, strict, two};

fn write(one: &Rank, other: &Rank, id: u64) -> Send {
    Send::new(id, sys::IBV_WR_RDMA_WRITE, one, other, (64, 8))
}

#[test]
fn an_acknowledged_write_is_not_visible_yet() {
    guarded(|| {
        let (_fabric, mut one, other) = two(&strict(), Make::default());
        one.set(64, &[7; 8]);
        assert_eq!(one.post(0, &write(&one, &other, 1)), 0);
        assert_eq!(one.next().wr_id, 1);
        assert_eq!(other.bytes(64, 8), [0; 8]);
    });
}

#[test]
fn a_polled_message_makes_earlier_writes_visible_and_only_polling_it_does() {
    guarded(|| {
        let (fabric, mut one, other) = two(&strict(), Make::default());
        one.set(64, &[7; 8]);
        assert_eq!(other.receive(0, 9, 0, 16), 0);
        let message = Send::new(2, sys::IBV_WR_SEND, &one, &other, (64, 4));
        assert!(one.post_list(0, &[write(&one, &other, 1), message]).is_ok());
        fabric.settle();
        assert_eq!(other.bytes(64, 8), [0; 8]);
        assert_eq!(other.bytes(0, 4), [0; 4]);
        let found = other.next();
        assert_eq!((found.wr_id, found.byte_len, found.opcode), (9, 4, sys::IBV_WC_RECV));
        assert_eq!(other.bytes(64, 8), [7; 8]);
        assert_eq!(other.bytes(0, 4), [7; 4]);
    });
}

#[test]
fn a_write_with_immediate_is_a_message_too() {
    guarded(|| {
        let (_fabric, mut one, other) = two(&strict(), Make::default());
        one.set(64, &[7; 8]);
        assert_eq!(other.receive(0, 9, 0, 16), 0);
        let opcode = sys::IBV_WR_RDMA_WRITE_WITH_IMM;
        let send = Send { opcode, immediate: 0x1234, ..write(&one, &other, 1) };
        assert_eq!(one.post(0, &send), 0);
        let found = other.next();
        assert_eq!(found.opcode, sys::IBV_WC_RECV_RDMA_WITH_IMM);
        assert_eq!(found.wc_flags & sys::IBV_WC_WITH_IMM, sys::IBV_WC_WITH_IMM);
        // SAFETY: the flag says that it is set.
        assert_eq!(unsafe { found.__bindgen_anon_1.imm_data }, 0x1234);
        assert_eq!(other.bytes(64, 8), [7; 8]);
    });
}

#[test]
fn a_polled_read_behind_a_write_makes_it_visible() {
    guarded(|| {
        for opcode in [sys::IBV_WR_RDMA_READ, sys::IBV_WR_ATOMIC_FETCH_AND_ADD] {
            let (fabric, mut one, other) = two(&strict(), Make::default());
            one.set(64, &[7; 8]);
            let behind = Send::new(2, opcode, &one, &other, (256, 8));
            let list = [write(&one, &other, 1).flags(0), behind];
            assert!(one.post_list(0, &list).is_ok());
            fabric.settle();
            assert_eq!(other.bytes(64, 8), [0; 8], "opcode {opcode}");
            assert_eq!(one.next().wr_id, 2);
            assert_eq!(other.bytes(64, 8), [7; 8], "opcode {opcode}");
        }
    });
}

#[test]
fn messages_of_another_pair_count_by_card_and_not_by_pair() {
    guarded(|| {
        for by_pair in [0, 1] {
            let mut options = strict();
            options.behaviour.by_pair = by_pair;
            let (fabric, mut one, mut other) = two(&options, Make::default());
            connect(&mut one, &mut other);
            one.set(64, &[7; 8]);
            assert_eq!(one.post(0, &write(&one, &other, 1)), 0);
            fabric.settle();
            assert_eq!(other.receive(1, 9, 0, 16), 0);
            let message = Send::new(2, sys::IBV_WR_SEND, &one, &other, (512, 4));
            assert_eq!(one.post(1, &message), 0);
            assert_eq!(other.next().wr_id, 9);
            assert_eq!(other.bytes(64, 8) == [7; 8], by_pair == 0);
        }
    });
}

#[test]
fn the_answer_to_a_read_is_there_when_its_completion_is_polled() {
    guarded(|| {
        let (fabric, one, mut other) = two(&strict(), Make::default());
        other.set(64, &[5; 8]);
        let read = Send::new(1, sys::IBV_WR_RDMA_READ, &one, &other, (64, 8));
        assert_eq!(one.post(0, &read), 0);
        fabric.settle();
        assert_eq!(one.bytes(64, 8), [0; 8]);
        assert_eq!(one.next().opcode, sys::IBV_WC_RDMA_READ);
        assert_eq!(one.bytes(64, 8), [5; 8]);
    });
}

#[test]
fn only_a_fence_waits_for_the_answer_to_a_read() {
    guarded(|| {
        for fence in [0, sys::IBV_SEND_FENCE] {
            let (fabric, one, mut other) = two(&strict(), Make::default());
            other.set(64, &[5; 8]);
            let read = Send::new(1, sys::IBV_WR_RDMA_READ, &one, &other, (64, 8));
            let mut back = Send::new(2, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8));
            (back.remote, back.flags) = (other.address(128), sys::IBV_SEND_SIGNALED | fence);
            let last = Send::new(3, sys::IBV_WR_RDMA_READ, &one, &other, (1024, 8));
            assert!(one.post_list(0, &[read, back, last]).is_ok());
            fabric.settle();
            while one.next().wr_id != 3 {}
            assert_eq!(other.bytes(128, 8) == [5; 8], fence != 0);
        }
    });
}

#[test]
fn late_bytes_come_in_pieces_and_in_any_order() {
    guarded(|| {
        let mut options = Options::unkind(0);
        options.behaviour.time_scale = 0;
        let (mut torn, mut backwards) = (false, false);
        for seed in 1..40 {
            options.behaviour.seed = seed;
            let (_fabric, mut one, other) = two(&options, Make::default());
            one.set(64, &[7; 512]);
            let first = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 256));
            let second = Send::new(2, sys::IBV_WR_RDMA_WRITE, &one, &other, (320, 256));
            assert!(one.post_list(0, &[first.flags(0), second]).is_ok());
            loop {
                one.poll();
                let seen = other.bytes(64, 512);
                let (low, high) = (&seen[..256], &seen[256..]);
                torn |= low.contains(&7) && low.contains(&0);
                backwards |= high.contains(&7) && low.contains(&0);
                if !seen.contains(&0) {
                    break;
                }
            }
        }
        assert!(torn && backwards, "torn {torn}, later before earlier {backwards}");
    });
}

#[test]
fn writes_to_the_same_bytes_keep_their_order() {
    guarded(|| {
        for seed in 1..30 {
            let (_fabric, mut one, other) = two(&Options::unkind(seed), Make::default());
            for round in 1..=8_u8 {
                one.set(64, &[round; 8]);
                assert_eq!(one.post(0, &write(&one, &other, 1)), 0);
                assert_eq!(one.next().status, sys::IBV_WC_SUCCESS);
            }
            let read = Send::new(2, sys::IBV_WR_RDMA_READ, &one, &other, (256, 8));
            assert_eq!(one.post(0, &read), 0);
            one.next();
            assert_eq!(other.bytes(64, 8), [8; 8], "seed {seed}");
        }
    });
}

#[test]
fn pairs_complete_in_any_order_and_each_in_its_own() {
    guarded(|| {
        let mut mixed = false;
        for seed in 1..20 {
            let (_fabric, mut one, mut other) = two(&Options::unkind(seed), Make::default());
            connect(&mut one, &mut other);
            for id in 0..8 {
                for pair in 0..2 {
                    let send = write(&one, &other, pair as u64 * 8 + id);
                    assert_eq!(one.post(pair, &send), 0);
                }
            }
            let found: Vec<u64> = (0..16).map(|_| one.next().wr_id).collect();
            for pair in 0..2_u64 {
                let own: Vec<u64> = found.iter().copied().filter(|id| id / 8 == pair).collect();
                assert!(own.is_sorted(), "seed {seed}: {own:?}");
            }
            let posted: Vec<u64> = (0..8).flat_map(|id| [id, id + 8]).collect();
            mixed |= found != posted;
        }
        assert!(mixed, "always as posted");
    });
}

#[test]
fn data_is_taken_from_memory_as_late_as_before_the_completion() {
    guarded(|| {
        let mut late = false;
        for seed in 1..30 {
            let mut options = strict();
            options.behaviour.seed = seed;
            let (fabric, mut one, mut other) = two(&options, Make::default());
            fabric.link(0, 1, 0);
            one.set(64, &[1; 8]);
            other.receive(0, 9, 0, 64);
            other.receive(0, 10, 512, 64);
            let plain = Send::new(1, sys::IBV_WR_SEND, &one, &other, (64, 8));
            let flags = sys::IBV_SEND_INLINE | sys::IBV_SEND_SIGNALED;
            assert!(one.post_list(0, &[plain, plain.flags(flags)]).is_ok());
            one.set(64, &[2; 8]);
            fabric.link(0, 1, 1);
            other.next();
            late |= other.bytes(0, 8) == [2; 8];
            other.next();
            assert_eq!(other.bytes(512, 8), [1; 8], "inline data is taken by the post");
            other.set(0, &[0; 8]);
        }
        assert!(late, "the buffer of a request could be used again too early unnoticed");
    });
}

#[test]
fn atomics_return_what_was_there() {
    guarded(|| {
        let (_fabric, one, mut other) = two(&still(), Make::default());
        other.set(64, &40_u64.to_ne_bytes());
        let mut add = Send::new(1, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, &one, &other, (64, 8));
        add.operands = (2, 0);
        assert_eq!(one.post(0, &add), 0);
        assert_eq!(one.next().opcode, sys::IBV_WC_FETCH_ADD);
        assert_eq!(one.bytes(64, 8), 40_u64.to_ne_bytes());
        for (expected, swapped) in [(41_u64, 42_u64), (42, 99)] {
            let mut swap = Send::new(2, sys::IBV_WR_ATOMIC_CMP_AND_SWP, &one, &other, (64, 8));
            swap.operands = (expected, 99);
            assert_eq!(one.post(0, &swap), 0);
            assert_eq!(one.next().opcode, sys::IBV_WC_COMP_SWAP);
            assert_eq!(one.bytes(64, 8), 42_u64.to_ne_bytes());
            assert_eq!(other.bytes(64, 8), swapped.to_ne_bytes());
        }
    });
}

#[test]
fn two_threads_pass_messages_both_ways() {
    guarded(|| {
        for seed in 1..4 {
            let (_fabric, mut one, mut other) = two(&Options::unkind(seed), Make::default());
            one.set(64, &[1; 8]);
            other.set(64, &[2; 8]);
            let (ping, pong) = (
                Send::new(1, sys::IBV_WR_SEND, &one, &other, (64, 8)),
                Send::new(1, sys::IBV_WR_SEND, &other, &one, (64, 8)),
            );
            struct Moved(Rank, Send);
            // SAFETY: a rank belongs to the one thread that it moves to.
            unsafe impl std::marker::Send for Moved {}
            let run = |moved: Moved| {
                let Moved(rank, send) = moved;
                let (mut sent, mut received) = (0, 0);
                rank.receive(0, 9, 0, 64);
                rank.post(0, &send);
                while sent < 50 || received < 50 {
                    let found = rank.next();
                    assert_eq!(found.status, sys::IBV_WC_SUCCESS);
                    if found.opcode == sys::IBV_WC_RECV {
                        received += 1;
                        assert_eq!(rank.receive(0, 9, 0, 64), 0);
                    } else {
                        sent += 1;
                        if sent < 50 {
                            assert_eq!(rank.post(0, &send), 0);
                        }
                    }
                }
                Moved(rank, send)
            };
            let (one, other) = (Moved(one, ping), Moved(other, pong));
            let both = std::thread::scope(|scope| {
                let second = scope.spawn(move || run(other));
                (run(one), second.join().unwrap())
            });
            drop(both);
        }
    });
}
