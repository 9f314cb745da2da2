//! Output files. A new file is written under a temporary name beside the old file, which it replaces once its
//! head, or all of it, is written. A file that another process is writing is refused.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags};
use rustix::io::Errno;

/// Interval between attempts to open a FIFO without a reader: an open(2) that waits ignores signals.
const READER_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of symbolic links, as in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// Maximum bytes of a name in the name of its temporary file, which must not exceed `NAME_MAX`.
const NAME_BYTES_KEPT: usize = 200;

/// Why an output file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum OutputError {
    /// It cannot be created.
    #[error("{}: cannot be written: {source}; name a file in a directory that you may write to", path.display())]
    Create { path: PathBuf, source: io::Error },
    /// Another process writes it.
    #[error("{}: another process is writing it; name another file", path.display())]
    Busy { path: PathBuf },
    /// The file or a link to it belongs to another user, in a directory that every user may write to.
    #[error(
        "{}: belongs to another user, in a directory that others may write to; name a file elsewhere",
        path.display()
    )]
    Foreign { path: PathBuf },
    /// The caller stopped before another program opened the FIFO for reading.
    #[error("{}: stopped before a reader opened it", path.display())]
    Stopped { path: PathBuf },
}

/// The path of an output file. [`Place::take`] moves the new file there. Without it, a drop removes the new
/// file and keeps the old one.
#[derive(Debug)]
pub struct Place {
    /// The path as the caller gave it.
    path: PathBuf,
    /// The same without symbolic links.
    target: PathBuf,
    /// The new file; `None` once it is in its place, and for FIFOs, devices and descriptors, which are opened
    /// directly.
    part: Option<PathBuf>,
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
    let fail = |source: io::Error| OutputError::Create {
        path: path.into(),
        source,
    };
    let mut place = Place::new(path);
    let Some(target) = resolve(path)? else {
        let file = File::options().append(true).open(path).map_err(fail)?;
        return Ok((file, place));
    };
    place.target = target;
    if let Ok(metadata) = fs::symlink_metadata(&place.target)
        && !metadata.is_file()
    {
        check_owner(path, &place.target, &metadata)?;
        let file = place.open_special(metadata.file_type().is_fifo(), is_stopping)?;
        return Ok((file, place));
    }
    place.lock_existing()?;
    let file = place.create_part().map_err(fail)?;
    place.lock(&file)?;
    if let Some(before) = &place.existing {
        let before = before.metadata().map_err(fail)?;
        // Best effort: a file system may support neither, and only root changes owners.
        let _ = std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid()));
        let _ = file.set_permissions(before.permissions());
    }
    Ok((file, place))
}

/// Refuses a file that another process is writing.
///
/// # Errors
/// [`OutputError::Busy`], or [`OutputError::Create`] when it may not be written.
pub fn check_unused(path: &Path) -> Result<(), OutputError> {
    Place::new(path).lock_existing()
}

impl Place {
    fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            target: path.into(),
            part: None,
            existing: None,
        }
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
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(CWD, &part, CWD, &self.target, flags) {
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
        fs::rename(&part, &self.target).map_err(|source| self.failed(source))?;
        self.part = None;
        self.existing = None;
        Ok(())
    }

    fn failed(&self, source: io::Error) -> OutputError {
        OutputError::Create {
            path: self.path.clone(),
            source,
        }
    }

    /// Opens a FIFO or a device.
    fn open_special(
        &self,
        is_fifo: bool,
        is_stopping: &mut dyn FnMut() -> bool,
    ) -> Result<File, OutputError> {
        let mut options = File::options();
        let options = options
            .write(true)
            .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW).bits() as i32);
        let file = loop {
            match options.open(&self.target) {
                Err(error)
                    if is_fifo && error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) =>
                {
                    if is_stopping() {
                        return Err(OutputError::Stopped {
                            path: self.path.clone(),
                        });
                    }
                    std::thread::sleep(READER_INTERVAL);
                }
                opened => break opened.map_err(|source| self.failed(source))?,
            }
        };
        rustix::fs::fcntl_getfl(&file)
            .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK))
            .map_err(|error| self.failed(error.into()))?;
        if is_fifo {
            self.lock(&file)?;
        }
        Ok(file)
    }

    /// Opens and locks the existing file. A process that replaces a file holds the locks of the old and of the new one,
    /// so that two processes cannot take the same place at the same time.
    fn lock_existing(&mut self) -> Result<(), OutputError> {
        loop {
            let mut options = File::options();
            let options = options
                .write(true)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32);
            let file = match options.open(&self.target) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(self.failed(error)),
            };
            let opened = file.metadata().map_err(|source| self.failed(source))?;
            check_owner(&self.path, &self.target, &opened)?;
            self.lock(&file)?;
            let is_still_there = fs::metadata(&self.target)
                .is_ok_and(|there| (there.dev(), there.ino()) == (opened.dev(), opened.ino()));
            if is_still_there {
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

    fn create_part(&mut self) -> io::Result<File> {
        let name = self.target.file_name().unwrap_or_default().as_bytes();
        let kept = &name[..name.len().min(NAME_BYTES_KEPT)];
        let process = std::process::id();
        let mut number = 0;
        loop {
            let mut part_name = std::ffi::OsStr::from_bytes(kept).to_os_string();
            part_name.push(match number {
                0 => format!(".{process}.part"),
                number => format!(".{process}.{number}.part"),
            });
            let part = self.target.with_file_name(part_name);
            match File::create_new(&part) {
                // It belongs to another thread, or a killed process left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                created => {
                    let file = created?;
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
            let _ = fs::remove_file(part);
        }
    }
}

/// The path without symbolic links, so that their target is replaced, not a link. `None` for a link below
/// `/proc`: a descriptor.
fn resolve(given: &Path) -> Result<Option<PathBuf>, OutputError> {
    let fail = |source: io::Error| OutputError::Create {
        path: given.into(),
        source,
    };
    let mut path = given.to_path_buf();
    for _ in 0..LINKS_MAX {
        let name = match path.file_name() {
            Some(name) if !path.as_os_str().as_bytes().ends_with(b"/") => name,
            _ => return Err(fail(Errno::ISDIR.into())),
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory = fs::canonicalize(parent).map_err(fail)?;
        let whole = directory.join(name);
        match fs::read_link(&whole) {
            Ok(_) if directory.starts_with("/proc") => return Ok(None),
            Ok(link) => {
                let metadata = fs::symlink_metadata(&whole).map_err(fail)?;
                check_owner(given, &whole, &metadata)?;
                path = directory.join(link);
            }
            Err(_) => return Ok(Some(whole)),
        }
    }
    Err(fail(Errno::LOOP.into()))
}

/// Refuses files and links of other users in a directory with the sticky bit, such as /tmp. Through such a
/// link, root would overwrite any file; such a file would keep its owner. The kernel's rules
/// (`protected_symlinks`, `protected_regular` and `protected_fifos` of proc_sys_fs(5)) apply when a file is
/// opened by name; here the owner is checked before.
fn check_owner(given: &Path, whole: &Path, metadata: &fs::Metadata) -> Result<(), OutputError> {
    let Some(directory) = whole.parent().and_then(|parent| fs::metadata(parent).ok()) else {
        return Ok(());
    };
    let is_shared = directory.mode() & 0o1000 != 0 && directory.mode() & 0o022 != 0;
    let owner = metadata.uid();
    if is_shared && owner != rustix::process::geteuid().as_raw() && owner != directory.uid() {
        return Err(OutputError::Foreign { path: given.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

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
                    Err(OutputError::Foreign { .. })
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
}
