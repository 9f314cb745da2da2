//! Numbered files of one output, `NAME.000001.arrow`, `NAME.000002.arrow`, ...: when the next one begins, names, and
//! removal of the oldest.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::{OutputError, Place, check_unused};

/// Digits of the number in a file name, so that names sort as the files were written.
const NUMBER_DIGITS: usize = 6;
/// Suffixes of compressed files, which stay behind that of the format.
const COMPRESSED: [&str; 3] = [".gz", ".zst", ".lz4"];

/// When a new file begins, and which files stay. `None` sets no limit. With both size and time, the first to be
/// reached counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rotation {
    /// Maximum bytes of a file on the disk. Only a single larger packet makes a larger file.
    pub size_bytes: Option<u64>,
    /// A file that has content ends this long after it began.
    pub time_ns: Option<u64>,
    /// Maximum number of files, including the current one: a new file removes the oldest.
    pub files: Option<u32>,
    /// A new file removes those that were last written so long ago.
    pub keep_ns: Option<u64>,
}

impl Rotation {
    /// Whether an output may have several files.
    pub fn is_on(&self) -> bool {
        self.size_bytes.is_some() || self.time_ns.is_some()
    }

    /// The limit that only makes sense with several files, and its value, when there is but one.
    pub fn limit_without_rotation(&self) -> Option<(&'static str, String)> {
        if self.is_on() {
            return None;
        }
        let files = self
            .files
            .map(|files| ("number of files", files.to_string()));
        let seconds = |ns| format!("{} s", ns as f64 / 1e9);
        files.or_else(|| self.keep_ns.map(|ns| ("age of files", seconds(ns))))
    }
}

/// The numbered files of one output.
///
/// It continues after the highest existing number, and existing files count: a restarted program keeps
/// within the limits, and removes nothing that they allow.
#[derive(Debug)]
pub struct FileSeries {
    directory: PathBuf,
    stem: String,
    suffix: String,
    rotation: Rotation,
    existing: VecDeque<u64>,
    next: u64,
}

impl FileSeries {
    /// The series of the file name `path`.
    ///
    /// # Errors
    /// [`OutputError::Create`] when the directory cannot be read, [`OutputError::Busy`] when another process
    /// writes the newest file.
    pub fn new(path: &Path, rotation: Rotation) -> Result<Self, OutputError> {
        let failed = |source| OutputError::Create {
            path: path.into(),
            source,
        };
        let (directory, stem, suffix) = split_path(path);
        let numbers = numbers(&directory, &stem, &suffix).map_err(failed)?;
        let series = Self {
            next: numbers.last().map_or(1, |last| last + 1),
            existing: numbers.into(),
            directory,
            stem,
            suffix,
            rotation,
        };
        // Two programs that remove the oldest file would remove each other's.
        if let Some(&last) = series.existing.back() {
            check_unused(&series.path(last))?;
        }
        Ok(series)
    }

    /// The path of the next file; [`FileSeries::take`] gives the file its name.
    pub fn next_path(&mut self) -> PathBuf {
        while self.path(self.next).symlink_metadata().is_ok() {
            self.next += 1;
        }
        self.path(self.next)
    }

    /// The number of the next file.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Gives the file that was created at [`FileSeries::next_path`] its name.
    ///
    /// # Errors
    /// As [`Place::take`].
    pub fn take(&mut self, place: &mut Place) -> Result<(), OutputError> {
        place.take()?;
        self.existing.push_back(self.next);
        self.next += 1;
        Ok(())
    }

    /// Removes the oldest files, so that the next one is within the limits.
    ///
    /// # Errors
    /// [`OutputError::Remove`] names the last one that could not be removed.
    pub fn make_room(&mut self) -> Result<(), OutputError> {
        let mut removed = Ok(());
        while let Some(&oldest) = self.existing.front() {
            let path = self.path(oldest);
            if !self.is_too_many() && !self.is_too_old(&path) {
                break;
            }
            self.existing.pop_front();
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    removed = Err(OutputError::Remove { path, source });
                }
                _ => {}
            }
        }
        removed
    }

    fn is_too_many(&self) -> bool {
        (self.rotation.files).is_some_and(|files| self.existing.len() >= files.max(1) as usize)
    }

    fn is_too_old(&self, path: &Path) -> bool {
        let Some(age) = self.rotation.keep_ns.map(Duration::from_nanos) else {
            return false;
        };
        let written = path.metadata().and_then(|metadata| metadata.modified());
        written.is_ok_and(|written| {
            SystemTime::now()
                .duration_since(written)
                .is_ok_and(|passed| passed >= age)
        })
    }

    fn path(&self, number: u64) -> PathBuf {
        numbered(&self.directory, &self.stem, number, &self.suffix)
    }
}

/// The existing files of the series of the file name `path`, in the order in which they were written.
///
/// # Errors
/// The error of the system when the directory cannot be read.
pub fn files_of_series(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (directory, stem, suffix) = split_path(path);
    let numbers = numbers(&directory, &stem, &suffix)?;
    Ok((numbers.into_iter())
        .map(|number| numbered(&directory, &stem, number, &suffix))
        .collect())
}

/// The file name of the series to which a file belongs, `NAME.arrow` for `NAME.000007.arrow`; `None` for a file
/// without a number.
pub fn series_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let (stem, suffix) = split_name(name);
    let (stem, digits) = stem.rsplit_once('.')?;
    is_number(digits).then(|| path.with_file_name(format!("{stem}{suffix}")))
}

fn numbered(directory: &Path, stem: &str, number: u64, suffix: &str) -> PathBuf {
    directory.join(format!("{stem}.{number:0NUMBER_DIGITS$}{suffix}"))
}

fn is_number(digits: &str) -> bool {
    digits.len() >= NUMBER_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The numbers of the existing files, ascending.
fn numbers(directory: &Path, stem: &str, suffix: &str) -> io::Result<Vec<u64>> {
    let directory = match directory.as_os_str().is_empty() {
        true => Path::new("."),
        false => directory,
    };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let digits = name
            .to_str()
            .and_then(|name| name.strip_prefix(stem))
            .and_then(|name| name.strip_prefix('.'))
            .and_then(|name| name.strip_suffix(suffix));
        if let Some(digits) = digits
            && is_number(digits)
            && let Ok(number) = digits.parse()
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Splits `logs/day.pcapng.zst` into `logs`, `day` and `.pcapng.zst`.
fn split_path(path: &Path) -> (PathBuf, String, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, suffix) = split_name(&name);
    let directory = path.parent().unwrap_or(Path::new(""));
    (directory.to_owned(), stem.to_owned(), suffix.to_owned())
}

fn split_name(name: &str) -> (&str, &str) {
    let plain = (COMPRESSED.iter())
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
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
    fn a_file_names_its_series() {
        for (file, series) in [
            ("logs/day.000007.arrow", Some("logs/day.arrow")),
            ("day.1234567.pcapng.zst", Some("day.pcapng.zst")),
            ("day.07.arrow", None),
            ("day.arrow", None),
        ] {
            assert_eq!(series_of(Path::new(file)), series.map(PathBuf::from));
        }
    }

    #[test]
    fn a_series_continues_an_earlier_one_within_the_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t.pcap");
        for number in [3, 4, 12] {
            fs::write(directory.path().join(format!("t.{number:06}.pcap")), b"x").expect("a file");
        }
        let others = ["t.pcap", "t.12.pcap", "t.000099.pcapng", "u.000050.pcap"];
        for name in others {
            fs::write(directory.path().join(name), b"x").expect("a file");
        }
        let kept = Rotation {
            files: Some(2),
            ..Rotation::default()
        };
        let mut series = FileSeries::new(&path, kept).expect("readable");
        series.make_room().expect("removable");
        let (_file, mut place) =
            super::super::create(&series.next_path(), &mut || true).expect("a file");
        series.take(&mut place).expect("its name is free");
        let names: Vec<_> = files_of_series(&path).expect("readable");
        let expected = ["t.000012.pcap", "t.000013.pcap"].map(|name| directory.path().join(name));
        assert_eq!(names, expected);
        for name in others {
            assert!(directory.path().join(name).exists(), "{name} is not ours");
        }
    }

    #[test]
    fn what_is_too_old_goes_and_the_rest_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t.arrow");
        let hour = Duration::from_secs(3600);
        for (number, age) in [(1, 5 * hour), (2, 3 * hour), (3, hour)] {
            let name = directory.path().join(format!("t.{number:06}.arrow"));
            let file = fs::File::create(&name).expect("a file");
            file.set_modified(SystemTime::now() - age).expect("a time");
        }
        let kept = Rotation {
            keep_ns: Some(2 * hour.as_nanos() as u64),
            ..Rotation::default()
        };
        let mut series = FileSeries::new(&path, kept).expect("readable");
        series.make_room().expect("removable");
        let left = files_of_series(&path).expect("readable");
        assert_eq!(left, [directory.path().join("t.000003.arrow")]);
    }
}
