//! The secret of a user, from which the keys of jobs that are started by hand on several hosts are
//! made: GASPI_KEY_FILE, or a file below the user's configuration that is made on first use.
//!
//! Invariant: a file that others can read or that belongs to another user is never used.

use super::KEY_BYTES;
use crate::bootstrap::system::random;
use crate::bootstrap::variables::wrong;
use crate::error::Result;
use crate::os::socket;
use crate::wire::handshake;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the shortest secret that is taken for one.
const SECRET_MIN: usize = 16;
/// Bytes of the longest.
const SECRET_MAX: u64 = 4096;

/// Where the secret of this user lies.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyFile {
    path: PathBuf,
    /// Named by GASPI_KEY_FILE, so never made.
    named: bool,
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The key of the job `id` of this user, and the file that it came from.
///
/// # Errors
/// [`Error::Environment`](crate::Error::Environment) if there is no secret to be had, with the ways
/// to give one.
pub(in crate::bootstrap) fn of_job(id: &str) -> Result<([u8; KEY_BYTES], PathBuf)> {
    let place = place(&|name| std::env::var_os(name))?;
    let secret = secret(&place)?;
    Ok((handshake::derived_key(&secret, &handshake::job_name(id)), place.path))
}

/// Whether this user has a secret already, or names one.
pub(in crate::bootstrap) fn is_present() -> bool {
    place(&|name| std::env::var_os(name)).is_ok_and(|place| place.named || place.path.exists())
}

fn place(get: Lookup<'_>) -> Result<KeyFile> {
    let set = |name| get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("GASPI_KEY_FILE") {
        return Ok(KeyFile { path, named: true });
    }
    let config = set("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    match config.or_else(|| set("HOME").map(|home| home.join(".config"))) {
        Some(config) => Ok(KeyFile { path: config.join("gaspi").join("key"), named: false }),
        None => wrong(
            "ranks on several hosts need a key, and there is no HOME to keep one in; set \
             GASPI_KEY_FILE to a file with at least 16 random bytes and mode 0600, the same on all \
             hosts, or start the job with gaspi_run"
                .to_owned(),
        ),
    }
}

fn secret(place: &KeyFile) -> Result<Vec<u8>> {
    let path = &place.path;
    if !place.named && !path.exists() {
        make(path).or_else(|error| {
            wrong(format!(
                "ranks on several hosts need a key, and {} cannot be made: {error}; set \
                 GASPI_KEY_FILE to a file with at least 16 random bytes and mode 0600, the same on \
                 all hosts, or start the job with gaspi_run",
                path.display()
            ))
        })?;
    }
    let what = if place.named { "GASPI_KEY_FILE" } else { "the key file" };
    let shown = format!("{what} {}", path.display());
    // Opened without waiting, should it be a pipe.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.or_else(|error| {
        wrong(format!(
            "{shown}: {error}; it has to hold {SECRET_MIN} to {SECRET_MAX} random bytes, the same \
             on all hosts, with mode 0600"
        ))
    })?;
    let about = file.metadata().or_else(|error| wrong(format!("{shown}: {error}")))?;
    let mode = about.permissions().mode() & 0o7777;
    if !about.is_file() {
        return wrong(format!("{shown} is no regular file"));
    }
    if about.uid() != socket::own_uid() {
        return wrong(format!("{shown} belongs to user {}, not to this user", about.uid()));
    }
    if mode & 0o077 != 0 {
        let shown_path = path.display();
        return wrong(format!(
            "{shown} can be used by others (mode {mode:04o}), so it is no secret; chmod 600 \
             {shown_path}, and make another key if others may have read it"
        ));
    }
    let mut bytes = Vec::new();
    let read = file.take(SECRET_MAX + 1).read_to_end(&mut bytes);
    read.or_else(|error| wrong(format!("{shown}: {error}")))?;
    let secret = bytes.trim_ascii();
    if secret.len() < SECRET_MIN || bytes.len() as u64 > SECRET_MAX {
        return wrong(format!(
            "{shown} has {} bytes; a key has {SECRET_MIN} to {SECRET_MAX}, random ones",
            secret.len()
        ));
    }
    Ok(secret.to_vec())
}

/// Makes a key file whole or not at all; one that another process makes meanwhile is fine too.
fn make(path: &Path) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let bytes: [u8; KEY_BYTES] =
        random().map_err(|error| std::io::Error::other(error.to_string()))?;
    let number: [u8; 8] = random().map_err(|error| std::io::Error::other(error.to_string()))?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let draft = directory.join(format!(".key-{}", hex(&number)));
    let mut file: File =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written =
        file.write_all(format!("{}\n", hex(&bytes)).as_bytes()).and_then(|()| file.sync_all());
    // A link appears at once and never replaces a file.
    let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
    let removed = std::fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => removed,
        Err(error) => Err(error),
        Ok(()) => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::collections::HashMap;

    fn found(variables: &[(&str, &Path)]) -> Result<Vec<u8>> {
        let map: HashMap<&str, OsString> =
            variables.iter().map(|(name, value)| (*name, value.as_os_str().to_owned())).collect();
        secret(&place(&|name| map.get(name).cloned())?)
    }

    fn directory(what: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gaspi-{what}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("directory");
        path
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("file").permissions().mode() & 0o7777
    }

    #[test]
    fn the_first_to_come_makes_the_key() {
        let home = directory("home");
        let all: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let home = &home;
            let takers: Vec<_> = (0..8)
                .map(|_| scope.spawn(move || found(&[("HOME", home)]).expect("key")))
                .collect();
            takers.into_iter().map(|taker| taker.join().expect("thread")).collect()
        });
        assert!(all[0].len() == 2 * KEY_BYTES && all.iter().all(|key| *key == all[0]));
        let path = home.join(".config/gaspi/key");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().expect("directory")), 0o700);
        let left = std::fs::read_dir(path.parent().expect("directory")).expect("list").count();
        assert_eq!(left, 1, "no drafts");
        assert_eq!(found(&[("XDG_CONFIG_HOME", &home.join(".config"))]).expect("key"), all[0]);
        std::fs::remove_dir_all(&home).expect("remove");
    }

    #[test]
    fn files_that_hold_no_secret_are_refused_with_the_remedy() {
        let home = directory("keys");
        let path = home.join("key");
        let refusal = |path: &Path| match found(&[("GASPI_KEY_FILE", path)]).expect_err("taken") {
            Error::Environment { reason } => reason,
            other => panic!("{other}"),
        };
        assert!(refusal(&path).contains("GASPI_KEY_FILE"), "it is not made");
        std::fs::write(&path, "0123456789abcdef0123\n").expect("file");
        let chmod = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("chmod");
        };
        chmod(0o644);
        let text = refusal(&path);
        assert!(text.contains(&format!("chmod 600 {}", path.display())), "{text}");
        assert!(text.contains("mode 0644"), "{text}");
        chmod(0o600);
        let variables = [("GASPI_KEY_FILE", path.as_path())];
        assert_eq!(found(&variables).expect("key"), b"0123456789abcdef0123");
        std::fs::write(&path, "short\n").expect("file");
        assert!(refusal(&path).contains("has 5 bytes"), "{}", refusal(&path));
        std::fs::write(&path, vec![b'x'; 5000]).expect("file");
        assert!(refusal(&path).contains("16 to 4096"), "{}", refusal(&path));
        assert!(refusal(&home).contains("no regular file"), "{}", refusal(&home));
        std::fs::remove_dir_all(&home).expect("remove");
    }

    #[test]
    fn without_a_home_the_ways_are_named() {
        let text = found(&[]).expect_err("no place").to_string();
        assert!(text.contains("GASPI_KEY_FILE") && text.contains("gaspi_run"), "{text}");
        let nowhere = Path::new("/proc/nowhere");
        let text = found(&[("HOME", nowhere)]).expect_err("no place").to_string();
        assert!(text.contains("/proc/nowhere/.config/gaspi/key cannot be made"), "{text}");
        assert!(text.contains("GASPI_KEY_FILE"), "{text}");
    }
}
