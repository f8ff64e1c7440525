//! Channels, armed queues, limits of shared receive queues, events of devices.

use std::ptr::null_mut;

use gaspi_mock_card::Options;
use libibverbs_sys as sys;

use crate::rig::{Make, Rank, Send, VERBS, guarded, still, two};

fn channel() -> Make {
    Make { channel: true, shared: 8, ..Make::default() }
}

fn take_event(rank: &Rank) {
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: a verbs program.
    unsafe {
        let taken = (VERBS.ibv_get_cq_event)(rank.channel, &raw mut cq, &raw mut context);
        assert_eq!((taken, cq), (0, rank.cq));
        (VERBS.ibv_ack_cq_events)(cq, 1);
    }
}

#[test]
fn an_armed_queue_tells_its_next_completion_once() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), channel());
        let write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8));
        one.post(0, &write);
        one.arm(false);
        assert!(!one.is_told(0), "what was there before tells nothing");
        one.post(0, &write);
        one.post(0, &write);
        assert!(one.is_told(0));
        take_event(&one);
        assert!(!one.is_told(0), "one event for each arming");
    });
}

#[test]
fn arming_for_solicited_messages_lets_others_pass() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), channel());
        (0..4).for_each(|id| assert_eq!(other.receive(0, id, 0, 64), 0));
        other.arm(true);
        let send = Send::new(1, sys::IBV_WR_SEND, &one, &other, (64, 8));
        one.post(0, &send);
        assert!(!other.is_told(0));
        one.post(0, &send.flags(sys::IBV_SEND_SOLICITED));
        assert!(other.is_told(0));
        take_event(&other);
    });
}

#[test]
fn errors_tell_queues_that_are_armed_for_solicited_messages() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), channel());
        one.arm(true);
        let mut write = Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8));
        one.post(0, &write);
        assert!(!one.is_told(0));
        write.key ^= 1;
        one.post(0, &write);
        assert!(one.is_told(0));
    });
}

#[test]
fn a_sleeper_is_woken_though_nobody_polls() {
    guarded(|| {
        let (_fabric, one, other) = two(&Options::unkind(3), channel());
        other.receive(0, 1, 0, 64);
        other.arm(false);
        one.post(0, &Send::new(1, sys::IBV_WR_SEND, &one, &other, (64, 8)));
        assert!(other.is_told(10_000));
    });
}

#[test]
fn a_nonblocking_channel_that_has_nothing_says_so() {
    guarded(|| {
        let (_fabric, one, _other) = two(&still(), channel());
        // SAFETY: the descriptor is open; then a verbs program.
        unsafe {
            let fd = (*one.channel).fd;
            assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
            let (mut cq, mut context) = (null_mut(), null_mut());
            let taken = (VERBS.ibv_get_cq_event)(one.channel, &raw mut cq, &raw mut context);
            assert_eq!(taken, -1);
        }
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    });
}

#[test]
fn events_of_a_destroyed_queue_are_gone() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), channel());
        // SAFETY: a verbs program.
        unsafe {
            let number = (*one.cq).handle;
            let more = (VERBS.ibv_create_cq)(one.context, 4, null_mut(), one.channel, 0);
            assert_ne!((*more).handle, number);
            assert_eq!(sys::inline::ibv_req_notify_cq(more, 0), 0);
            assert_eq!((VERBS.ibv_destroy_cq)(more), 0);
        }
        one.arm(false);
        one.post(0, &Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8)));
        take_event(&one);
    });
}

#[test]
fn a_shared_receive_queue_tells_its_limit_once() {
    guarded(|| {
        let (_fabric, one, other) = two(&still(), channel());
        (0..5).for_each(|id| assert_eq!(other.receive(0, id, 0, 64), 0));
        let mut limit = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 4 };
        let mask = sys::IBV_SRQ_LIMIT as i32;
        // SAFETY: a verbs program.
        assert_eq!(unsafe { (VERBS.ibv_modify_srq)(other.srq, &raw mut limit, mask) }, 0);
        let send = Send::new(1, sys::IBV_WR_SEND, &one, &other, (64, 8));
        one.post(0, &send);
        assert!(!other.has_event(), "4 of 4 are left");
        one.post(0, &send);
        let event = other.event();
        assert_eq!(event.event_type, sys::IBV_EVENT_SRQ_LIMIT_REACHED);
        // SAFETY: the event is about a shared receive queue.
        assert_eq!(unsafe { event.element.srq }, other.srq);
        one.post(0, &send);
        assert!(!other.has_event());
    });
}

#[test]
fn ports_and_gids_tell_of_their_changes() {
    guarded(|| {
        let (fabric, one, other) = two(&still(), Make::default());
        let (index, gid) = one.gid();
        fabric.port(0, 0);
        assert_eq!(one.event().event_type, sys::IBV_EVENT_PORT_ERR);
        fabric.move_gids(0, 2);
        assert_eq!(one.event().event_type, sys::IBV_EVENT_GID_CHANGE);
        assert_eq!(one.gid(), (index + 2, gid));
        fabric.port(0, 1);
        let event = one.event();
        assert_eq!(event.event_type, sys::IBV_EVENT_PORT_ACTIVE);
        // SAFETY: the event is about a port.
        assert_eq!(unsafe { event.element.port_num }, 1);
        assert!(!other.has_event(), "events of another device");
        fabric.gid(0, 7, 2, Some([3; 16]));
        let query = VERBS._ibv_query_gid_table.expect("the mock has it");
        let size = size_of::<sys::ibv_gid_entry>();
        // SAFETY: integers and bytes; then a verbs program.
        unsafe {
            let mut table: [sys::ibv_gid_entry; 8] = std::mem::zeroed();
            assert_eq!(query(one.context, table.as_mut_ptr(), 8, 0, size), 5);
            assert!(table[..5].iter().any(|entry| entry.gid.raw == [3; 16]));
            assert!(query(one.context, table.as_mut_ptr(), 4, 0, size) < 0);
        }
    });
}

#[test]
fn a_pair_that_fails_is_told_of_ahead_of_what_it_flushes() {
    guarded(|| {
        let (fabric, one, other) = two(&still(), Make::default());
        fabric.hold(0, 1);
        one.post(0, &Send::new(1, sys::IBV_WR_RDMA_WRITE, &one, &other, (64, 8)));
        fabric.break_told(0, 1);
        let event = one.event();
        assert_eq!(event.event_type, sys::IBV_EVENT_QP_FATAL);
        // SAFETY: the event is about a queue pair.
        assert_eq!(unsafe { event.element.qp }, one.qps[0]);
        fabric.hold(0, 0);
        assert_eq!(one.next().status, sys::IBV_WC_WR_FLUSH_ERR);
        assert!(!other.has_event(), "the other end hears nothing");
    });
}
