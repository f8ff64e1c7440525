//! Errors of requests, and what tests plan.

use gaspi_mock_card::Options;
use libibverbs_sys as sys;

use crate::rig::{
    ALL, CARD, Make, Rank, Send, VERBS, connect, guarded, register, still, strict, two,
};

/// Just below and above the time that retries take with timeout 14 and 6 of them.
const RETRIES_NS: u64 = 7 * (4096 << 14);

fn write(one: &Rank, other: &Rank, id: u64) -> Send {
    Send::new(id, sys::IBV_WR_RDMA_WRITE, one, other, (64, 8))
}

#[test]
fn access_that_is_not_granted_ends_the_pair_at_both_ends_and_tells_the_target_nothing() {
    guarded(|| {
        type Spoil = fn(&mut Send);
        let spoils: [Spoil; 4] = [
            |send| send.key ^= 1,
            |send| send.remote += 4096,
            |send| send.remote -= 65,
            |send| send.key ^= 0x80,
        ];
        for spoil in spoils {
            let (_fabric, one, other) = two(&still(), Make::default());
            let mut bad = write(&one, &other, 1);
            spoil(&mut bad);
            assert!(one.post_list(0, &[bad, write(&one, &other, 2)]).is_ok());
            let found = one.next();
            assert_eq!((found.wr_id, found.status), (1, sys::IBV_WC_REM_ACCESS_ERR));
            let found = one.next();
            assert_eq!((found.wr_id, found.status), (2, sys::IBV_WC_WR_FLUSH_ERR));
            assert_eq!((one.state(0), other.state(0)), (sys::IBV_QPS_ERR, sys::IBV_QPS_ERR));
            assert!(!other.has_event() && other.poll().is_none());
        }
    });
}

#[test]
fn rights_and_registrations_are_kept() {
    guarded(|| {
        for (access, ended) in [(ALL & !sys::IBV_ACCESS_REMOTE_WRITE, false), (ALL, true)] {
            let (_fabric, one, other) = two(&still(), Make::default());
            let mut word = Box::new(0_u64);
            let mr = register(other.pd, (&raw mut *word).cast(), 8, access);
            // SAFETY: made just now.
            let key = unsafe { (*mr).rkey };
            if ended {
                // SAFETY: made just now.
                unsafe { (VERBS.ibv_dereg_mr)(mr) };
            }
            let remote = &raw const *word as u64;
            one.post(0, &Send { remote, key, ..write(&one, &other, 1) });
            assert_eq!(one.next().status, sys::IBV_WC_REM_ACCESS_ERR);
            assert_eq!(*word, 0);
            if !ended {
                // SAFETY: made above.
                unsafe { (VERBS.ibv_dereg_mr)(mr) };
            }
        }
    });
}

#[test]
fn deregistering_places_what_is_held_and_nothing_comes_later() {
    guarded(|| {
        let (fabric, mut one, other) = two(&strict(), Make::default());
        let mut word = Box::new(0_u64);
        let mr = register(other.pd, (&raw mut *word).cast(), 8, ALL);
        one.set(64, &[7; 8]);
        // SAFETY: made just now.
        let key = unsafe { (*mr).rkey };
        let remote = &raw const *word as u64;
        one.post(0, &Send { remote, key, ..write(&one, &other, 1) });
        fabric.settle();
        // SAFETY: made above.
        unsafe { (VERBS.ibv_dereg_mr)(mr) };
        let seen = &raw mut *word;
        // SAFETY: kept alive.
        assert_eq!(unsafe { seen.read_volatile() }, 0x0707_0707_0707_0707);
        // SAFETY: kept alive.
        unsafe { seen.write_volatile(1) };
        one.next();
        let read = Send::new(2, sys::IBV_WR_RDMA_READ, &one, &other, (256, 8));
        one.post(0, &read);
        one.next();
        // SAFETY: kept alive.
        assert_eq!(unsafe { seen.read_volatile() }, 1);
    });
}

#[test]
fn a_wrong_local_key_is_a_local_error_and_the_target_stays() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), Make::default());
        let mut bad = write(&one, &other, 1);
        bad.sge.lkey = one.remote_key();
        one.post(0, &bad);
        assert_eq!(one.next().status, sys::IBV_WC_LOC_PROT_ERR);
        assert_eq!((one.state(0), other.state(0)), (sys::IBV_QPS_ERR, sys::IBV_QPS_RTS));
    });
}

#[test]
fn a_message_that_does_not_fit_is_an_error_at_both_ends() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), Make::default());
        other.receive(0, 9, 0, 4);
        one.post(0, &Send::new(1, sys::IBV_WR_SEND, &one, &other, (64, 8)));
        assert_eq!(one.next().status, sys::IBV_WC_REM_INV_REQ_ERR);
        let found = other.next();
        assert_eq!((found.wr_id, found.status), (9, sys::IBV_WC_LOC_LEN_ERR));
    });
}

#[test]
fn misaligned_atomics_are_refused_by_the_target() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), Make::default());
        let mut add = Send::new(1, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, &one, &other, (64, 8));
        add.remote += 4;
        one.post(0, &add);
        assert_eq!(one.next().status, sys::IBV_WC_REM_INV_REQ_ERR);
    });
}

#[test]
fn an_empty_receive_queue_holds_the_sender_as_long_as_it_retries() {
    guarded(|| {
        for unkind in [false, true] {
            for rnr_retry in [0_u8, 3, 7] {
                let options = if unkind { strict() } else { still() };
                let fabric = CARD.fabric(&options);
                let mut one = Rank::new(&fabric, 0, Make::default());
                let mut other = Rank::new(&fabric, 1, Make::default());
                one.pair();
                other.pair();
                let mut all = one.attributes(&other, 0);
                all.rnr_retry = rnr_retry;
                one.ready(0, &mut all);
                let mut all = other.attributes(&one, 0);
                other.ready(0, &mut all);
                one.post(0, &Send::new(1, sys::IBV_WR_SEND, &one, &other, (64, 8)));
                // The timer with code 12 is 0.64 ms.
                fabric.advance(1);
                let waits = one.poll().is_none();
                assert_eq!(waits, rnr_retry > 0);
                if !waits {
                    continue;
                }
                fabric.advance(2_000_000);
                let waits = one.poll().is_none();
                assert_eq!(waits, rnr_retry == 7);
                if rnr_retry == 7 {
                    fabric.advance(1_000_000_000_000);
                    assert!(one.poll().is_none());
                    assert!(fabric.counter(1, "not_ready") > 0);
                    assert_eq!(other.receive(0, 9, 0, 64), 0);
                    fabric.advance(700_000);
                    assert_eq!(one.next().status, sys::IBV_WC_SUCCESS);
                }
            }
        }
    });
}

#[test]
fn a_receive_that_comes_in_time_lets_the_sender_go_on() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), Make::default());
        one.post(0, &Send::new(1, sys::IBV_WR_SEND, &one, &other, (64, 8)));
        assert!(one.poll().is_none());
        other.receive(0, 9, 0, 64);
        assert_eq!(one.next().status, sys::IBV_WC_SUCCESS);
        assert_eq!(other.next().wr_id, 9);
    });
}

#[test]
fn a_short_cut_costs_nothing_and_a_long_one_the_pair() {
    guarded(|| {
        for (ns, status) in
            [(RETRIES_NS - 1, sys::IBV_WC_SUCCESS), (RETRIES_NS, sys::IBV_WC_RETRY_EXC_ERR)]
        {
            for down in ["link", "port", "peer's port", "GID"] {
                let mut options = still();
                options.behaviour.by_gid = 1;
                let (fabric, one, other) = two(&options, Make::default());
                let (index, gid) = one.gid();
                let switch = |up| match down {
                    "link" => fabric.link(1, 0, up),
                    "port" => fabric.port(0, up),
                    "GID" => fabric.gid(0, index.into(), 2, Some(gid).filter(|_| up != 0)),
                    _ => fabric.port(1, up),
                };
                switch(0);
                one.post(0, &write(&one, &other, 1));
                fabric.advance(ns);
                switch(1);
                fabric.settle();
                assert_eq!(one.next().status, status, "{down} for {ns} ns");
            }
        }
    });
}

#[test]
fn seven_retries_are_for_ever_as_soft_roce_has_it() {
    guarded(|| {
        for forever in [0, 1] {
            let mut options = still();
            options.behaviour.retry_seven_forever = forever;
            let fabric = CARD.fabric(&options);
            let mut one = Rank::new(&fabric, 0, Make::default());
            let mut other = Rank::new(&fabric, 1, Make::default());
            one.pair();
            other.pair();
            let mut all = one.attributes(&other, 0);
            all.retry_cnt = 7;
            one.ready(0, &mut all);
            fabric.link(0, 1, 0);
            one.post(0, &write(&one, &other, 1));
            fabric.advance(100 * RETRIES_NS);
            assert_eq!(one.poll().is_none(), forever == 1);
        }
    });
}

#[test]
fn a_pair_whose_peer_is_gone_gives_up() {
    guarded(|| {
        let (fabric, one, mut other) = two(&still(), Make::default());
        let gone = other.qps.remove(0);
        // SAFETY: it exists, and is used no more.
        unsafe { (VERBS.ibv_destroy_qp)(gone) };
        one.post(0, &write(&one, &other, 1));
        assert!(one.poll().is_none());
        fabric.advance(RETRIES_NS);
        assert_eq!(one.next().status, sys::IBV_WC_RETRY_EXC_ERR);
    });
}

#[test]
fn the_chosen_request_fails_as_planned() {
    guarded(|| {
        let (fabric, mut one, mut other) = two(&still(), Make::default());
        connect(&mut one, &mut other);
        fabric.fail(0, one.number(1), 2, sys::IBV_WC_REM_OP_ERR);
        for (pair, id) in [(0, 1), (1, 2), (0, 3), (1, 4), (0, 5)] {
            one.set(64, &[id as u8; 8]);
            assert_eq!(one.post(pair, &write(&one, &other, id)), 0);
            let found = one.next();
            assert_eq!(found.wr_id, id);
            let planned = if id == 4 { sys::IBV_WC_REM_OP_ERR } else { sys::IBV_WC_SUCCESS };
            assert_eq!(found.status, planned);
        }
        assert_eq!(one.state(1), sys::IBV_QPS_ERR);
    });
}

#[test]
fn a_chain_is_refused_in_its_middle() {
    guarded(|| {
        let (fabric, one, other) = two(&still(), Make::default());
        fabric.refuse(0, "post_send", 3, libc::ENOMEM);
        let chain: Vec<Send> = (1..6).map(|id| write(&one, &other, id)).collect();
        assert_eq!(one.post_list(0, &chain), Err((3, libc::ENOMEM)));
        assert_eq!((one.next().wr_id, one.next().wr_id), (1, 2));
        assert!(one.poll().is_none());
        assert!(one.post_list(0, &chain[2..]).is_ok());
    });
}

#[test]
fn registrations_polls_and_others_are_refused_once() {
    guarded(|| {
        let (fabric, mut one, other) = two(&still(), Make::default());
        fabric.refuse(0, "reg_mr", 1, libc::EAGAIN);
        let mut byte = 0_u8;
        assert!(register(one.pd, &raw mut byte, 1, ALL).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
        let mr = register(one.pd, &raw mut byte, 1, ALL);
        // SAFETY: made just now.
        unsafe { (VERBS.ibv_dereg_mr)(mr) };
        fabric.refuse(0, "create_qp", 2, libc::ENOMEM);
        one.pair();
        assert!(one.try_pair().is_null());
        fabric.refuse(0, "poll_cq", 1, libc::EIO);
        assert_eq!(one.post(0, &write(&one, &other, 1)), 0);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.poll()));
        assert!(polled.is_err());
        assert_eq!(one.next().wr_id, 1);
    });
}

#[test]
fn a_fatal_error_is_told_and_ends_all_work() {
    guarded(|| {
        let (fabric, one, other) = two(&still(), Make::default());
        fabric.fatal(1, 1);
        assert_eq!(other.event().event_type, sys::IBV_EVENT_DEVICE_FATAL);
        assert_eq!(other.post(0, &write(&other, &one, 1)), libc::EIO);
        let mut byte = 0_u8;
        assert!(register(other.pd, &raw mut byte, 1, ALL).is_null());
        one.post(0, &write(&one, &other, 1));
        fabric.advance(RETRIES_NS);
        assert_eq!(one.next().status, sys::IBV_WC_RETRY_EXC_ERR);
        fabric.use_device(1);
        let mut count = 7;
        // SAFETY: a verbs program.
        unsafe { (VERBS.ibv_free_device_list)((VERBS.ibv_get_device_list)(&raw mut count)) };
        assert_eq!(count, 0);
        fabric.use_device(0);
    });
}

#[test]
fn a_stopped_program_hears_nothing_until_it_goes_on_and_its_card_works() {
    guarded(|| {
        let make = Make { channel: true, ..Make::default() };
        let (fabric, mut one, other) = two(&still(), make);
        one.set(64, &[7; 8]);
        other.receive(0, 9, 0, 64);
        other.arm(false);
        fabric.stop(1, 1);
        let send = Send::new(2, sys::IBV_WR_SEND, &one, &other, (64, 8));
        assert!(one.post_list(0, &[write(&one, &other, 1), send]).is_ok());
        assert_eq!((one.next().wr_id, one.next().wr_id), (1, 2));
        assert!(other.poll().is_none() && !other.is_told(0));
        fabric.stop(1, 0);
        fabric.settle();
        assert_eq!(other.next().wr_id, 9);
    });
}

#[test]
fn what_is_held_stays_in_its_send_queue_while_others_go_on() {
    for options in [Options::kind(), still()] {
        guarded(|| {
            let (fabric, mut one, mut other) = two(&options, Make::default());
            one.set(64, &[7; 8]);
            other.set(64, &[8; 8]);
            fabric.hold(1, 1);
            other.post(0, &write(&other, &one, 1));
            one.post(0, &write(&one, &other, 2));
            assert_eq!(one.next().wr_id, 2);
            fabric.advance(10 * RETRIES_NS);
            fabric.settle();
            assert!(other.poll().is_none() && one.byte(64) == 7);
            other.set(64, &[9; 8]);
            fabric.hold(1, 0);
            assert_eq!(other.next().status, sys::IBV_WC_SUCCESS);
            assert_eq!((one.state(0), other.state(0)), (sys::IBV_QPS_RTS, sys::IBV_QPS_RTS));
        });
    }
}

#[test]
fn a_thread_that_is_kept_takes_nothing_before_it_may_go_on() {
    guarded(|| {
        let (fabric, one, other) = two(&Options::unkind(1), Make::default());
        one.post(0, &write(&one, &other, 1));
        fabric.keep(0, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while fabric.counter(0, "kept") == 0 {
                    std::thread::yield_now();
                }
                fabric.settle();
                fabric.keep(0, 0);
            });
            assert_eq!(one.next().wr_id, 1);
        });
        assert_eq!(fabric.counter(0, "kept"), 1);
    });
}

#[test]
fn ends_that_fail_flush_what_they_have_and_answer_nobody() {
    for options in [Options::kind(), still()] {
        guarded(|| {
            let (fabric, one, other) = two(&options, Make::default());
            fabric.hold(1, 1);
            other.post(0, &write(&other, &one, 1));
            fabric.break_pairs(1, 0);
            let found = other.next();
            assert_eq!((found.wr_id, found.status), (1, sys::IBV_WC_WR_FLUSH_ERR));
            assert_eq!((one.state(0), other.state(0)), (sys::IBV_QPS_RTS, sys::IBV_QPS_ERR));
            one.post(0, &write(&one, &other, 2));
            fabric.advance(RETRIES_NS);
            assert_eq!(one.next().status, sys::IBV_WC_RETRY_EXC_ERR);
        });
    }
}

#[test]
fn requests_are_counted() {
    guarded(|| {
        let (fabric, one, other) = two(&Options::kind(), Make::default());
        let send = write(&one, &other, 1);
        let flags = sys::IBV_SEND_INLINE | sys::IBV_SEND_SIGNALED;
        assert!(one.post_list(0, &[send.flags(0), send.flags(flags)]).is_ok());
        one.post(0, &Send::new(1, sys::IBV_WR_RDMA_READ, &one, &other, (64, 8)));
        let count = |name| fabric.counter(0, name);
        assert_eq!((count("write"), count("read"), count("send")), (2, 1, 0));
        assert_eq!((count("inline"), count("signaled"), count("completions")), (1, 2, 2));
        assert_eq!((count("posts"), count("receives")), (2, 0));
        assert_eq!(fabric.counter(1, "write"), 0);
    });
}
