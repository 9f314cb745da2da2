//! Where an output file goes: the open directory and the name in it, found without following the links of others.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat};
use rustix::io::Errno;

use super::OutputError;

/// Maximum number of symbolic links, as in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// A name in an open directory.
#[derive(Debug)]
pub(super) struct Spot {
    pub directory: OwnedFd,
    pub name: OsString,
    /// Whether it is a link below `/proc`: a descriptor.
    pub is_descriptor: bool,
}

impl Spot {
    /// What is there; a link is not followed.
    pub fn stat(&self) -> rustix::io::Result<Stat> {
        rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Finds a path that the user chose: the target of a link is replaced, not the link.
pub(super) fn find(given: &Path) -> Result<Spot, OutputError> {
    let fail = |error: Errno| create_error(given, error);
    let mut directory = open_directory(CWD, OsStr::new(".")).map_err(fail)?;
    // The next component is the last one.
    let mut left = Vec::new();
    push(&mut left, given);
    let mut ends_as_directory = is_directory_name(given);
    let mut links = 0;
    while let Some(name) = left.pop() {
        let is_last = left.is_empty();
        if is_last && (ends_as_directory || matches!(name.as_bytes(), b"/" | b"..")) {
            return Err(fail(Errno::ISDIR));
        }
        let stat = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW);
        if !stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            if is_last {
                return Ok(Spot {
                    directory,
                    name,
                    is_descriptor: false,
                });
            }
            directory = open_directory(&directory, &name).map_err(fail)?;
            continue;
        }
        let is_in_proc =
            rustix::fs::fstatfs(&directory).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC);
        if is_in_proc && is_last {
            return Ok(Spot {
                directory,
                name,
                is_descriptor: true,
            });
        }
        if is_in_proc {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            directory =
                rustix::fs::openat(&directory, &name, flags, Mode::empty()).map_err(fail)?;
            continue;
        }
        let owner = stat.map_err(fail)?.st_uid;
        if is_foreign_link(&directory, owner).map_err(fail)? {
            return Err(OutputError::ForeignLink {
                path: given.into(),
                link: name.into(),
            });
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(fail(Errno::LOOP));
        }
        let target = rustix::fs::readlinkat(&directory, &name, Vec::new()).map_err(fail)?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if is_last {
            ends_as_directory = is_directory_name(&target);
        }
        push(&mut left, &target);
    }
    Err(fail(Errno::ISDIR))
}

/// Finds a name below a directory without following links; missing directories are created.
pub(super) fn find_below(directory: &Path, name: &Path) -> Result<Spot, OutputError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut open = rustix::fs::open(directory, flags, Mode::empty())
        .map_err(|error| create_error(directory, error))?;
    let mut so_far = directory.to_path_buf();
    let mut components = name.components().peekable();
    while let Some(component) = components.next() {
        so_far.push(component);
        let fail = |error: Errno| create_error(&so_far, error);
        let Component::Normal(name) = component else {
            return Err(fail(Errno::INVAL));
        };
        let stat = rustix::fs::statat(&open, name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            return Err(OutputError::InTheWay {
                path: so_far,
                what: "is a symbolic link",
            });
        }
        if components.peek().is_none() {
            return Ok(Spot {
                directory: open,
                name: name.into(),
                is_descriptor: false,
            });
        }
        open = match open_directory(&open, name) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&open, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(fail(error)),
                }
                open_directory(&open, name).map_err(fail)?
            }
            opened => opened.map_err(fail)?,
        };
    }
    Err(create_error(directory, Errno::ISDIR))
}

/// Refuses files of other users in a directory with the sticky bit, such as /tmp: such a file would keep its
/// owner. The kernel's rules (`protected_regular` and `protected_fifos` of proc_sys_fs(5)) apply when a file is
/// opened by name; here the owner is checked before.
pub(super) fn check_owner(given: &Path, spot: &Spot, stat: &Stat) -> Result<(), OutputError> {
    let Ok(directory) = rustix::fs::fstat(&spot.directory) else {
        return Ok(());
    };
    let is_shared = directory.st_mode & 0o1000 != 0 && directory.st_mode & 0o022 != 0;
    if is_shared && stat.st_uid != caller() && stat.st_uid != directory.st_uid {
        return Err(OutputError::Foreign { path: given.into() });
    }
    Ok(())
}

/// Whether another user made a link: it is theirs, and so is the directory, or others may write to it. Where only
/// root and the caller write, one of them put it there.
fn is_foreign_link(directory: &OwnedFd, owner: u32) -> rustix::io::Result<bool> {
    let is_trusted = |user: u32| user == 0 || user == caller();
    let directory = rustix::fs::fstat(directory)?;
    let is_ours = is_trusted(directory.st_uid) && directory.st_mode & 0o022 == 0;
    Ok(!is_trusted(owner) && !is_ours)
}

fn caller() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn open_directory<D: std::os::fd::AsFd>(directory: D, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// Puts the components of a path on the stack of those that are left.
fn push(left: &mut Vec<OsString>, path: &Path) {
    let components = path.components().filter(|each| *each != Component::CurDir);
    left.extend(components.rev().map(|each| each.as_os_str().to_os_string()));
}

fn is_directory_name(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

fn create_error(path: &Path, error: Errno) -> OutputError {
    OutputError::Create {
        path: path.into(),
        source: error.into(),
    }
}
