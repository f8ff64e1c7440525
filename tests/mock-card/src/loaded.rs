//! The shared library as tests load it. Its state is that of the library that the program under
//! test loads by the same path; the copy in this crate's rlib has a state of its own.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::control::Live;
use crate::options::Options;

type Create = unsafe extern "C" fn(*const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(u32, *mut Live) -> c_int;

/// The loaded shared library.
#[derive(Clone, Debug)]
pub struct MockCard {
    library: Arc<libloading::Library>,
    path: PathBuf,
}

/// A fabric of the loaded library, which ends with this value.
#[derive(Debug)]
pub struct Fabric {
    card: MockCard,
    number: u32,
    ended: bool,
}

impl MockCard {
    /// Loads the library that cargo built beside the running test.
    ///
    /// # Errors
    /// It was not built, or cannot be loaded.
    pub fn load() -> Result<MockCard, String> {
        const FILE: &str = "libgaspi_mock_card.so";
        let test = std::env::current_exe().map_err(|error| error.to_string())?;
        let beside = test.ancestors().skip(1).take(2).map(|folder| folder.join(FILE));
        let path = beside.into_iter().find(|path| path.exists());
        let path = path.ok_or(format!("{FILE} is not beside {}", test.display()))?;
        MockCard::load_from(&path)
    }

    /// Loads the library of this path.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub fn load_from(path: &Path) -> Result<MockCard, String> {
        // SAFETY: the library runs nothing when it is loaded.
        let library = unsafe { libloading::Library::new(path) };
        let library = Arc::new(library.map_err(|error| error.to_string())?);
        Ok(MockCard { library, path: path.to_path_buf() })
    }

    /// What GASPI_IBVERBS_LIB is set to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a fabric.
    ///
    /// # Panics
    /// The library is not the mock card's.
    pub fn fabric(&self, options: &Options) -> Fabric {
        let text = c_text(&options.to_string());
        // SAFETY: the function has this type, see `control`.
        let create = unsafe { self.function::<Create>("mock_card_fabric_create") };
        // SAFETY: a string.
        let number = unsafe { create(text.as_ptr()) };
        let number = u32::try_from(number).expect("options have a text");
        Fabric { card: self.clone(), number, ended: false }
    }

    /// # Safety
    /// The function has this type.
    unsafe fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: caller's promise.
        let found = unsafe { self.library.get::<T>(name.as_bytes()) };
        *found.unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text).expect("no zeroes in names")
}

fn done(error: c_int) {
    assert_eq!(error, 0, "the mock card refused: {}", std::io::Error::from_raw_os_error(error));
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal($($arg:ident: $type:ty),*);)*) => {
        $($(#[$doc])*
        pub fn $name(&self, $($arg: $type),*) {
            type Call = unsafe extern "C" fn(u32, $($type),*) -> c_int;
            // SAFETY: the function has this type, see `control`.
            let call = unsafe { self.card.function::<Call>($symbol) };
            // SAFETY: no pointers.
            done(unsafe { call(self.number, $($arg),*) });
        })*
    };
}

impl Fabric {
    /// The number, as GASPI_MOCK_FABRIC has it.
    pub fn number(&self) -> u32 {
        self.number
    }

    calls! {
        /// This thread lists all devices.
        use_all = "mock_card_use"();
        /// This thread lists only this device.
        use_device = "mock_card_use_device"(device: u32);
        /// Takes a port down (0) or up.
        port = "mock_card_port"(device: u32, up: c_int);
        /// Moves the entries of a GID table.
        move_gids = "mock_card_move_gids"(device: u32, places: u32);
        /// A device fails; not 0: it is removed.
        fatal = "mock_card_fatal"(device: u32, removed: c_int);
        /// Cuts (0) or heals a link.
        link = "mock_card_link"(one: u32, other: u32, up: c_int);
        /// The ends of a device's pairs with another one fail.
        break_pairs = "mock_card_break"(device: u32, other: u32);
        /// The same, of which the device tells by events.
        break_told = "mock_card_break_told"(device: u32, other: u32);
        /// The n-th request of a pair, or of any (0), fails with a status.
        fail = "mock_card_fail"(device: u32, pair: u32, nth: u64, status: u32);
        /// The n-th atomic operation fails with a status.
        fail_atomic = "mock_card_fail_atomic"(device: u32, nth: u64, status: u32);
        /// A program is stopped, or goes on (0).
        stop = "mock_card_stop"(device: u32, stopped: c_int);
        /// The requests of a device stay in its send queues, or leave them (0).
        hold = "mock_card_hold"(device: u32, held: c_int);
        /// A thread that takes completions stays in that call, or goes on (0).
        keep = "mock_card_keep"(device: u32, keeps: c_int);
        /// Time passes.
        advance = "mock_card_advance"(ns: u64);
        /// Does all that can be done now.
        settle = "mock_card_settle"();
    }

    /// Sets limits and traits of one device.
    pub fn set(&self, device: u32, options: &str) {
        type Call = unsafe extern "C" fn(u32, u32, *const c_char) -> c_int;
        // SAFETY: the function has this type, see `control`.
        let call = unsafe { self.card.function::<Call>("mock_card_set") };
        // SAFETY: a string.
        done(unsafe { call(self.number, device, c_text(options).as_ptr()) });
    }

    /// Sets an entry of a GID table.
    pub fn gid(&self, device: u32, index: u32, kind: u32, gid: Option<[u8; 16]>) {
        type Call = unsafe extern "C" fn(u32, u32, u32, u32, *const [u8; 16]) -> c_int;
        // SAFETY: the function has this type, see `control`.
        let call = unsafe { self.card.function::<Call>("mock_card_gid") };
        let bytes = gid.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: NULL or 16 bytes.
        done(unsafe { call(self.number, device, index, kind, bytes) });
    }

    /// The n-th call of this name is refused with an error number.
    pub fn refuse(&self, device: u32, name: &str, nth: u64, error: c_int) {
        type Call = unsafe extern "C" fn(u32, u32, *const c_char, u64, c_int) -> c_int;
        // SAFETY: the function has this type, see `control`.
        let call = unsafe { self.card.function::<Call>("mock_card_refuse") };
        // SAFETY: a string.
        done(unsafe { call(self.number, device, c_text(name).as_ptr(), nth, error) });
    }

    /// A counter of a device.
    pub fn counter(&self, device: u32, name: &str) -> u64 {
        type Call = unsafe extern "C" fn(u32, u32, *const c_char) -> u64;
        // SAFETY: the function has this type, see `control`.
        let call = unsafe { self.card.function::<Call>("mock_card_counter") };
        // SAFETY: a string.
        let found = unsafe { call(self.number, device, c_text(name).as_ptr()) };
        assert_ne!(found, u64::MAX, "no counter is called {name}");
        found
    }

    /// What lives on a device.
    pub fn live(&self, device: u32) -> Live {
        type Call = unsafe extern "C" fn(u32, u32, *mut Live) -> c_int;
        let mut live = Live::default();
        // SAFETY: the function has this type, see `control`.
        let call = unsafe { self.card.function::<Call>("mock_card_live") };
        // SAFETY: it can be written.
        done(unsafe { call(self.number, device, &raw mut live) });
        live
    }

    /// Ends the fabric and tells what still lives in it.
    pub fn end(mut self) -> Live {
        self.destroy()
    }

    fn destroy(&mut self) -> Live {
        let mut live = Live::default();
        self.ended = true;
        // SAFETY: the function has this type, see `control`.
        let destroy = unsafe { self.card.function::<Destroy>("mock_card_fabric_destroy") };
        // SAFETY: it can be written.
        done(unsafe { destroy(self.number, &raw mut live) });
        live
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if !self.ended {
            self.destroy();
        }
    }
}
