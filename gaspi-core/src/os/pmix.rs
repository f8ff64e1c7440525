//! The few functions of libpmix that a start needs, found at run time.
//!
//! Types and constants are those of the PMIx standard (version 4, unchanged in version 5). `unsafe`
//! because a foreign library is loaded and called.

use super::process;
use libloading::Library;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt;

/// The file that is loaded unless another one is named.
pub(crate) const FILE: &str = "libpmix.so.2";

/// Bytes of a name space, with its end.
const NAMESPACE_MAX: usize = 256;
/// Bytes of a key, with its end.
const KEY_MAX: usize = 512;
/// The whole job in place of one rank.
const WILDCARD: u32 = u32::MAX - 1;
/// `PMIX_GLOBAL`: for ranks of this machine and of others.
const GLOBAL: u8 = 3;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone)]
pub(crate) struct Process {
    namespace: [u8; NAMESPACE_MAX],
    rank: u32,
}

impl Process {
    /// The name of the job.
    pub(crate) fn namespace(&self) -> String {
        let end = self.namespace.iter().position(|byte| *byte == 0).unwrap_or(NAMESPACE_MAX);
        String::from_utf8_lossy(&self.namespace[..end]).into_owned()
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Another rank of the same job.
    pub(crate) fn of_rank(&self, rank: u32) -> Process {
        Process { rank, ..self.clone() }
    }

    /// All of the same job.
    pub(crate) fn job(&self) -> Process {
        self.of_rank(WILDCARD)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.namespace(), self.rank)
    }
}

/// `pmix_value_t`: a type, and 24 bytes of which it says what they are.
#[repr(C)]
struct Value {
    kind: u16,
    data: [u64; 3],
}

/// `PMIX_STRING`.
const STRING: u16 = 3;

impl Value {
    /// The number in it, if it is one.
    fn number(&self) -> Option<u64> {
        let word = self.data[0];
        match self.kind {
            // PMIX_SIZE, PMIX_UINT64.
            4 | 15 => Some(word),
            // PMIX_INT, PMIX_INT32, PMIX_UINT, PMIX_UINT32; PMIX_PROC_RANK.
            6 | 9 | 11 | 14 | 40 => Some(word & 0xffff_ffff),
            // PMIX_INT16, PMIX_UINT16.
            8 | 13 => Some(word & 0xffff),
            // PMIX_INT8, PMIX_UINT8.
            7 | 12 => Some(word & 0xff),
            _ => None,
        }
    }
}

type Init = unsafe extern "C" fn(*mut Process, *mut libc::c_void, usize) -> i32;
type Finalize = unsafe extern "C" fn(*const libc::c_void, usize) -> i32;
type Put = unsafe extern "C" fn(u8, *const libc::c_char, *mut Value) -> i32;
type Commit = unsafe extern "C" fn() -> i32;
type Fence = unsafe extern "C" fn(*const Process, usize, *const libc::c_void, usize) -> i32;
type Get = unsafe extern "C" fn(
    *const Process,
    *const libc::c_char,
    *const libc::c_void,
    usize,
    *mut *mut Value,
) -> i32;
type ErrorString = unsafe extern "C" fn(i32) -> *const libc::c_char;

/// libpmix.
pub(crate) struct Pmix {
    init: Init,
    finalize: Finalize,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    error_string: ErrorString,
    /// What was loaded, for messages.
    file: OsString,
}

impl fmt::Debug for Pmix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pmix({})", self.file.display())
    }
}

impl Pmix {
    /// Loads the first of `files` that is there.
    ///
    /// # Errors
    /// In words: what the loader says of the first, or which function a library lacks.
    pub(crate) fn load(files: &[OsString]) -> Result<Pmix, String> {
        let mut first = None;
        for file in files {
            // SAFETY: libpmix does nothing when it is loaded; a file that the user names is theirs.
            match unsafe { Library::new(file) } {
                Ok(library) => return Pmix::of(library, file),
                Err(error) => {
                    first.get_or_insert(format!("{}: {error}", file.display()));
                }
            }
        }
        Err(first.unwrap_or_else(|| "no file is named".to_owned()))
    }

    fn of(library: Library, file: &OsStr) -> Result<Pmix, String> {
        fn find<T: Copy>(library: &Library, file: &OsStr, name: &str) -> Result<T, String> {
            // SAFETY: the caller's type is that of the function in the PMIx standard.
            let found = unsafe { library.get::<T>(name.as_bytes()) };
            found.map(|found| *found).map_err(|_| format!("{} lacks {name}", file.display()))
        }
        let found = Pmix {
            init: find(&library, file, "PMIx_Init")?,
            finalize: find(&library, file, "PMIx_Finalize")?,
            put: find(&library, file, "PMIx_Put")?,
            commit: find(&library, file, "PMIx_Commit")?,
            fence: find(&library, file, "PMIx_Fence")?,
            get: find(&library, file, "PMIx_Get")?,
            error_string: find(&library, file, "PMIx_Error_string")?,
            file: file.to_owned(),
        };
        // It stays: threads of a PMIx_Init that has failed still run in it.
        std::mem::forget(library);
        Ok(found)
    }

    fn check(&self, call: &str, status: i32) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it takes any number, and gives a text that lives as long as the library, or NULL.
        let text = unsafe { (self.error_string)(status) };
        let text = match text.is_null() {
            true => String::new(),
            // SAFETY: it is not NULL.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(format!("{call} of {} failed: {text} ({status})", self.file.display()))
    }

    /// Connects to the server of this machine.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn init(&self) -> Result<Process, String> {
        let mut own = Process { namespace: [0; NAMESPACE_MAX], rank: 0 };
        // SAFETY: the process can be written; no further information is given.
        let status = unsafe { (self.init)(&raw mut own, std::ptr::null_mut(), 0) };
        self.check("PMIx_Init", status).map(|()| own)
    }

    /// Takes back one `init`.
    pub(crate) fn finalize(&self) {
        // SAFETY: no information is given. What it says changes nothing any more.
        unsafe { (self.finalize)(std::ptr::null(), 0) };
    }

    /// Has all others see `text` after the next fence.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn publish(&self, key: &str, text: &str) -> Result<(), String> {
        let text = CString::new(text).map_err(|error| error.to_string())?;
        let mut value = Value { kind: STRING, data: [text.as_ptr() as u64, 0, 0] };
        // SAFETY: the key is padded to its full length; the library copies the value.
        let status = unsafe { (self.put)(GLOBAL, padded(key).as_ptr().cast(), &raw mut value) };
        self.check("PMIx_Put", status)?;
        // SAFETY: takes nothing.
        self.check("PMIx_Commit", unsafe { (self.commit)() })
    }

    /// Waits until all ranks of the job are here; no data is collected.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn fence(&self) -> Result<(), String> {
        // SAFETY: no processes mean all of the own job.
        let status = unsafe { (self.fence)(std::ptr::null(), 0, std::ptr::null(), 0) };
        self.check("PMIx_Fence", status)
    }

    /// The number behind a key.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn number(&self, of: &Process, key: &str) -> Result<u64, String> {
        self.get(of, key, |value| value.number())
    }

    /// The text behind a key.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn text(&self, of: &Process, key: &str) -> Result<String, String> {
        self.get(of, key, |value| {
            let text = value.data[0] as *mut libc::c_char;
            if value.kind != STRING || text.is_null() {
                return None;
            }
            // SAFETY: a value of that type holds a text that was made for this call.
            let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
            // SAFETY: the library made it by malloc and gave it away with the value.
            unsafe { libc::free(text.cast()) };
            Some(copy)
        })
    }

    fn get<T>(
        &self,
        of: &Process,
        key: &str,
        take: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, String> {
        let mut value: *mut Value = std::ptr::null_mut();
        let padded = padded(key);
        // SAFETY: the process and the key live across the call, and the place can be written.
        let status = unsafe {
            (self.get)(&raw const *of, padded.as_ptr().cast(), std::ptr::null(), 0, &raw mut value)
        };
        self.check(&format!("PMIx_Get of {key}"), status)?;
        if value.is_null() {
            return Err(format!("PMIx_Get of {key} gave nothing"));
        }
        // SAFETY: it is not NULL, and the library has made it for this call.
        let found = take(unsafe { &*value });
        // SAFETY: the library made it by malloc and gave it away.
        unsafe { libc::free(value.cast()) };
        found.ok_or_else(|| format!("PMIx_Get of {key} gave a value of another type"))
    }
}

/// The libpmix of the launcher: what a process that has started this one, directly or not, has
/// loaded.
pub(crate) fn of_launcher() -> Option<OsString> {
    process::ancestors().find_map(|pid| {
        let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
        mapped(&String::from_utf8_lossy(&maps)).map(OsString::from)
    })
}

/// The file of a libpmix in the text of /proc/PID/maps.
fn mapped(maps: &str) -> Option<&str> {
    maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..])).find(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with(FILE) && !name.ends_with(" (deleted)")
    })
}

/// A key in an array of full length, as the standard declares it.
fn padded(key: &str) -> [u8; KEY_MAX] {
    let mut array = [0; KEY_MAX];
    let length = key.len().min(KEY_MAX - 1);
    array[..length].copy_from_slice(&key.as_bytes()[..length]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_standard() {
        assert_eq!((size_of::<Process>(), align_of::<Process>()), (260, 4));
        assert_eq!((size_of::<Value>(), std::mem::offset_of!(Value, data)), (32, 8));
    }

    #[test]
    fn the_library_of_a_launcher_is_found_by_its_mappings() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 fe:00 42    {path}\n");
        let other = line("/usr/lib/libc.so.6") + &line("[heap]") + &line("/x/libpmix.so.20/a.so");
        assert_eq!(mapped(&other), None);
        let gone = line("/a/libpmix.so.2.5.2 (deleted)");
        let found = line("/opt/my mpi/lib/libpmix.so.2.13.3");
        assert_eq!(mapped(&(other + &gone + &found)), Some("/opt/my mpi/lib/libpmix.so.2.13.3"));
    }

    #[test]
    fn a_library_that_is_none_is_named() {
        let error = Pmix::load(&["libc.so.6".into()]).expect_err("it is no libpmix");
        assert_eq!(error, "libc.so.6 lacks PMIx_Init");
        let error = Pmix::load(&["/nonexistent/libpmix.so.2".into()]).expect_err("not there");
        assert!(error.starts_with("/nonexistent/libpmix.so.2: "), "{error}");
    }
}
