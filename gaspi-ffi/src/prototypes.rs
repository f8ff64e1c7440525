//! The Rust signatures against the C headers, by the C compiler, in both directions; layout and
//! constants likewise.

use crate::config::gaspi_config_t;
use crate::macros::Prototype;
use crate::types::*;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

const HEADERS: [&str; 5] =
    ["GASPI.h", "GASPI_Ext.h", "GASPI_Threads.h", "PGASPI.h", "gaspi_collectives.h"];

fn procedures() -> Vec<&'static Prototype> {
    [
        crate::atomics::PROTOTYPES,
        crate::clock::PROTOTYPES,
        crate::coll::PROTOTYPES,
        crate::coll::fusion::PROTOTYPES,
        crate::coll::lists::PROTOTYPES,
        crate::coll::reductions::PROTOTYPES,
        crate::coll::requests::PROTOTYPES,
        crate::collectives::PROTOTYPES,
        crate::config::PROTOTYPES,
        crate::environment::PROTOTYPES,
        crate::environment::PLAIN_PROTOTYPES,
        crate::error::PROTOTYPES,
        crate::error::PLAIN_PROTOTYPES,
        crate::getters::PROTOTYPES,
        crate::groups::PROTOTYPES,
        crate::one_sided::PROTOTYPES,
        crate::passive::PROTOTYPES,
        crate::process::PROTOTYPES,
        crate::queues::PROTOTYPES,
        crate::segments::PROTOTYPES,
        crate::statistics::PROTOTYPES,
        crate::statistics::PLAIN_PROTOTYPES,
        crate::threads::PROTOTYPES,
        crate::threads::PLAIN_PROTOTYPES,
        crate::topology::PROTOTYPES,
        crate::topology::PLAIN_PROTOTYPES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Runs the C compiler on a text; its output, or its complaints.
fn compile(arguments: &[&str], text: &str) -> Result<String, String> {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../include");
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()))
        .args(["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I", include, "-x", "c"])
        .args(arguments)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the C compiler runs");
    compiler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = compiler.wait_with_output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn includes() -> String {
    HEADERS.iter().fold("#include <stddef.h>\n".to_owned(), |mut text, header| {
        writeln!(text, "#include \"{header}\"").unwrap();
        text
    })
}

/// A Rust type in C; aliases have C's names.
fn c_type(rust: &str) -> String {
    // What has passed through two macros has a blank more.
    let rust = rust.strip_prefix("* ").map_or_else(|| rust.to_owned(), |rest| format!("*{rest}"));
    if let Some(pointee) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("{} const *", c_type(pointee));
    }
    match rust.as_str() {
        "()" | "c_void" => "void".to_owned(),
        "u64" => "uint64_t".to_owned(),
        "f64" => "double".to_owned(),
        "c_int" => "int".to_owned(),
        "thread_function" => "__typeof__(void *(*)(void *))".to_owned(),
        name => name.to_owned(),
    }
}

fn declaration(procedure: &Prototype, name: &str) -> String {
    let arguments: Vec<_> = procedure.arguments.iter().map(|rust| c_type(rust)).collect();
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    format!("{} {name}({arguments})", c_type(procedure.returns))
}

/// Names of the functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let text = compile(&["-E", "-P"], &includes()).unwrap();
    let mut names = BTreeSet::new();
    // A parenthesis that a star follows belongs to a pointer to a function.
    for (at, _) in text.match_indices('(').filter(|(at, _)| !text[at + 1..].starts_with('*')) {
        let before = text[..at].trim_end();
        let start = before
            .rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .map_or(0, |position| position + 1);
        let name = &before[start..];
        if name.starts_with("gaspi_") || name.starts_with("pgaspi_") {
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
fn every_signature_is_that_of_the_header() {
    let mut text = includes();
    for procedure in procedures() {
        for prefix in ["gaspi_", "pgaspi_"] {
            let name = format!("{prefix}{}", procedure.name);
            // The use fails if no header declares it, the redeclaration if one does differently.
            writeln!(text, "__typeof__({name}) *use_of_{name} = {name};").unwrap();
            writeln!(text, "{};", declaration(procedure, &name)).unwrap();
        }
    }
    for (name, form) in crate::printf::VARIADIC {
        for prefix in ["gaspi_", "pgaspi_"] {
            let name = format!("{prefix}{name}");
            writeln!(text, "__typeof__({name}) *use_of_{name} = {name};").unwrap();
            writeln!(text, "{};", form.replace("{}", &name)).unwrap();
        }
    }
    if let Err(complaints) = compile(&["-fsyntax-only"], &text) {
        panic!("the headers and the Rust signatures differ:\n{complaints}");
    }
}

#[test]
fn a_wrong_signature_is_noticed() {
    let wrong = Prototype {
        name: "proc_rank",
        returns: "gaspi_return_t",
        arguments: &["*mut gaspi_number_t"],
    };
    let text = format!("{}{};", includes(), declaration(&wrong, "gaspi_proc_rank"));
    assert!(compile(&["-fsyntax-only"], &text).is_err());
}

#[test]
fn every_declared_function_is_defined() {
    let defined: BTreeSet<String> = procedures()
        .iter()
        .map(|procedure| procedure.name)
        .chain(crate::printf::VARIADIC.iter().map(|(name, _)| *name))
        .flat_map(|name| [format!("gaspi_{name}"), format!("pgaspi_{name}")])
        .collect();
    let declared = declared();
    let missing: Vec<_> = declared.difference(&defined).collect();
    assert!(missing.is_empty(), "declared but not defined: {missing:?}");
    let hidden: Vec<_> = defined.difference(&declared).collect();
    assert!(hidden.is_empty(), "defined but not declared: {hidden:?}");
}

/// Has the C compiler check that expressions have the values they have in Rust.
fn assert_equal(values: impl IntoIterator<Item = (String, i64)>) {
    let mut text = includes();
    for (expression, value) in values {
        writeln!(text, "_Static_assert((long)({expression}) == {value}L, \"in Rust: {value}\");")
            .unwrap();
    }
    if let Err(complaints) = compile(&["-fsyntax-only"], &text) {
        panic!("the headers and Rust differ:\n{complaints}");
    }
}

#[test]
fn types_have_the_sizes_of_c() {
    macro_rules! sizes {
        ($($name:ident)*) => {
            [$((format!("sizeof({})", stringify!($name)), size_of::<$name>() as i64)),*]
        };
    }
    assert_equal(sizes! {
        gaspi_char gaspi_uchar gaspi_int gaspi_uint gaspi_ulong gaspi_float gaspi_timeout_t
        gaspi_rank_t gaspi_group_t gaspi_number_t gaspi_pointer_t gaspi_reduce_state_t
        gaspi_queue_id_t gaspi_size_t gaspi_offset_t gaspi_segment_id_t gaspi_string_t
        gaspi_time_t gaspi_atomic_value_t gaspi_notification_id_t gaspi_notification_t
        gaspi_statistic_counter_t gaspi_cycles_t gaspi_memory_description_t gaspi_state_t
        gaspi_state_vector_t gaspi_return_t gaspi_operation_t gaspi_datatype_t gaspi_network_t
        gaspi_alloc_t gaspi_statistic_argument_t gaspi_topology_t gaspi_reduce_operation_t
        gaspi_config_t gaspi_coll_request_t gaspi_coll_op_t gaspi_coll_datatype_t
        gaspi_coll_options_t gaspi_coll_piece_t gaspi_coll_reduce_function_t gaspi_fusion_t
        gaspi_fusion_tensor_t gaspi_fusion_options_t gaspi_fusion_function_t
    });
}

#[test]
fn the_configuration_has_the_layout_of_c() {
    macro_rules! offsets {
        ($($($field:ident).+;)*) => {
            [$((
                format!("offsetof(gaspi_config_t, {})", stringify!($($field).+).replace(' ', "")),
                offset_of!(gaspi_config_t, $($field).+) as i64,
            )),*]
        };
    }
    let offsets = offsets! {
        logger; sn_port; net_info; user_net; sn_persistent; sn_timeout;
        dev_config.network_type;
        dev_config.params.ib.netdev_id; dev_config.params.ib.mtu; dev_config.params.ib.port_check;
        dev_config.params.tcp.port;
        dev_config.params.ofi.use_shm; dev_config.params.ofi.provider_info;
        dev_config.params.ofi.progress_auto;
        network; queue_size_max; queue_num; group_max; segment_max; transfer_size_max;
        notification_num; passive_queue_size_max; passive_transfer_size_max; allreduce_buf_size;
        allreduce_elem_max; rw_list_elem_max; build_infrastructure; user_defined;
    };
    // The binary interface of existing programs, in the order above.
    let expected = [
        0, 4, 8, 12, 16, 24, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 76, 80, 88, 96, 100, 104,
        112, 120, 124, 128, 136,
    ];
    let ours: Vec<i64> = offsets.iter().map(|(_, offset)| *offset).collect();
    assert_eq!(ours, expected);
    assert_equal(offsets);
}

#[test]
fn the_options_of_collectives_have_the_layout_of_c() {
    macro_rules! offsets {
        ($of:ident: $($field:ident)*) => {
            [$((
                format!("offsetof({}, {})", stringify!($of), stringify!($field)),
                offset_of!($of, $field) as i64,
            )),*]
        };
    }
    assert_equal(offsets! { gaspi_coll_piece_t: data count datatype reserved });
    assert_equal(offsets! { gaspi_fusion_tensor_t: count datatype reserved });
    assert_equal(offsets! {
        gaspi_fusion_options_t:
        size op threshold limit algorithm order contributions wire background mode reserved
    });
    let offsets =
        offsets! { gaspi_coll_options_t: size algorithm background reserved mode reserved2 };
    let ours: Vec<i64> = offsets.iter().map(|(_, offset)| *offset).collect();
    assert_eq!(ours, [0, 8, 16, 20, 24, 28]);
    assert_equal(offsets);
}

#[test]
fn constants_have_the_values_of_c() {
    macro_rules! values {
        ($($name:ident)*) => { [$((stringify!($name).to_owned(), $name as i64)),*] };
    }
    assert_equal(values! {
        GASPI_ERROR GASPI_SUCCESS GASPI_TIMEOUT GASPI_ERR_EMFILE GASPI_ERR_ENV GASPI_ERR_CONFIG
        GASPI_ERR_NOINIT GASPI_ERR_INITED GASPI_ERR_NULLPTR GASPI_ERR_INV_SEGSIZE
        GASPI_ERR_INV_SEG GASPI_ERR_INV_GROUP GASPI_ERR_INV_RANK GASPI_ERR_INV_QUEUE
        GASPI_ERR_INV_LOC_OFF GASPI_ERR_INV_REM_OFF GASPI_ERR_INV_COMMSIZE
        GASPI_ERR_INV_NOTIF_VAL GASPI_ERR_INV_NOTIF_ID GASPI_ERR_INV_NUM GASPI_ERR_INV_SIZE
        GASPI_ERR_MANY_SEG GASPI_ERR_MANY_GRP GASPI_QUEUE_FULL GASPI_ERR_UNALIGN_OFF
        GASPI_ERR_ACTIVE_COLL GASPI_ERR_MEMALLOC GASPI_OP_MIN GASPI_OP_MAX GASPI_OP_SUM
        GASPI_TYPE_INT GASPI_TYPE_UINT GASPI_TYPE_FLOAT GASPI_TYPE_DOUBLE GASPI_TYPE_LONG
        GASPI_TYPE_ULONG GASPI_IB GASPI_ROCE GASPI_ETHERNET GASPI_MEM_UNINITIALIZED
        GASPI_MEM_INITIALIZED GASPI_STATE_HEALTHY GASPI_STATE_CORRUPT
        GASPI_STATISTIC_ARGUMENT_NONE GASPI_STATISTIC_ARGUMENT_RANK GASPI_TOPOLOGY_NONE
        GASPI_TOPOLOGY_STATIC GASPI_TOPOLOGY_DYNAMIC GASPI_COLL_REQUEST_NULL
        GASPI_COLL_TYPE_I8 GASPI_COLL_TYPE_U8 GASPI_COLL_TYPE_I16 GASPI_COLL_TYPE_U16
        GASPI_COLL_TYPE_I32 GASPI_COLL_TYPE_U32 GASPI_COLL_TYPE_I64 GASPI_COLL_TYPE_U64
        GASPI_COLL_TYPE_F16 GASPI_COLL_TYPE_BF16 GASPI_COLL_TYPE_F32 GASPI_COLL_TYPE_F64
        GASPI_COLL_TYPE_USER GASPI_COLL_OP_SUM GASPI_COLL_OP_PRODUCT GASPI_COLL_OP_MIN
        GASPI_COLL_OP_MAX GASPI_COLL_OP_AND GASPI_COLL_OP_OR GASPI_COLL_OP_XOR
        GASPI_COLL_OP_AVERAGE GASPI_COLL_OP_ORDERED GASPI_COLL_OP_BACKGROUND
        GASPI_COLL_MODE_DEFAULT GASPI_COLL_MODE_FAST GASPI_COLL_MODE_STABLE
        GASPI_FUSION_DECLARED GASPI_FUSION_REVERSE
    });
    // Typed constants are no constant expressions in C: the text has to say it.
    let types = compile(&["-E", "-P"], &includes()).unwrap();
    assert!(types.contains("gaspi_timeout_t GASPI_BLOCK = 0xffffffffffffffffUL;"));
    assert!(types.contains("gaspi_timeout_t GASPI_TEST = 0;"));
    assert_eq!((GASPI_BLOCK, GASPI_TEST), (0xffff_ffff_ffff_ffff, 0));
    // So are pointers.
    let place = compile(&["-E", "-P"], &(includes() + "place GASPI_COLL_IN_PLACE\n")).unwrap();
    assert!(place.contains("place ((void *)-1)"));
    assert_eq!(GASPI_COLL_IN_PLACE, -1_isize as usize);
}
