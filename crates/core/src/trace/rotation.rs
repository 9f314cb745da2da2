//! Rotation of capture files: when the next begins, names, and removal of the oldest.

use super::error::TraceError;
use super::format::Compression;
use super::output::Output;
use crate::output_file::{self, OutputError, Place};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// When a new file begins, and the maximum number of files. `None` sets no limit. With both size and time,
/// the first to be reached counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Maximum bytes of a file on the disk. Only a single larger packet makes a larger file.
    pub size_bytes: Option<u64>,
    /// A file that has packets ends this long after it began.
    pub time_ns: Option<u64>,
    /// Maximum number of files, including the current one: a new file removes the oldest.
    pub files: Option<u32>,
}

impl Rotation {
    /// Whether a capture may have several files.
    pub fn is_on(&self) -> bool {
        self.size_bytes.is_some() || self.time_ns.is_some()
    }
}

/// Digits of the number in a file name, so that names sort as the files were written.
const NUMBER_DIGITS: usize = 6;

/// The numbered files of one capture: `NAME.000001.pcapng`, `NAME.000002.pcapng`, ...
///
/// It continues after the highest existing number, and existing files count: a restarted capture keeps
/// within the limit, and removes nothing that the limit allows.
pub(super) struct FileSeries {
    directory: PathBuf,
    stem: String,
    suffix: String,
    files: Option<u32>,
    existing: VecDeque<u64>,
    next: u64,
}

impl FileSeries {
    pub(super) fn new(path: &Path, files: Option<u32>) -> Result<Self, TraceError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (stem, suffix) = split_name(&name);
        let mut series = Self {
            directory: path.parent().unwrap_or(Path::new("")).to_owned(),
            stem: stem.to_owned(),
            suffix: suffix.to_owned(),
            files,
            existing: VecDeque::new(),
            next: 1,
        };
        let mut numbers = series.numbers().map_err(|source| OutputError::Create {
            path: path.into(),
            source,
        })?;
        numbers.sort_unstable();
        series.next = numbers.last().map_or(1, |last| last + 1);
        // Two captures that remove the oldest file would remove each other's.
        if let Some(&last) = numbers.last() {
            output_file::check_unused(&series.path(last))?;
        }
        series.existing = numbers.into();
        Ok(series)
    }

    /// Opens the next file; [`FileSeries::take`] gives it its name.
    pub(super) fn open(&mut self) -> Result<(Output, Place), TraceError> {
        while self.path(self.next).symlink_metadata().is_ok() {
            self.next += 1;
        }
        // Do not wait for a FIFO that now has this name.
        Output::file(&self.path(self.next), &mut || true)
    }

    /// Gives the opened file its name.
    pub(super) fn take(&mut self, place: &mut Place) -> Result<(), TraceError> {
        place.take()?;
        self.existing.push_back(self.next);
        self.next += 1;
        Ok(())
    }

    /// Makes room for the next file and opens it. The second result is from making room.
    pub(super) fn open_next(&mut self) -> (Result<Output, TraceError>, Result<(), TraceError>) {
        let removed = self.make_room();
        let output = self.open().and_then(|(output, mut place)| {
            self.take(&mut place)?;
            Ok(output)
        });
        (output, removed)
    }

    /// Removes the oldest files, so that the next one is within the limit.
    pub(super) fn make_room(&mut self) -> Result<(), TraceError> {
        let mut removed = Ok(());
        let Some(files) = self.files else {
            return removed;
        };
        while self.existing.len() >= files.max(1) as usize {
            let Some(oldest) = self.existing.pop_front() else {
                break;
            };
            let path = self.path(oldest);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    removed = Err(TraceError::Remove {
                        path: path.display().to_string(),
                        source,
                    });
                }
                _ => {}
            }
        }
        removed
    }

    fn path(&self, number: u64) -> PathBuf {
        let (stem, suffix) = (&self.stem, &self.suffix);
        self.directory
            .join(format!("{stem}.{number:0NUMBER_DIGITS$}{suffix}"))
    }

    /// The numbers of the existing files.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let directory = match self.directory.as_os_str().is_empty() {
            true => Path::new("."),
            false => &self.directory,
        };
        let mut numbers = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let digits = name
                .to_str()
                .and_then(|name| name.strip_prefix(self.stem.as_str()))
                .and_then(|name| name.strip_prefix('.'))
                .and_then(|name| name.strip_suffix(self.suffix.as_str()));
            if let Some(digits) = digits
                && digits.len() >= NUMBER_DIGITS
                && digits.bytes().all(|byte| byte.is_ascii_digit())
                && let Ok(number) = digits.parse()
            {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }
}

/// Splits `day.pcapng.zst` into `day` and `.pcapng.zst`.
fn split_name(name: &str) -> (&str, &str) {
    let compression = Compression::of_name(Path::new(name)).suffix();
    let plain = name.strip_suffix(compression).unwrap_or(name);
    let end = match plain.rfind('.') {
        Some(dot) if dot > 0 => dot,
        _ => plain.len(),
    };
    name.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_precedes_the_suffixes() {
        for (name, stem, suffix) in [
            ("day.pcapng.zst", "day", ".pcapng.zst"),
            ("a.b.pcap", "a.b", ".pcap"),
            ("day", "day", ""),
            (".hidden", ".hidden", ""),
            ("day.gz", "day", ".gz"),
        ] {
            assert_eq!(split_name(name), (stem, suffix), "{name}");
        }
    }

    #[test]
    fn a_series_continues_an_earlier_one_within_the_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        for number in [3, 4, 12] {
            fs::write(directory.path().join(format!("t.{number:06}.pcap")), b"x").expect("a file");
        }
        for name in ["t.pcap", "t.12.pcap", "t.000099.pcapng", "u.000050.pcap"] {
            fs::write(directory.path().join(name), b"x").expect("a file");
        }
        let mut series =
            FileSeries::new(&directory.path().join("t.pcap"), Some(2)).expect("readable");
        let (output, removed) = series.open_next();
        output.expect("a file");
        removed.expect("removable");
        let mut numbers = series.numbers().expect("readable");
        numbers.sort_unstable();
        assert_eq!(numbers, [12, 13]);
        for name in ["t.pcap", "t.12.pcap", "t.000099.pcapng", "u.000050.pcap"] {
            assert!(directory.path().join(name).exists(), "{name} is not ours");
        }
    }
}
