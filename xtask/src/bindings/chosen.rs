//! What of the header is bound: all that a library with reliable connections needs.

/// Functions of the library. `libibverbs-sys/src/lib.rs` says which of them may be missing.
const FUNCTIONS: [&str; 43] = [
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_create_srq",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_destroy_srq",
    "ibv_event_type_str",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_guid",
    "ibv_get_device_index",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_is_fork_initialized",
    "ibv_modify_qp",
    "ibv_modify_srq",
    "ibv_node_type_str",
    "ibv_open_device",
    "ibv_port_state_str",
    "ibv_query_device",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_query_qp",
    "ibv_query_qp_data_in_order",
    "ibv_query_srq",
    "ibv_reg_mr",
    "ibv_reg_mr_iova",
    "ibv_reg_mr_iova2",
    "ibv_resize_cq",
    "ibv_wc_status_str",
];

/// Types that no function or other type names: flags that are passed as numbers, and records that
/// are reached through a table only.
const TYPES: [&str; 18] = [
    "ib_uverbs_access_flags",
    "ib_uverbs_query_port_flags",
    "ibv_access_flags",
    "ibv_device_attr_ex",
    "ibv_device_cap_flags",
    "ibv_gid_type",
    "ibv_mtu",
    "ibv_port_attr",
    "ibv_port_cap_flags",
    "ibv_port_cap_flags2",
    "ibv_qp_attr_mask",
    "ibv_query_qp_data_in_order_caps",
    "ibv_rate",
    "ibv_send_flags",
    "ibv_srq_attr_mask",
    "ibv_transport_type",
    "ibv_wc_flags",
    "verbs_context",
];

/// Constants of an enumeration without a name.
const CONSTANTS: &str = "IBV_LINK_LAYER_.*";

/// Types behind pointers that only functions take which are not used here.
pub(super) const OPAQUE: [&str; 34] = [
    "_compat_ibv_port_attr",
    "ibv_ah",
    "ibv_alloc_dm_attr",
    "ibv_counter_attach_attr",
    "ibv_counters",
    "ibv_counters_init_attr",
    "ibv_cq_ex",
    "ibv_cq_init_attr_ex",
    "ibv_dm",
    "ibv_flow",
    "ibv_flow_action",
    "ibv_flow_action_esp_attr",
    "ibv_flow_attr",
    "ibv_modify_cq_attr",
    "ibv_mw",
    "ibv_mw_bind",
    "ibv_ops_wr",
    "ibv_parent_domain_init_attr",
    "ibv_qp_ex",
    "ibv_qp_init_attr_ex",
    "ibv_qp_open_attr",
    "ibv_qp_rate_limit_attr",
    "ibv_rwq_ind_table",
    "ibv_rwq_ind_table_init_attr",
    "ibv_srq_init_attr_ex",
    "ibv_td",
    "ibv_td_init_attr",
    "ibv_values_ex",
    "ibv_wq",
    "ibv_wq_attr",
    "ibv_wq_init_attr",
    "ibv_xrcd",
    "ibv_xrcd_init_attr",
    "verbs_ex_private",
];

/// What only those refer to. A name that something else needs is missed by the compiler.
const UNUSED: [&str; 20] = [
    "__syscall_slong_t",
    "__time_t",
    "ib_uverbs_flow_action_esp.*",
    "ibv_counter_description",
    "ibv_flow_attr_type",
    "ibv_moderate_cq",
    "ibv_ops_wr_.*",
    "ibv_poll_cq_attr",
    "ibv_qp_create_flags",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_init_attr_mask",
    "ibv_qp_open_attr_mask",
    "ibv_rx_hash_conf",
    "ibv_srq_init_attr_mask",
    "ibv_srq_type",
    "ibv_tm_cap",
    "ibv_wc_tm_info",
    "ibv_wq_state",
    "ibv_wq_type",
    "timespec",
];

/// bindgen's options, but for the header and what the C compiler needs.
pub(super) fn arguments() -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--no-doc-comments",
        "--no-layout-tests",
        "--no-rustfmt-bindings",
        "--disable-header-comment",
        "--no-prepend-enum-name",
        "--size_t-is-usize",
        "--use-core",
        "--ctypes-prefix=libc",
        "--default-enum-style=consts",
        // From the crate libc, or not used.
        "--blocklist-type=(_*pthread.*|__atomic_.*|_*s?size_t)",
    ]
    .map(str::to_owned)
    .into();
    for name in OPAQUE.into_iter().chain(UNUSED) {
        arguments.extend(["--blocklist-type".to_owned(), name.to_owned()]);
    }
    // bindgen puts a sign before and behind the whole, so it needs the parentheses.
    arguments.extend(["--allowlist-function".to_owned(), format!("({})", FUNCTIONS.join("|"))]);
    arguments.extend(["--allowlist-type".to_owned(), format!("({})", TYPES.join("|"))]);
    arguments.extend(["--allowlist-var".to_owned(), CONSTANTS.to_owned()]);
    arguments
}
