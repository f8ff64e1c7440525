//! What is refused, and with which error.

use std::ptr::null_mut;

use gaspi_mock_card::Options;
use libibverbs_sys as sys;

use crate::rig::{ALL, CARD, Make, Rank, Send, VERBS, guarded, open, register, still, strict, two};

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn each_object_has_a_limit_down_to_one() {
    guarded(|| {
        let mut options = still();
        options.set("max_qp=1,max_cq=1,max_mr=1,max_srq=1,max_pd=1").unwrap();
        let fabric = CARD.fabric(&options);
        let mut rank = Rank::new(&fabric, 0, Make { shared: 4, ..Make::default() });
        rank.pair();
        assert!(rank.try_pair().is_null());
        assert_eq!(errno(), libc::ENOMEM);
        let mut byte = 0_u8;
        assert!(register(rank.pd, &raw mut byte, 1, ALL).is_null());
        assert_eq!(errno(), libc::ENOMEM);
        // SAFETY: a verbs program.
        unsafe {
            assert!((VERBS.ibv_create_cq)(rank.context, 1, null_mut(), null_mut(), 0).is_null());
            assert_eq!(errno(), libc::ENOMEM);
            assert!((VERBS.ibv_alloc_pd)(rank.context).is_null());
            assert_eq!(errno(), libc::ENOMEM);
            let mut wanted: sys::ibv_srq_init_attr = std::mem::zeroed();
            (wanted.attr.max_wr, wanted.attr.max_sge) = (1, 1);
            assert!((VERBS.ibv_create_srq)(rank.pd, &raw mut wanted).is_null());
            assert_eq!(errno(), libc::ENOMEM);
        }
    });
}

#[test]
fn sizes_above_their_limits_are_invalid() {
    guarded(|| {
        for limit in ["max_qp_wr=15", "max_sge=1", "max_inline=63"] {
            let fabric = CARD.fabric(&still());
            let rank = Rank::new(&fabric, 0, Make::default());
            let exact = rank.try_pair();
            assert!(!exact.is_null());
            // SAFETY: made just now.
            unsafe { (VERBS.ibv_destroy_qp)(exact) };
            fabric.set(0, limit);
            assert!(rank.try_pair().is_null(), "{limit}");
            assert_eq!(errno(), libc::EINVAL, "{limit}");
        }
        let mut options = still();
        options.set("max_cqe=64").unwrap();
        let fabric = CARD.fabric(&options);
        let rank = Rank::new(&fabric, 0, Make::default());
        // SAFETY: a verbs program.
        let queue = unsafe { (VERBS.ibv_create_cq)(rank.context, 65, null_mut(), null_mut(), 0) };
        assert!(queue.is_null());
        assert_eq!(errno(), libc::EINVAL);
    });
}

#[test]
fn registered_bytes_are_limited_by_device() {
    guarded(|| {
        let fabric = CARD.fabric(&still());
        fabric.set(1, "max_registered=4097");
        let (one, other) =
            (Rank::new(&fabric, 0, Make::default()), Rank::new(&fabric, 1, Make::default()));
        let mut bytes = [0_u8; 2];
        for (rank, length, works) in [(&one, 2, true), (&other, 2, false), (&other, 1, true)] {
            let mr = register(rank.pd, bytes.as_mut_ptr(), length, ALL);
            assert_eq!(!mr.is_null(), works);
            if works {
                // SAFETY: made just now.
                unsafe { (VERBS.ibv_dereg_mr)(mr) };
            } else {
                assert_eq!(errno(), libc::ENOMEM);
            }
        }
    });
}

#[test]
fn memory_that_is_not_there_cannot_be_registered() {
    guarded(|| {
        let fabric = CARD.fabric(&still());
        let rank = Rank::new(&fabric, 0, Make::default());
        assert!(register(rank.pd, 4096 as *mut u8, 4096, ALL).is_null());
        assert_eq!(errno(), libc::EFAULT);
    });
}

#[test]
fn slots_of_a_send_queue_are_freed_by_polled_completions_only() {
    guarded(|| {
        let (fabric, one, other) = two(&still(), Make { sends: 3, ..Make::default() });
        let write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8));
        let list = [write.flags(0), write.flags(0), write, write];
        assert_eq!(one.post_list(0, &list), Err((1, libc::ENOMEM)));
        fabric.settle();
        assert_eq!(one.post(0, &write), libc::ENOMEM);
        one.next();
        assert!(one.post_list(0, &list[..3]).is_ok());
        assert_eq!(one.next().wr_id, 1);
        assert!(one.poll().is_none(), "unsignalled requests tell nothing");
    });
}

#[test]
fn receives_are_limited_by_their_queue() {
    guarded(|| {
        for shared in [0, 2] {
            let make = Make { receives: 2, shared, ..Make::default() };
            let (_fabric, one, _other) = two(&still(), make);
            assert_eq!(one.receive(0, 1, 0, 8), 0);
            assert_eq!(one.receive(0, 2, 0, 8), 0);
            assert_eq!(one.receive(0, 3, 0, 8), libc::ENOMEM);
        }
    });
}

#[test]
fn requests_that_no_driver_takes_are_refused() {
    guarded(|| {
        let mut options = still();
        options.set("max_msg_sz=512,atomic_cap=0").unwrap();
        let (_fabric, one, other) = two(&options, Make::default());
        let write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (0, 512));
        assert_eq!(one.post(0, &write), 0);
        let inline = sys::IBV_SEND_SIGNALED | sys::IBV_SEND_INLINE;
        let refused = [
            Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (0, 513)),
            Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (0, 65)).flags(inline),
            Send::new(1, sys::IBV_WR_RDMA_READ, &one, &other, (0, 8)).flags(inline),
            Send::new(1, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, &one, &other, (0, 8)),
            Send::new(1, 99, &one, &other, (0, 8)),
        ];
        for send in refused {
            assert_eq!(one.post(0, &send), libc::EINVAL, "{send:?}");
        }
        let inline = Send::new(1, sys::IBV_WR_SEND, &one, &other, (0, 64)).flags(inline);
        assert_eq!(one.post(0, &inline), 0);
    });
}

#[test]
fn reads_beyond_what_the_peer_accepts_are_an_error() {
    guarded(|| {
        for (accepted, status) in [(2, sys::IBV_WC_REM_INV_REQ_ERR), (4, sys::IBV_WC_SUCCESS)] {
            let fabric = CARD.fabric(&strict());
            let mut one = Rank::new(&fabric, 0, Make::default());
            let mut other = Rank::new(&fabric, 1, Make::default());
            one.pair();
            other.pair();
            let mut all = one.attributes(&other, 0);
            one.ready(0, &mut all);
            let mut all = other.attributes(&one, 0);
            all.max_dest_rd_atomic = accepted;
            other.ready(0, &mut all);
            let mut worst = 0;
            for _ in 0..20 {
                fabric.link(0, 1, 0);
                let read = Send::new(1, sys::IBV_WR_RDMA_READ, &one, &other, (64, 8));
                if one.post_list(0, &[read; 4]).is_err() {
                    break;
                }
                fabric.link(0, 1, 1);
                for _ in 0..4 {
                    let found = one.next().status;
                    if found != sys::IBV_WC_WR_FLUSH_ERR {
                        worst = worst.max(found);
                    }
                }
            }
            assert_eq!(worst, status, "{accepted} accepted");
        }
    });
}

#[test]
fn one_completion_too_many_is_an_event_and_ends_the_queue() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), Make { entries: 2, ..Make::default() });
        let write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8));
        assert!(one.post_list(0, &[write; 2]).is_ok());
        assert!(!one.has_event());
        assert_eq!(one.post(0, &write), 0);
        let event = one.event();
        assert_eq!(event.event_type, sys::IBV_EVENT_CQ_ERR);
        // SAFETY: the event is about a completion queue.
        assert_eq!(unsafe { event.element.cq }, one.cq);
        one.next();
        one.next();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.poll())).is_err());
    });
}

#[test]
fn leaks_are_counted() {
    guarded(|| {
        let fabric = CARD.fabric(&Options::kind());
        let mut rank = Rank::new(&fabric, 0, Make { shared: 2, channel: true, ..Make::default() });
        rank.pair();
        let live = fabric.live(0);
        assert_eq!((live.contexts, live.domains, live.regions, live.channels), (1, 1, 1, 1));
        assert_eq!((live.queues, live.shared, live.pairs), (1, 1, 1));
        assert_eq!(live.registered_bytes, 4096);
        drop(rank);
        fabric.use_device(0);
        let leaked = open();
        let live = fabric.end();
        assert_eq!((live.contexts, live.pairs, live.registered_bytes), (1, 0, 0));
        // SAFETY: it was opened, and a fabric that ended keeps what programs have.
        assert_eq!(unsafe { (VERBS.ibv_close_device)(leaked) }, 0);
    });
}

#[test]
fn devices_and_ports_show_what_is_set() {
    guarded(|| {
        let fabric = CARD.fabric(&still());
        fabric.set(2, "max_qp=5,max_msg_sz=8388608,mtu=3,gids=4,atomic_cap=2");
        let rank = Rank::new(&fabric, 2, Make::default());
        // SAFETY: a verbs program.
        unsafe {
            let name =
                std::ffi::CStr::from_ptr((VERBS.ibv_get_device_name)((*rank.context).device));
            let expected = format!("mock{}_2", fabric.number());
            assert_eq!(name.to_str(), Ok(expected.as_str()));
            let mut device: sys::ibv_device_attr = std::mem::zeroed();
            assert_eq!((VERBS.ibv_query_device)(rank.context, &raw mut device), 0);
            assert_eq!((device.max_qp, device.atomic_cap), (5, sys::IBV_ATOMIC_GLOB));
            let mut port: sys::ibv_port_attr = std::mem::zeroed();
            let query = sys::inline::ibv_query_port;
            assert_eq!(query(&VERBS, rank.context, 1, &raw mut port), 0);
            assert_eq!((port.active_mtu, port.max_msg_sz), (sys::IBV_MTU_1024, 8 << 20));
            assert_eq!(port.state, sys::IBV_PORT_ACTIVE);
            assert_ne!(query(&VERBS, rank.context, 2, &raw mut port), 0);
        }
    });
}
