//! Where rings are found: one socket a ring in `/run/parshall`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, chmod, chown, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::capture::CaptureError;
use crate::capture::request::check_name;

/// The directory of the sockets.
pub const RUN_DIRECTORY: &str = "/run/parshall";
const SUFFIX: &str = "ring";
const LOCK: &str = ".lock";

/// The socket of a ring.
pub fn path_of(name: &str) -> PathBuf {
    Path::new(RUN_DIRECTORY).join(format!("{name}.{SUFFIX}"))
}

/// A listening socket under a name; dropping it removes the file.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Claims a name: the given one, or that of the interfaces, with a number when it is taken.
    ///
    /// # Errors
    /// [`CaptureError::Name`] when it is taken, [`CaptureError::Path`] when the directory cannot be
    /// used, [`CaptureError::Option`] when there is no such group.
    pub fn claim(
        name: Option<&str>,
        interfaces: &[String],
        group: Option<&str>,
    ) -> Result<(Self, String), CaptureError> {
        let group = group.map(group_id).transpose()?;
        let directory = Path::new(RUN_DIRECTORY);
        let unusable = |error: io::Error| CaptureError::Path {
            path: directory.into(),
            reason: format!("cannot hold the sockets of rings: {error}; run as root"),
        };
        match std::fs::create_dir(directory) {
            Ok(()) => chmod(directory, Mode::from_raw_mode(0o755))
                .map_err(|error| unusable(error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unusable(error)),
        }
        let _alone = lock().map_err(unusable)?;
        clean_locked();
        // It listens before it has its name, so a process that finds the name can connect.
        let draft = directory.join(format!(".{}", std::process::id()));
        let socket = listen_at(&draft, group).map_err(unusable)?;
        let claimed = match name {
            Some(name) => take(&draft, name).map(|taken| taken.then(|| name.to_owned())),
            None => {
                let base = default_name(interfaces);
                let numbered = (2..1000).map(|number| format!("{base}-{number}"));
                std::iter::once(base.clone())
                    .chain(numbered)
                    .find_map(|name| match take(&draft, &name) {
                        Ok(true) => Some(Ok(Some(name))),
                        Ok(false) => None,
                        Err(error) => Some(Err(error)),
                    })
                    .unwrap_or(Ok(None))
            }
        };
        let _ = std::fs::remove_file(&draft);
        match claimed.map_err(unusable)? {
            Some(name) => {
                let path = path_of(&name);
                Ok((Self { socket, path }, name))
            }
            None => Err(CaptureError::Name {
                name: name.unwrap_or_default().into(),
                reason: format!(
                    "it runs already; join it with --join {name}, or choose another --name",
                    name = name.unwrap_or_default()
                ),
            }),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The next run removes a socket without a listener.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Waits until no other process makes or removes sockets; the lock lasts as long as the file that
/// it returns. Without the lock, a stale socket could be replaced by a living one just before it is
/// removed, and one that does not listen yet would look stale.
fn lock() -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let path = Path::new(RUN_DIRECTORY).join(LOCK);
    // Not the directory itself: any user may open it, and could hold its lock for ever.
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Gives the listening draft its name; false when a living ring has it.
fn take(draft: &Path, name: &str) -> io::Result<bool> {
    let path = path_of(name);
    for _ in 0..2 {
        match std::fs::hard_link(draft, &path) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !remove_if_stale(&path) {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn listen_at(path: &Path, group: Option<Gid>) -> io::Result<OwnedFd> {
    let _ = std::fs::remove_file(path);
    let socket = open(SocketFlags::CLOEXEC)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    chmod(path, Mode::from_raw_mode(mode))?;
    if group.is_some() {
        chown(path, None, group)?;
    }
    listen(&socket, 64)?;
    // A client may have closed before it is accepted.
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

fn open(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Removes a socket without a listener; false when it has one, or when that is unknown.
fn remove_if_stale(path: &Path) -> bool {
    let address = SocketAddrUnix::new(path);
    // A keeper that is busy is not waited for.
    let refused = open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        .and_then(|socket| Ok(connect(&socket, &address?)?))
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    refused && std::fs::remove_file(path).is_ok()
}

/// Connects to a ring.
///
/// # Errors
/// [`CaptureError::Name`] when there is none, or it may not be read.
pub fn connect_to(name: &str) -> Result<OwnedFd, CaptureError> {
    check_name(name)?;
    let fail = |reason: &str| CaptureError::Name {
        name: name.into(),
        reason: reason.into(),
    };
    let path = path_of(name);
    let none = "no such ring; `parshall capture --list` shows those that run";
    let address = SocketAddrUnix::new(&path).map_err(|_| fail(none))?;
    let socket = open(SocketFlags::CLOEXEC).map_err(|error| fail(&error.to_string()))?;
    match connect(&socket, &address).map_err(io::Error::from) {
        Ok(()) => Ok(socket),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::NotFound => fail(none),
            io::ErrorKind::ConnectionRefused => {
                fail("its keeper died; create a new one, which removes what is left of it")
            }
            io::ErrorKind::PermissionDenied => fail(
                "you may not read it; run as root, or let root create it with --group and a group of yours",
            ),
            _ => fail(&error.to_string()),
        }),
    }
}

/// Names of all sockets, also of those without a listener.
pub fn names() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(RUN_DIRECTORY) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let name = name.strip_suffix(SUFFIX)?.strip_suffix('.')?;
            check_name(name).ok().map(|()| name.to_owned())
        })
        .collect();
    names.sort();
    names
}

/// Removes the sockets of keepers that died; returns their names.
pub fn clean() -> Vec<String> {
    match lock() {
        Ok(_alone) => clean_locked(),
        // There is no directory, or it is another user's.
        Err(_) => Vec::new(),
    }
}

fn clean_locked() -> Vec<String> {
    let draft = |name: &String| {
        name.strip_prefix('.')
            .is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = std::fs::read_dir(RUN_DIRECTORY).into_iter().flatten();
    let files = entries.flatten().map(|entry| entry.file_name());
    for name in files
        .filter_map(|name| name.into_string().ok())
        .filter(draft)
    {
        remove_if_stale(&Path::new(RUN_DIRECTORY).join(name));
    }
    names()
        .into_iter()
        .filter(|name| remove_if_stale(&path_of(name)))
        .collect()
}

/// The interfaces' names, as far as a file may be called so.
fn default_name(interfaces: &[String]) -> String {
    let mut name: String = interfaces
        .join("+")
        .chars()
        .map(|letter| match letter {
            letter if letter.is_ascii_alphanumeric() || "._+@:-".contains(letter) => letter,
            _ => '_',
        })
        .take(58)
        .collect();
    if name.starts_with('.') {
        name.replace_range(..1, "_");
    }
    name
}

fn group_id(name: &str) -> Result<Gid, CaptureError> {
    let text = std::fs::read_to_string("/etc/group").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?, fields.nth(1)?))
        })
        .find(|(group, number)| *group == name || *number == name)
        .and_then(|(_, number)| number.parse().ok())
        .or_else(|| name.parse().ok())
        .map(Gid::from_raw)
        .ok_or_else(|| {
            let expected = "no such group in /etc/group; name one, or give its number";
            CaptureError::option("group", name, expected)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_called_after_its_interfaces_and_can_always_be_a_file() {
        assert_eq!(
            default_name(&["eth0".into(), "eth1.5".into()]),
            "eth0+eth1.5"
        );
        assert_eq!(default_name(&["..".into()]), "_.");
        for odd in ["wlan/0", ".", "käse", "a b"] {
            assert!(check_name(&default_name(&[odd.into()])).is_ok(), "{odd}");
        }
        let many = vec!["interface0".to_string(); 30];
        assert!(check_name(&format!("{}-999", default_name(&many))).is_ok());
    }
}
