//! States of pairs, and the attributes that each change needs.

use libibverbs_sys as sys;

use crate::rig::{CARD, Make, Rank, STEPS, Send, connect, guarded, still, two};

#[test]
fn a_missing_attribute_is_refused_in_each_step() {
    guarded(|| {
        let fabric = CARD.fabric(&still());
        let mut one = Rank::new(&fabric, 0, Make::default());
        let mut other = Rank::new(&fabric, 1, Make::default());
        one.pair();
        other.pair();
        let mut all = one.attributes(&other, 0);
        for (state, mask) in STEPS {
            all.qp_state = state;
            for bit in (1..21).map(|bit| 1_u32 << bit) {
                let known = bit & (mask | sys::IBV_QP_CUR_STATE | sys::IBV_QP_ACCESS_FLAGS);
                if mask & bit != 0 || known == 0 && bit != sys::IBV_QP_PKEY_INDEX {
                    let wrong = mask ^ bit;
                    if bit != sys::IBV_QP_MIN_RNR_TIMER || mask & bit != 0 {
                        assert_eq!(one.modify(0, &mut all, wrong), libc::EINVAL, "{bit:#x}");
                    }
                }
            }
            assert_eq!(one.modify(0, &mut all, mask), 0);
        }
        all.qp_state = sys::IBV_QPS_INIT;
        assert_eq!(one.modify(0, &mut all, STEPS[0].1), libc::EINVAL, "from RTS to INIT");
    });
}

#[test]
fn wrong_values_are_refused() {
    guarded(|| {
        let fabric = CARD.fabric(&still());
        fabric.set(0, "mtu=3");
        let mut one = Rank::new(&fabric, 0, Make::default());
        let mut other = Rank::new(&fabric, 1, Make::default());
        one.pair();
        other.pair();
        let right = one.attributes(&other, 0);
        type Spoil = fn(&mut sys::ibv_qp_attr);
        let spoils: [&[Spoil]; 3] = [
            &[|all| all.port_num = 2, |all| all.pkey_index = 1],
            &[
                |all| all.path_mtu = sys::IBV_MTU_2048,
                |all| all.ah_attr.is_global = 0,
                |all| all.ah_attr.grh.sgid_index = 7,
                |all| all.ah_attr.grh.sgid_index = 200,
                |all| all.max_dest_rd_atomic = 17,
                |all| all.rq_psn = 1 << 24,
                |all| all.min_rnr_timer = 32,
            ],
            &[
                |all| all.timeout = 32,
                |all| all.retry_cnt = 8,
                |all| all.rnr_retry = 8,
                |all| all.max_rd_atomic = 17,
            ],
        ];
        for ((state, mask), spoils) in STEPS.into_iter().zip(spoils) {
            for (at, spoil) in spoils.iter().enumerate() {
                let mut all = right;
                all.qp_state = state;
                spoil(&mut all);
                assert_eq!(one.modify(0, &mut all, mask), libc::EINVAL, "{state} {at}");
            }
            let mut all = right;
            all.qp_state = state;
            assert_eq!(one.modify(0, &mut all, mask), 0);
        }
    });
}

#[test]
fn a_pair_that_is_not_ready_takes_no_requests() {
    guarded(|| {
        let fabric = CARD.fabric(&still());
        let mut one = Rank::new(&fabric, 0, Make::default());
        let mut other = Rank::new(&fabric, 1, Make::default());
        one.pair();
        other.pair();
        let write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8));
        let mut all = one.attributes(&other, 0);
        assert_eq!(one.receive(0, 1, 0, 8), libc::EINVAL, "a receive in RESET");
        for (state, mask) in STEPS {
            assert_eq!(one.post(0, &write), libc::EINVAL, "before {state}");
            all.qp_state = state;
            assert_eq!(one.modify(0, &mut all, mask), 0);
            assert_eq!(one.receive(0, 1, 0, 8), 0);
        }
        assert_eq!(one.post(0, &write), 0);
    });
}

#[test]
fn a_pair_in_error_flushes_all_it_has_and_all_that_comes() {
    guarded(|| {
        for unkind in [false, true] {
            let options = if unkind { crate::rig::strict() } else { still() };
            let (fabric, one, other) = two(&options, Make::default());
            fabric.link(0, 1, 0);
            let write = |id| Send::new(id, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8)).flags(0);
            assert!(one.post_list(0, &[write(1), write(2)]).is_ok());
            assert_eq!(one.receive(0, 3, 0, 8), 0);
            let mut all = one.attributes(&other, 0);
            all.qp_state = sys::IBV_QPS_ERR;
            assert_eq!(one.modify(0, &mut all, sys::IBV_QP_STATE), 0);
            let flushed: Vec<_> = (0..3).map(|_| one.next()).collect();
            assert!(flushed.iter().all(|entry| entry.status == sys::IBV_WC_WR_FLUSH_ERR));
            let mut ids: Vec<u64> = flushed.iter().map(|entry| entry.wr_id).collect();
            ids.sort_unstable();
            assert_eq!(ids, [1, 2, 3]);
            assert_eq!(one.post(0, &write(4)), 0);
            assert_eq!(one.next().status, sys::IBV_WC_WR_FLUSH_ERR);
            // All slots are free again: reset, and used as often as it has slots.
            all.qp_state = sys::IBV_QPS_RESET;
            assert_eq!(one.modify(0, &mut all, sys::IBV_QP_STATE), 0);
            assert_eq!(one.state(0), sys::IBV_QPS_RESET);
            assert_eq!(other.state(0), sys::IBV_QPS_RTS, "the other end is not told");
        }
    });
}

#[test]
fn completions_of_a_destroyed_pair_are_gone() {
    guarded(|| {
        let (_fabric, mut one, mut other) = two(&still(), Make::default());
        connect(&mut one, &mut other);
        let write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8));
        assert_eq!(one.post(0, &write), 0);
        assert_eq!(one.post(1, &Send { id: 2, ..write }), 0);
        let first = one.qps.remove(0);
        // SAFETY: it exists, and is used no more.
        assert_eq!(unsafe { (crate::rig::VERBS.ibv_destroy_qp)(first) }, 0);
        assert_eq!(one.next().wr_id, 2);
        assert!(one.poll().is_none());
    });
}

#[test]
fn what_is_in_use_cannot_be_destroyed() {
    guarded(|| {
        let make = Make { shared: 2, channel: true, ..Make::default() };
        let (_fabric, one, _other) = two(&still(), make);
        let verbs = &*crate::rig::VERBS;
        // SAFETY: all exist, and stay as the calls are refused.
        unsafe {
            assert_eq!((verbs.ibv_destroy_cq)(one.cq), libc::EBUSY);
            assert_eq!((verbs.ibv_destroy_srq)(one.srq), libc::EBUSY);
            assert_eq!((verbs.ibv_dealloc_pd)(one.pd), libc::EBUSY);
            assert_eq!((verbs.ibv_destroy_comp_channel)(one.channel), libc::EBUSY);
        }
    });
}

#[test]
fn message_numbers_must_match() {
    guarded(|| {
        let fabric = CARD.fabric(&still());
        let mut one = Rank::new(&fabric, 0, Make::default());
        let mut other = Rank::new(&fabric, 1, Make::default());
        one.pair();
        other.pair();
        let mut all = one.attributes(&other, 0);
        one.ready(0, &mut all);
        let mut all = other.attributes(&one, 0);
        all.rq_psn = 78;
        other.ready(0, &mut all);
        let write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8));
        assert_eq!(one.post(0, &write), 0);
        fabric.advance(10_000_000_000);
        assert_eq!(one.next().status, sys::IBV_WC_RETRY_EXC_ERR);
    });
}

#[test]
fn packets_larger_than_the_peer_takes_are_an_error() {
    guarded(|| {
        let fabric = CARD.fabric(&still());
        let mut one = Rank::new(&fabric, 0, Make::default());
        let mut other = Rank::new(&fabric, 1, Make::default());
        one.pair();
        other.pair();
        let mut all = one.attributes(&other, 0);
        all.path_mtu = sys::IBV_MTU_2048;
        one.ready(0, &mut all);
        let mut all = other.attributes(&one, 0);
        other.ready(0, &mut all);
        for (length, status) in [(1024, sys::IBV_WC_SUCCESS), (1025, sys::IBV_WC_REM_INV_REQ_ERR)] {
            let write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (0, length));
            assert_eq!(one.post(0, &write), 0);
            assert_eq!(one.next().status, status);
        }
    });
}
