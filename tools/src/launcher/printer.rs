//! Where the ranks' output goes: standard output and error by whole lines, or files.

use crate::arguments::Label;
use crate::files::Files;
use crate::local_ranks::Piece;
use crate::open_files::OpenFiles;
use crate::output::{Lines, Sink, Writer};
use crate::tail::Tail;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// After how much silence an unfinished line of rank 0 on a terminal is taken for a prompt.
const PROMPT: Duration = Duration::from_millis(100);

/// The end of one stream of a rank.
#[derive(Debug)]
enum Outlet {
    Lines {
        lines: Lines,
        sink: usize,
        /// Rank 0 on a terminal: it may prompt for input.
        asks: bool,
    },
    /// Of a rank on another machine; one of this machine writes into its file itself.
    File {
        path: PathBuf,
    },
    Closed,
}

/// The output of a job.
#[derive(Debug)]
pub(crate) struct Printer {
    /// Standard output and error; one if both are the same.
    sinks: Vec<Sink>,
    /// Two for each rank.
    outlets: Vec<Outlet>,
    /// Those of outlets that are files.
    open: OpenFiles,
    /// The last lines of each outlet, so many.
    tails: Vec<Tail>,
    last_lines: usize,
    /// The files of rank 0, if its output goes there and comes here, too.
    copies: [Option<(File, String)>; 2],
    /// When an unfinished line of rank 0 is shown, as somebody may be asked to answer it.
    prompt_at: Option<Instant>,
    /// Whether a file, or standard output or error, could not be written any more, or a host was
    /// lost before all had come from it.
    has_lost: bool,
}

impl Printer {
    /// For so many ranks, of which each is remembered by so many lines.
    pub(crate) fn new(
        ranks: usize,
        label: Option<Label>,
        last_lines: usize,
    ) -> io::Result<Printer> {
        let sinks = sinks()?;
        let width = ranks.saturating_sub(1).to_string().len();
        let outlet = |number: usize| {
            let rank = number / 2;
            let label = match label {
                None => String::new(),
                Some(Label::Number) => format!("[{rank:>width$}] "),
                Some(Label::Rank) => format!("[rank {rank:>width$}] "),
            };
            let sink = if number.is_multiple_of(2) { 0 } else { sinks.len() - 1 };
            let asks = rank == 0 && sinks[sink].is_terminal();
            Outlet::Lines { lines: Lines::new(number, label), sink, asks }
        };
        Ok(Printer {
            outlets: (0..2 * ranks).map(outlet).collect(),
            tails: (0..2 * ranks).map(|_| Tail::default()).collect(),
            open: OpenFiles::default(),
            last_lines,
            copies: [None, None],
            sinks,
            prompt_at: None,
            has_lost: false,
        })
    }

    /// The output of rank 0 goes into these files, too.
    pub(crate) fn copy_first(&mut self, files: Files, names: [String; 2]) {
        let [out, err] = names;
        self.copies = [Some((files.stdout, out)), Some((files.stderr, err))];
    }

    /// The last lines that a rank wrote on standard output or error, as far as they came by here.
    pub(crate) fn tail(&self, rank: usize, stream: usize) -> &Tail {
        &self.tails[2 * rank + stream]
    }

    /// The output of this rank, which runs on another machine, goes into these files.
    pub(crate) fn divert(&mut self, rank: usize, paths: [PathBuf; 2]) {
        for (stream, path) in paths.into_iter().enumerate() {
            self.outlets[2 * rank + stream] = Outlet::File { path };
        }
    }

    /// Takes in what a rank wrote.
    pub(crate) fn take(&mut self, piece: Piece<'_>) {
        let number = 2 * piece.rank as usize + usize::from(piece.stream);
        let Some(outlet) = self.outlets.get_mut(number) else { return };
        let mut complaint = None;
        if self.last_lines > 0 {
            self.tails[number].push(piece.bytes, self.last_lines);
        }
        if let Some(copy) = self.copies.get_mut(number)
            && let Some((file, name)) = copy
            && let Err(error) = file.write_all(piece.bytes)
        {
            complaint = Some(format!("gaspi_run: --output-dir: {name}: {error}\n"));
            *copy = None;
        }
        match outlet {
            Outlet::Lines { lines, sink, .. } if piece.bytes.is_empty() => {
                lines.finish(&mut self.sinks[*sink]);
            }
            Outlet::Lines { lines, sink, asks } => {
                lines.push(piece.bytes, &mut self.sinks[*sink]);
                if *asks {
                    let unfinished = lines.unfinished();
                    self.prompt_at = unfinished.then(|| Instant::now() + PROMPT);
                }
            }
            Outlet::File { .. } if piece.bytes.is_empty() => {}
            Outlet::File { path } => {
                if let Err(error) = self.open.append(number, path, piece.bytes) {
                    let name = path.display();
                    complaint = Some(format!("gaspi_run: --output-dir: {name}: {error}\n"));
                    *outlet = Outlet::Closed;
                }
            }
            Outlet::Closed => {}
        }
        if let Some(text) = complaint {
            self.has_lost = true;
            self.say(&text);
        }
    }

    /// Output of a rank may not have come here.
    pub(crate) fn note_loss(&mut self) {
        self.has_lost = true;
    }

    /// Whether output of a rank did not get to where it belongs.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Finishes the lines of a rank that says no more.
    pub(crate) fn finish(&mut self, rank: u32) {
        for stream in 0..2 {
            self.take(Piece { rank, stream, bytes: &[] });
        }
    }

    /// Says something on standard error, on lines of its own.
    pub(crate) fn say(&mut self, text: &str) {
        if let Some(sink) = self.sinks.last_mut() {
            sink.put(Writer::Launcher, "", text.as_bytes());
        }
    }

    /// Whether more should be taken in.
    pub(crate) fn has_room(&self) -> bool {
        self.sinks.iter().all(Sink::has_room)
    }

    /// To be written to, where something waits for that.
    pub(crate) fn writable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sinks.iter().filter(|sink| sink.pending()).map(Sink::as_fd)
    }

    /// Writes what can be written without blocking.
    pub(crate) fn flush(&mut self) {
        self.sinks.iter_mut().for_each(Sink::flush);
        for at in 0..self.sinks.len() {
            if let Some(failure) = self.sinks[at].take_failure() {
                self.give_up(at, &failure);
            }
        }
    }

    /// Says that standard output (0) or error cannot be written any more. A reader that left did
    /// so on purpose; everything else is a failure.
    fn give_up(&mut self, sink: usize, failure: &io::Error) {
        let name = if sink == 0 { "output" } else { "error" };
        let left = failure.kind() == io::ErrorKind::BrokenPipe;
        self.has_lost |= !left;
        let reason = if left { "its reader has gone".to_owned() } else { failure.to_string() };
        self.say(&format!(
            "gaspi_run: standard {name}: {reason}; what ranks still write there is lost\n"
        ));
    }

    /// When [`Printer::show_prompt`] has something to do.
    pub(crate) fn prompt_at(&self) -> Option<Instant> {
        self.prompt_at
    }

    /// Shows the line that rank 0 began some time ago.
    pub(crate) fn show_prompt(&mut self) {
        if self.prompt_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.prompt_at = None;
        for outlet in self.outlets.iter_mut().take(2) {
            if let Outlet::Lines { lines, sink, asks: true } = outlet {
                lines.finish(&mut self.sinks[*sink]);
            }
        }
    }
}

/// Standard output and error, as one if they are the same.
fn sinks() -> io::Result<Vec<Sink>> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let (output, error): (BorrowedFd<'_>, BorrowedFd<'_>) = (stdout.as_fd(), stderr.as_fd());
    let output = Sink::new(output)?;
    Ok(if output.same(error) { vec![output] } else { vec![output, Sink::new(error)?] })
}
