//! The few functions of libmunge by which a process proves to another one of the same user, on
//! another host of a cluster, who it is. Found at run time; the daemon of each host does the work.
//!
//! `unsafe` because a foreign library is loaded and called.

use libloading::Library;
use std::ffi::{CStr, CString};
use std::fmt;

const FILE: &str = "libmunge.so.2";
/// `MUNGE_OPT_UID_RESTRICTION`: who else may decode a credential.
const UID_RESTRICTION: libc::c_int = 9;
/// Bytes that a credential hands over.
pub(crate) const PAYLOAD: usize = 32;

type Context = *mut libc::c_void;
type Create = unsafe extern "C" fn() -> Context;
type Destroy = unsafe extern "C" fn(Context);
type Set = unsafe extern "C" fn(Context, libc::c_int, ...) -> libc::c_int;
type Encode = unsafe extern "C" fn(
    *mut *mut libc::c_char,
    Context,
    *const libc::c_void,
    libc::c_int,
) -> libc::c_int;
type Decode = unsafe extern "C" fn(
    *const libc::c_char,
    Context,
    *mut *mut libc::c_void,
    *mut libc::c_int,
    *mut libc::uid_t,
    *mut libc::gid_t,
) -> libc::c_int;
type Words = unsafe extern "C" fn(libc::c_int) -> *const libc::c_char;

/// libmunge.
pub(crate) struct Munge {
    create: Create,
    destroy: Destroy,
    set: Set,
    encode: Encode,
    decode: Decode,
    words: Words,
    _library: Library,
}

impl fmt::Debug for Munge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Munge")
    }
}

impl Munge {
    /// Loads the library.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn load() -> Result<Munge, String> {
        // SAFETY: libmunge does nothing when it is loaded.
        let library = unsafe { Library::new(FILE) }.map_err(|error| error.to_string())?;
        fn find<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
            // SAFETY: the caller's type is that of the function in munge.h.
            let found = unsafe { library.get::<T>(name.as_bytes()) };
            found.map(|found| *found).map_err(|_| format!("{FILE} lacks {name}"))
        }
        Ok(Munge {
            create: find(&library, "munge_ctx_create")?,
            destroy: find(&library, "munge_ctx_destroy")?,
            set: find(&library, "munge_ctx_set")?,
            encode: find(&library, "munge_encode")?,
            decode: find(&library, "munge_decode")?,
            words: find(&library, "munge_strerror")?,
            _library: library,
        })
    }

    fn check(&self, status: libc::c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it takes any number, and gives a text that lives as long as the library, or NULL.
        let text = unsafe { (self.words)(status) };
        match text.is_null() {
            true => Err(format!("munge: error {status}")),
            // SAFETY: it is not NULL.
            false => Err(format!("munge: {}", unsafe { CStr::from_ptr(text) }.to_string_lossy())),
        }
    }

    /// A credential that hands `payload` to processes of `uid` only, once.
    ///
    /// # Errors
    /// What munge says.
    pub(crate) fn encode(&self, payload: &[u8; PAYLOAD], uid: u32) -> Result<Vec<u8>, String> {
        // SAFETY: takes nothing.
        let context = unsafe { (self.create)() };
        if context.is_null() {
            return Err("munge: no memory".to_owned());
        }
        // SAFETY: the context is there, and the option takes a uid_t.
        let set = unsafe { (self.set)(context, UID_RESTRICTION, uid) };
        let mut text: *mut libc::c_char = std::ptr::null_mut();
        let made = self.check(set).and_then(|()| {
            let length = PAYLOAD as libc::c_int;
            // SAFETY: the place can be written, and the payload has that length.
            let status =
                unsafe { (self.encode)(&raw mut text, context, payload.as_ptr().cast(), length) };
            self.check(status)
        });
        // SAFETY: the context was made above, and is not used again.
        unsafe { (self.destroy)(context) };
        made?;
        if text.is_null() {
            return Err("munge: it gave no credential".to_owned());
        }
        // SAFETY: munge has made a text with an end.
        let credential = unsafe { CStr::from_ptr(text) }.to_bytes().to_vec();
        // SAFETY: it was made by malloc and given away.
        unsafe { libc::free(text.cast()) };
        Ok(credential)
    }

    /// What a credential hands over, and the user who made it.
    ///
    /// # Errors
    /// What munge says, or it hands over something else.
    pub(crate) fn decode(&self, credential: &[u8]) -> Result<([u8; PAYLOAD], u32), String> {
        let text = CString::new(credential).map_err(|_| "munge: no credential".to_owned())?;
        let mut data: *mut libc::c_void = std::ptr::null_mut();
        let (mut length, mut uid, mut gid) = (0, u32::MAX, u32::MAX);
        // SAFETY: all places can be written; without a context the defaults hold.
        let status = unsafe {
            (self.decode)(
                text.as_ptr(),
                std::ptr::null_mut(),
                &raw mut data,
                &raw mut length,
                &raw mut uid,
                &raw mut gid,
            )
        };
        let checked = self.check(status);
        let mut payload = [0; PAYLOAD];
        let fits = length as usize == PAYLOAD && !data.is_null();
        if checked.is_ok() && fits {
            // SAFETY: munge says that so many bytes are there; the array is another memory.
            unsafe { std::ptr::copy_nonoverlapping(data.cast(), payload.as_mut_ptr(), PAYLOAD) };
        }
        // SAFETY: it was made by malloc and given away, also where munge refuses; NULL is fine.
        unsafe { libc::free(data) };
        checked?;
        if fits {
            Ok((payload, uid))
        } else {
            Err("munge: it hands over something else".to_owned())
        }
    }
}

/// A stand-in for the daemon and its library, of whose credentials tests say what they are.
#[cfg(test)]
pub(crate) mod stand_in {
    use super::*;

    /// Of this process's user; what it hands over is [`PAYLOAD`] times this byte.
    pub(crate) const OWN: &[u8] = b"own";
    pub(crate) const OF_ANOTHER_USER: &[u8] = b"another";
    /// Munge says whose they are and what they hand over all the same.
    pub(crate) const EXPIRED: &[u8] = b"expired";
    pub(crate) const REPLAYED: &[u8] = b"replayed";
    /// Munge never says anything about it.
    pub(crate) const SILENT: &[u8] = b"silent";

    /// `EMUNGE_CRED_EXPIRED`, `EMUNGE_CRED_REPLAYED`.
    const REFUSED: [(&[u8], libc::c_int, &CStr); 2] =
        [(EXPIRED, 15, c"Expired credential"), (REPLAYED, 17, c"Replayed credential")];

    unsafe extern "C" fn create() -> Context {
        std::ptr::null_mut()
    }

    unsafe extern "C" fn create_never() -> Context {
        say_nothing()
    }

    fn say_nothing() -> ! {
        loop {
            std::thread::park();
        }
    }

    unsafe extern "C" fn destroy(_: Context) {}

    unsafe extern "C" fn encode(
        _: *mut *mut libc::c_char,
        _: Context,
        _: *const libc::c_void,
        _: libc::c_int,
    ) -> libc::c_int {
        1
    }

    unsafe extern "C" fn decode(
        credential: *const libc::c_char,
        _: Context,
        data: *mut *mut libc::c_void,
        length: *mut libc::c_int,
        uid: *mut libc::uid_t,
        _: *mut libc::gid_t,
    ) -> libc::c_int {
        // SAFETY: the caller has made it of bytes with an end.
        let credential = unsafe { CStr::from_ptr(credential) }.to_bytes();
        if credential == SILENT {
            say_nothing();
        }
        let own = crate::os::socket::own_uid();
        // SAFETY: the caller frees what malloc gives.
        let memory = unsafe { libc::calloc(PAYLOAD, 1) };
        // SAFETY: the caller lets it be written.
        unsafe { *data = memory };
        // SAFETY: the caller lets it be written.
        unsafe { *length = PAYLOAD as libc::c_int };
        // SAFETY: the caller lets it be written.
        unsafe { *uid = if credential == OF_ANOTHER_USER { own + 1 } else { own } };
        REFUSED.iter().find(|(known, ..)| *known == credential).map_or(0, |(_, status, _)| *status)
    }

    unsafe extern "C" fn words(status: libc::c_int) -> *const libc::c_char {
        let found = REFUSED.iter().find(|(_, known, _)| *known == status);
        found.map_or(std::ptr::null(), |(.., words)| words.as_ptr())
    }

    impl Munge {
        pub(crate) fn stand_in() -> Munge {
            type Prctl = unsafe extern "C" fn(libc::c_int, ...) -> libc::c_int;
            let set: Prctl = libc::prctl;
            // SAFETY: it is never called, as no context is made.
            let set = unsafe { std::mem::transmute::<Prctl, Set>(set) };
            let _library = libloading::os::unix::Library::this().into();
            Munge { create, destroy, set, encode, decode, words, _library }
        }

        /// One whose daemon never answers.
        pub(crate) fn silent_stand_in() -> Munge {
            Munge { create: create_never, ..Munge::stand_in() }
        }
    }
}
