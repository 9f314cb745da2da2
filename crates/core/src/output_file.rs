//! Output files. A new file is written under a temporary name beside the old file, which it replaces once its
//! head, or all of it, is written. A file that another process is writing is refused.
//!
//! Links of other users are not followed, and no links at all below a directory whose content others may have
//! made. The file's directory is opened once: it is the same one when it is checked and when it is used.

mod error;
mod place;
pub mod series;

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

pub use error::OutputError;
use place::{Spot, check_owner, find, find_below};

/// Interval between attempts to open a FIFO without a reader: an open(2) that waits ignores signals.
const READER_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum bytes of a name in the name of its temporary file, which must not exceed `NAME_MAX`.
const NAME_BYTES_KEPT: usize = 200;

/// The path of an output file. [`Place::take`] moves the new file there. Without it, a drop removes the new
/// file and keeps the old one.
#[derive(Debug)]
pub struct Place {
    /// The path as the caller gave it.
    path: PathBuf,
    /// The same without symbolic links.
    spot: Spot,
    /// The name of the new file; `None` once it is in its place, and for FIFOs, devices and descriptors, which are
    /// opened directly.
    part: Option<OsString>,
    /// The file at the place, locked, so that no other Parshall process replaces it.
    existing: Option<File>,
}

/// Opens a file for writing. A file that exists stays as it is until [`Place::take`]; the new one gets its
/// owner and permissions. The new file is locked as long as it is open. The call waits until a FIFO has a
/// reader, and fails if `is_stopping` returns true before. A descriptor (`/dev/stdout`) is appended to.
///
/// # Errors
/// [`OutputError`]; no file is changed then.
pub fn create(
    path: &Path,
    is_stopping: &mut dyn FnMut() -> bool,
) -> Result<(File, Place), OutputError> {
    let place = Place::new(path, find(path)?);
    if place.spot.is_descriptor {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
        let file = place.open(flags).map_err(|error| place.failed(error))?;
        return Ok((file, place));
    }
    if let Ok(stat) = place.spot.stat()
        && FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
    {
        check_owner(path, &place.spot, &stat)?;
        let is_fifo = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
        let file = place.open_special(is_fifo, is_stopping)?;
        return Ok((file, place));
    }
    place.create()
}

/// Opens a file below a directory whose content others may have made: a bundle, a directory of logs. Directories
/// between the two are created. A symbolic link, a FIFO or a device in the way is an error.
///
/// # Errors
/// [`OutputError`]; no file is changed then.
pub fn create_below(directory: &Path, name: &Path) -> Result<(File, Place), OutputError> {
    let place = Place::new(&directory.join(name), find_below(directory, name)?);
    let what = match place.spot.stat() {
        Err(_) => return place.create(),
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return place.create(),
            FileType::Directory => "is a directory",
            _ => "is neither a file nor a directory",
        },
    };
    Err(OutputError::InTheWay {
        path: place.path.clone(),
        what,
    })
}

/// Refuses a file that another process is writing.
///
/// # Errors
/// [`OutputError::Busy`], or [`OutputError::Create`] when it may not be written.
pub fn check_unused(path: &Path) -> Result<(), OutputError> {
    Place::new(path, find(path)?).lock_existing()
}

impl Place {
    fn new(path: &Path, spot: Spot) -> Self {
        Self {
            path: path.into(),
            spot,
            part: None,
            existing: None,
        }
    }

    /// Creates the new file.
    fn create(mut self) -> Result<(File, Self), OutputError> {
        self.lock_existing()?;
        let file = self.create_part().map_err(|error| self.failed(error))?;
        self.lock(&file)?;
        if let Some(before) = &self.existing {
            let before = rustix::fs::fstat(before).map_err(|error| self.failed(error))?;
            // Best effort: a file system may support neither, and only root changes owners.
            let _ = std::os::unix::fs::fchown(&file, Some(before.st_uid), Some(before.st_gid));
            let _ = rustix::fs::fchmod(&file, Mode::from_raw_mode(before.st_mode));
        }
        Ok((file, self))
    }

    /// Puts the new file into its place.
    ///
    /// # Errors
    /// [`OutputError`]; the old file stays then.
    pub fn take(&mut self) -> Result<(), OutputError> {
        let Some(part) = self.part.clone() else {
            return Ok(());
        };
        if self.existing.is_none() {
            match self.rename(&part, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.part = None;
                    return Ok(());
                }
                // Another process created one meanwhile.
                Err(Errno::EXIST) => self.lock_existing()?,
                // The file system lacks the flag, or the next call fails for the same reason.
                Err(_) => {}
            }
        }
        self.rename(&part, RenameFlags::empty())
            .map_err(|error| self.failed(error))?;
        self.part = None;
        self.existing = None;
        Ok(())
    }

    fn rename(&self, part: &OsString, flags: RenameFlags) -> rustix::io::Result<()> {
        let directory = &self.spot.directory;
        if flags.is_empty() {
            // Older file systems and kernels know the call without flags only.
            return rustix::fs::renameat(directory, part, directory, &self.spot.name);
        }
        rustix::fs::renameat_with(directory, part, directory, &self.spot.name, flags)
    }

    fn failed(&self, error: Errno) -> OutputError {
        OutputError::Create {
            path: self.path.clone(),
            source: error.into(),
        }
    }

    fn open(&self, flags: OFlags) -> rustix::io::Result<File> {
        let (directory, name) = (&self.spot.directory, &self.spot.name);
        rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from)
    }

    /// Opens a FIFO or a device.
    fn open_special(
        &self,
        is_fifo: bool,
        is_stopping: &mut dyn FnMut() -> bool,
    ) -> Result<File, OutputError> {
        let flags =
            OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = loop {
            match self.open(flags) {
                Err(Errno::NXIO) if is_fifo => {
                    if is_stopping() {
                        return Err(OutputError::Stopped {
                            path: self.path.clone(),
                        });
                    }
                    std::thread::sleep(READER_INTERVAL);
                }
                opened => break opened.map_err(|error| self.failed(error))?,
            }
        };
        rustix::fs::fcntl_getfl(&file)
            .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK))
            .map_err(|error| self.failed(error))?;
        if is_fifo {
            self.lock(&file)?;
        }
        Ok(file)
    }

    /// Opens and locks the existing file. A process that replaces a file holds the locks of the old and of the new one,
    /// so that two processes cannot take the same place at the same time.
    fn lock_existing(&mut self) -> Result<(), OutputError> {
        loop {
            // Not waiting for a FIFO that takes the file's place meanwhile.
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = match self.open(flags) {
                Ok(file) => file,
                Err(Errno::NOENT) => return Ok(()),
                Err(error) => return Err(self.failed(error)),
            };
            let opened = rustix::fs::fstat(&file).map_err(|error| self.failed(error))?;
            check_owner(&self.path, &self.spot, &opened)?;
            self.lock(&file)?;
            let identity = |stat: &Stat| (stat.st_dev, stat.st_ino);
            if self
                .spot
                .stat()
                .is_ok_and(|there| identity(&there) == identity(&opened))
            {
                self.existing = Some(file);
                return Ok(());
            }
        }
    }

    /// The lock ends with the file's last descriptor. A file system without locks is no error.
    fn lock(&self, file: &File) -> Result<(), OutputError> {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(OutputError::Busy {
                path: self.path.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn create_part(&mut self) -> rustix::io::Result<File> {
        let name = self.spot.name.as_bytes();
        let kept = &name[..name.len().min(NAME_BYTES_KEPT)];
        let process = std::process::id();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut number = 0;
        loop {
            let mut part = std::ffi::OsStr::from_bytes(kept).to_os_string();
            part.push(match number {
                0 => format!(".{process}.part"),
                number => format!(".{process}.{number}.part"),
            });
            let mode = Mode::from_raw_mode(0o666);
            match rustix::fs::openat(&self.spot.directory, &part, flags, mode) {
                // It belongs to another thread, or a killed process left it.
                Err(Errno::EXIST) => number += 1,
                created => {
                    let file = created?.into();
                    self.part = Some(part);
                    return Ok(file);
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = rustix::fs::unlinkat(&self.spot.directory, part, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io;
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::CWD;

    fn never() -> bool {
        false
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("readable")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into()
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_takes_its_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("out");
        fs::write(&path, "old").expect("room");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .expect("ours");
        let (mut file, place) = create(&path, &mut never).expect("a file");
        file.write_all(b"new").expect("room");
        assert_eq!(fs::read(&path).expect("there"), b"old");
        drop(place);
        assert_eq!(names(directory.path()), ["out"]);
        assert_eq!(fs::read(&path).expect("there"), b"old");

        let (mut file, mut place) = create(&path, &mut never).expect("a file");
        file.write_all(b"new").expect("room");
        place.take().expect("a place");
        drop(place);
        assert_eq!(names(directory.path()), ["out"]);
        assert_eq!(fs::read(&path).expect("there"), b"new");
        let mode = fs::metadata(&path).expect("there").mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn a_second_writer_is_refused_before_and_after_the_place_is_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("out");
        let is_busy = || matches!(create(&path, &mut never), Err(OutputError::Busy { .. }));
        for existed in [false, true] {
            let (file, mut place) = create(&path, &mut never).expect("a file");
            assert_eq!(is_busy(), existed, "what is there is locked");
            place.take().expect("a place");
            drop(place);
            assert!(is_busy());
            drop(file);
            assert!(!is_busy());
        }
    }

    #[test]
    fn only_one_of_two_concurrent_writers_takes_the_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("out");
        let (mut first, mut first_place) = create(&path, &mut never).expect("a file");
        let (_second, mut second_place) = create(&path, &mut never).expect("a file");
        first.write_all(b"first").expect("room");
        first_place.take().expect("a place");
        assert!(matches!(second_place.take(), Err(OutputError::Busy { .. })));
        drop(second_place);
        assert_eq!(names(directory.path()), ["out"]);
        assert_eq!(fs::read(&path).expect("there"), b"first");
    }

    #[test]
    fn the_target_of_a_link_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let inside = directory.path().join("inside");
        fs::create_dir(&inside).expect("room");
        for existed in [false, true] {
            let link = directory.path().join("link");
            let target = inside.join("target");
            if !existed {
                std::os::unix::fs::symlink("inside/target", &link).expect("room");
            }
            let (mut file, mut place) = create(&link, &mut never).expect("a file");
            file.write_all(b"new").expect("room");
            place.take().expect("a place");
            assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
            assert_eq!(fs::read(&target).expect("there"), b"new");
        }
        let circle = directory.path().join("circle");
        std::os::unix::fs::symlink("circle", &circle).expect("room");
        assert!(matches!(
            create(&circle, &mut never),
            Err(OutputError::Create { .. })
        ));
    }

    #[test]
    fn a_descriptor_is_appended_to() {
        use std::os::fd::AsRawFd;
        let mut open = tempfile::tempfile().expect("room");
        open.write_all(b"head ").expect("room");
        let path = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let (mut file, mut place) = create(&path, &mut never).expect("a descriptor");
        file.write_all(b"tail").expect("room");
        place.take().expect("its place");
        let mut text = String::new();
        io::Seek::rewind(&mut open).expect("a file");
        open.read_to_string(&mut text).expect("readable");
        assert_eq!(text, "head tail");
    }

    #[test]
    fn a_fifo_is_opened_once_it_has_a_reader() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
        let mut calls = 0;
        let mut third = || {
            calls += 1;
            calls == 3
        };
        assert!(matches!(
            create(&path, &mut third),
            Err(OutputError::Stopped { .. })
        ));
        let reading = {
            let path = path.clone();
            std::thread::spawn(move || fs::read(path).expect("a writer"))
        };
        let (mut file, mut place) = create(&path, &mut never).expect("a reader");
        let flags = rustix::fs::fcntl_getfl(&file).expect("open");
        assert!(!flags.contains(OFlags::NONBLOCK));
        assert!(matches!(
            create(&path, &mut never),
            Err(OutputError::Busy { .. })
        ));
        file.write_all(b"new").expect("a reader");
        place.take().expect("its place");
        drop(file);
        assert_eq!(reading.join().expect("it ends"), b"new");
        assert_eq!(names(directory.path()), ["fifo"]);
    }

    #[test]
    fn long_names_and_stale_temporary_files_work() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("n".repeat(255));
        let stale = format!("{}.{}.part", "n".repeat(200), std::process::id());
        fs::write(directory.path().join(stale), "stale").expect("room");
        let (_, mut place) = create(&path, &mut never).expect("a file");
        place.take().expect("a place");
        assert!(path.exists());
        for wrong in [directory.path().to_path_buf(), directory.path().join("no/")] {
            assert!(matches!(
                create(&wrong, &mut never),
                Err(OutputError::Create { .. })
            ));
        }
    }

    #[test]
    fn files_of_other_users_in_a_shared_directory_are_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root gives files to another user");
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let place = |name: &str| directory.path().join(name);
        let foreign = |name: &str| {
            std::os::unix::fs::lchown(place(name), Some(65534), Some(65534)).expect("root");
        };
        fs::write(place("precious"), "precious").expect("room");
        fs::write(place("file"), "theirs").expect("room");
        std::os::unix::fs::symlink("precious", place("link")).expect("room");
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(CWD, place("fifo"), rustix::fs::FileType::Fifo, mode, 0)
            .expect("a FIFO");
        for name in ["file", "link", "fifo"] {
            let mut is_stopping = || true;
            let refused = |is_stopping: &mut dyn FnMut() -> bool| {
                matches!(
                    create(&place(name), is_stopping),
                    Err(OutputError::Foreign { .. } | OutputError::ForeignLink { .. })
                )
            };
            fs::set_permissions(
                directory.path(),
                std::os::unix::fs::PermissionsExt::from_mode(0o1777),
            )
            .expect("ours");
            assert!(!refused(&mut is_stopping), "{name} is ours");
            foreign(name);
            assert!(refused(&mut is_stopping), "{name} is theirs");
            // Only root can write to this directory, so root created it.
            fs::set_permissions(
                directory.path(),
                std::os::unix::fs::PermissionsExt::from_mode(0o755),
            )
            .expect("ours");
            assert!(!refused(&mut is_stopping), "{name} where only we write");
        }
        assert_eq!(fs::read(place("precious")).expect("there"), b"precious");
    }

    #[test]
    fn links_of_other_users_in_their_directories_are_not_followed() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root gives links to another user");
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let theirs = directory.path().join("theirs");
        fs::create_dir(&theirs).expect("room");
        fs::create_dir(directory.path().join("ours")).expect("room");
        fs::write(directory.path().join("ours/file"), "precious").expect("room");
        std::os::unix::fs::symlink("../ours/file", theirs.join("file")).expect("room");
        std::os::unix::fs::symlink("../ours", theirs.join("inside")).expect("room");
        for path in ["file", "inside/file", "inside/../theirs/file"] {
            let path = theirs.join(path);
            create(&path, &mut never).expect("links of ours are followed");
        }
        for name in ["file", "inside", ""] {
            let path = theirs.join(name);
            std::os::unix::fs::lchown(path, Some(65534), Some(65534)).expect("root");
        }
        for path in ["file", "inside/file", "inside/../theirs/file", "inside/new"] {
            let refused = create(&theirs.join(path), &mut never);
            let Err(OutputError::ForeignLink { .. }) = refused else {
                panic!("{path}: {refused:?}");
            };
        }
        create(&theirs.join("new"), &mut never).expect("a file");
        assert_eq!(names(&directory.path().join("ours")), ["file"]);
    }

    #[test]
    fn below_a_directory_no_link_is_followed_and_nothing_waits() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = directory.path().join("below");
        fs::create_dir_all(below.join("there")).expect("room");
        fs::create_dir(directory.path().join("outside")).expect("room");
        fs::write(directory.path().join("precious"), "precious").expect("room");
        std::os::unix::fs::symlink("../precious", below.join("file")).expect("room");
        std::os::unix::fs::symlink("nowhere", below.join("dangling")).expect("room");
        std::os::unix::fs::symlink("../outside", below.join("inside")).expect("room");
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(CWD, below.join("fifo"), FileType::Fifo, mode, 0).expect("a FIFO");
        for name in ["file", "dangling", "inside", "inside/new", "fifo", "there"] {
            let refused = create_below(&below, Path::new(name));
            let Err(OutputError::InTheWay { .. }) = refused else {
                panic!("{name}: {refused:?}");
            };
        }
        for name in ["../new", "there/../new", ""] {
            assert!(create_below(&below, Path::new(name)).is_err(), "{name}");
        }
        for text in ["first", "second"] {
            for name in ["new", "there/new", "made/here/new"] {
                let (mut file, mut place) = create_below(&below, Path::new(name)).expect("a file");
                file.write_all(text.as_bytes()).expect("room");
                place.take().expect("its place");
                assert_eq!(fs::read(below.join(name)).expect("there"), text.as_bytes());
            }
        }
        assert_eq!(
            fs::read(directory.path().join("precious")).expect("there"),
            b"precious"
        );
        assert!(names(&directory.path().join("outside")).is_empty());
    }
}
