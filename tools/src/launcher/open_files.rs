//! Files that are written bit by bit, many more than may be open at once: each is opened when
//! something is written, and the ones that were written last stay open.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// How many stay open.
pub(crate) const OPEN_MAX: usize = 64;

/// Those that are open, by numbers of the caller's; written last, the last.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(Vec<(usize, File)>);

impl OpenFiles {
    /// Adds to the end of file `number`, which is at `path`.
    ///
    /// # Errors
    /// What the system says of opening it or writing to it. It is not open any more then.
    pub(crate) fn append(&mut self, number: usize, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let open = self.0.iter().position(|(other, _)| *other == number);
        let (_, mut file) = match open {
            Some(place) => self.0.remove(place),
            None => (number, File::options().append(true).create(true).open(path)?),
        };
        file.write_all(bytes)?;
        if self.0.len() == OPEN_MAX {
            self.0.remove(0);
        }
        self.0.push((number, file));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_is_written_and_few_are_open() {
        let directory = tempfile::tempdir().expect("directory");
        let path = |number: usize| directory.path().join(number.to_string());
        let mut files = OpenFiles::default();
        for round in 0..3 {
            for number in 0..3 * OPEN_MAX {
                let text = format!("{round} ");
                files.append(number, &path(number), text.as_bytes()).expect("written");
                assert!(files.0.len() <= OPEN_MAX);
            }
        }
        assert!((0..3 * OPEN_MAX).all(|n| std::fs::read(path(n)).expect("a file") == b"0 1 2 "));
        // What was written last has stayed open.
        std::fs::remove_file(path(3 * OPEN_MAX - 1)).expect("removed");
        files.append(3 * OPEN_MAX - 1, &path(3 * OPEN_MAX - 1), b"3").expect("written");
        assert!(!path(3 * OPEN_MAX - 1).exists());
    }

    #[test]
    fn one_that_cannot_be_written_costs_no_other() {
        let directory = tempfile::tempdir().expect("directory");
        let mut files = OpenFiles::default();
        assert!(files.append(0, directory.path(), b"x").is_err());
        files.append(1, &directory.path().join("one"), b"x").expect("written");
    }
}
