//! Libraries that are there and are not, and what goes through the tables of a context. The
//! libraries are made by the C compiler; no card and no libibverbs is needed.

use libc::{c_int, c_uint};
use libibverbs_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_RELAXED_ORDERING, IBV_PORT_ACTIVE, IBV_PORT_DOWN, Library,
    ibv_context, ibv_cq, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr,
    ibv_query_device_ex_input, ibv_wc, inline, verbs_context,
};
use std::ffi::OsStr;
use std::mem::{offset_of, zeroed};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null_mut, without_provenance_mut};

/// Functions that do something, in place of those that do nothing.
const SPECIAL: [(&str, &str); 4] = [
    // `state` is the first field of a port's attributes.
    ("ibv_query_port", "int ibv_query_port(void *c, char p, int *a) { *a = 4; return 0; }"),
    ("ibv_query_device", "int ibv_query_device(void *c, char *a) { *a = 'f'; return 0; }"),
    ("ibv_reg_mr", "void *ibv_reg_mr(void *p, void *a, long l, int f) { return (char *)0 + f; }"),
    (
        "ibv_reg_mr_iova2",
        "void *ibv_reg_mr_iova2(void *p, void *a, long l, unsigned long i, unsigned f)\n\
         { return (char *)0 + f + 1; }",
    ),
];

/// A shared library with these functions.
fn library(directory: &Path, names: &[&str]) -> PathBuf {
    let text: String = names
        .iter()
        .map(|name| match SPECIAL.iter().find(|(special, _)| special == name) {
            Some((_, code)) => format!("{code}\n"),
            None => format!("int {name}(void) {{ return 0; }}\n"),
        })
        .collect();
    let (source, file) = (directory.join("fake.c"), directory.join("libfake.so"));
    std::fs::write(&source, text).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut cc = Command::new(compiler);
    cc.args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&source);
    assert!(cc.status().unwrap().success(), "{cc:?}");
    file
}

fn everything() -> Vec<&'static str> {
    Library::REQUIRED.iter().chain(Library::OPTIONAL).copied().collect()
}

fn load(names: &[&str]) -> Library {
    let directory = tempfile::tempdir().unwrap();
    Library::load(Some(library(directory.path(), names).as_os_str())).unwrap()
}

#[test]
fn a_file_that_is_not_there_is_named_with_the_loaders_reason() {
    let error = Library::load(Some(OsStr::new("/nowhere/libibverbs.so.1"))).unwrap_err();
    assert_eq!(error.file, "/nowhere/libibverbs.so.1");
    let text = error.to_string();
    assert!(text.starts_with("/nowhere/libibverbs.so.1 cannot be used: "), "{text}");
    assert!(text.contains("No such file"), "{text}");
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("text.so");
    std::fs::write(&file, "no library at all\n".repeat(100)).unwrap();
    let text = Library::load(Some(file.as_os_str())).unwrap_err().to_string();
    assert!(text.contains("text.so") && text.contains("ELF"), "{text}");
}

#[test]
fn a_library_without_one_of_the_functions_is_refused_by_name() {
    for missing in ["ibv_open_device", "ibv_create_srq"] {
        let mut names = everything();
        names.retain(|name| *name != missing);
        let directory = tempfile::tempdir().unwrap();
        let file = library(directory.path(), &names);
        let text = Library::load(Some(file.as_os_str())).unwrap_err().to_string();
        assert!(text.contains("libfake.so") && text.contains(missing), "{text}");
    }
}

#[test]
fn newer_functions_may_be_missing() {
    let old = load(Library::REQUIRED);
    assert!(old.ibv_reg_mr_iova2.is_none() && old._ibv_query_gid_table.is_none());
    assert!(old.ibv_is_fork_initialized.is_none() && old.ibv_query_qp_data_in_order.is_none());
    let new = load(&everything());
    assert!(new.ibv_reg_mr_iova2.is_some() && new._ibv_query_gid_table.is_some());
    assert!(new.ibv_is_fork_initialized.is_some() && new.ibv_query_qp_data_in_order.is_some());
}

#[test]
fn tables_of_gids_need_a_newer_library() {
    let old = load(Library::REQUIRED);
    // SAFETY: zeros are valid there, and the functions are missing.
    let (one, all) = unsafe {
        let mut entry: ibv_gid_entry = zeroed();
        (
            inline::ibv_query_gid_ex(&old, null_mut(), 1, 0, &raw mut entry),
            inline::ibv_query_gid_table(&old, null_mut(), &raw mut entry, 1),
        )
    };
    assert_eq!((one, all), (libc::EOPNOTSUPP, -(libc::EOPNOTSUPP as isize)));
}

#[test]
fn memory_is_registered_by_the_newer_function_only_for_optional_rights() {
    let registered = |library: &Library, access: c_uint| {
        // SAFETY: the fake functions touch nothing.
        unsafe { inline::ibv_reg_mr(library, null_mut(), null_mut(), 0, access) }.addr()
    };
    let (plain, relaxed) = (IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_RELAXED_ORDERING);
    let new = load(&everything());
    assert_eq!(registered(&new, plain), plain as usize);
    assert_eq!(registered(&new, plain | relaxed), (plain | relaxed) as usize + 1);
    let old = load(Library::REQUIRED);
    assert_eq!(registered(&old, plain | relaxed), plain as usize);
}

unsafe extern "C" fn extended_port(
    _: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    assert_eq!((port, length), (3, size_of::<ibv_port_attr>()));
    // SAFETY: the test passes its own record.
    unsafe { (*attr).state = IBV_PORT_DOWN };
    0
}

/// A context with the whole extended table, of which nothing is there.
fn context() -> Box<verbs_context> {
    // SAFETY: numbers, null pointers, functions that are not there, and a mutex that nobody takes.
    let mut verbs: Box<verbs_context> = Box::new(unsafe { zeroed() });
    verbs.context.abi_compat = without_provenance_mut(usize::MAX);
    verbs.sz = size_of::<verbs_context>();
    verbs
}

/// Asks for a port through pointers that reach the record around the context too.
fn state_of_port_3(library: &Library, verbs: &mut verbs_context) -> u32 {
    let context = (&raw mut *verbs).wrapping_byte_add(offset_of!(verbs_context, context)).cast();
    // SAFETY: zeros are valid there.
    let mut attr: ibv_port_attr = unsafe { zeroed() };
    // SAFETY: the context is as good as open, and the record is there.
    assert_eq!(unsafe { inline::ibv_query_port(library, context, 3, &raw mut attr) }, 0);
    attr.state
}

#[test]
fn ports_are_asked_by_the_extended_table_where_it_reaches_so_far() {
    let library = load(&everything());
    let mut verbs = context();
    assert_eq!(state_of_port_3(&library, &mut verbs), IBV_PORT_ACTIVE, "it has no such entry");
    verbs.query_port = Some(extended_port);
    assert_eq!(state_of_port_3(&library, &mut verbs), IBV_PORT_DOWN);
    verbs.sz -= 1;
    assert_eq!(state_of_port_3(&library, &mut verbs), IBV_PORT_ACTIVE, "the table is shorter");
    verbs.sz += 1;
    verbs.context.abi_compat = null_mut();
    assert_eq!(state_of_port_3(&library, &mut verbs), IBV_PORT_ACTIVE, "there is no table");
}

unsafe extern "C" fn extended_device<const ERROR: c_int>(
    _: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    length: usize,
) -> c_int {
    assert_eq!(length, size_of::<ibv_device_attr_ex>());
    // SAFETY: the test passes its own record.
    unsafe { (*attr).raw_packet_caps = 9 };
    ERROR
}

#[test]
fn what_a_card_can_do_is_asked_in_the_old_way_where_the_new_one_is_not_supported() {
    let library = load(&everything());
    let mut verbs = context();
    let mut asked = |entry| {
        verbs.query_device_ex = entry;
        let verbs = &raw mut *verbs;
        let context = verbs.wrapping_byte_add(offset_of!(verbs_context, context)).cast();
        // SAFETY: zeros are valid there.
        let mut attr: ibv_device_attr_ex = unsafe { zeroed() };
        // SAFETY: the context is as good as open, and the record is there.
        let error = unsafe { inline::ibv_query_device_ex(&library, context, &raw mut attr) };
        (error, attr.orig_attr.fw_ver[0] as u8, attr.raw_packet_caps)
    };
    assert_eq!(asked(None), (0, b'f', 0));
    assert_eq!(asked(Some(extended_device::<0>)), (0, 0, 9));
    assert_eq!(asked(Some(extended_device::<{ libc::EOPNOTSUPP }>)), (0, b'f', 0));
    assert_eq!(asked(Some(extended_device::<{ libc::EIO }>)), (libc::EIO, 0, 9));
}

unsafe extern "C" fn two_completions(_: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    assert_eq!(entries, 4);
    // SAFETY: the test has room for four.
    unsafe { (*wc.add(1)).wr_id = 17 };
    2
}

#[test]
fn completions_come_by_the_table_of_the_context() {
    let mut verbs = context();
    // SAFETY: numbers, null pointers, a mutex and a condition that nobody uses.
    let (mut cq, mut wc): (ibv_cq, [ibv_wc; 4]) = unsafe { (zeroed(), zeroed()) };
    cq.context = &raw mut verbs.context;
    // SAFETY: the queue and its context are there.
    let nothing = unsafe { inline::ibv_poll_cq(&raw mut cq, 4, wc.as_mut_ptr()) };
    assert_eq!(nothing, -libc::EOPNOTSUPP);
    verbs.context.ops.poll_cq = Some(two_completions);
    cq.context = &raw mut verbs.context;
    // SAFETY: the queue and its context are there, and there is room for four.
    assert_eq!(unsafe { inline::ibv_poll_cq(&raw mut cq, 4, wc.as_mut_ptr()) }, 2);
    assert_eq!(wc[1].wr_id, 17);
}
