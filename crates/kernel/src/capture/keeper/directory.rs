//! Where rings are found: one socket a ring in `/run/parshall`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Gid, Mode, OFlags, chmod, chown, flock};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::capture::CaptureError;
use crate::capture::request::check_name;

/// The directory of the sockets.
pub const RUN_DIRECTORY: &str = "/run/parshall";
const SUFFIX: &str = "ring";
const LOCK: &str = ".lock";
/// The file that is locked while a program looks for a ring at an interface, and creates it if there is none.
pub const SEARCH_LOCK: &str = ".pcap";
/// How long to wait for a lock: rings are created in seconds, many programs at once one after another.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// Interval between attempts to lock: flock(2) itself waits without a limit.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);
/// How long a keeper may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The socket of a ring.
pub fn path_of(name: &str) -> PathBuf {
    Path::new(RUN_DIRECTORY).join(format!("{name}.{SUFFIX}"))
}

/// Refuses a directory of another user, or one that others can write to: a user who puts a socket there decides what a
/// ring contains. Root's directory is for all users, a user's own for that user alone.
///
/// # Errors
/// [`CaptureError::Path`], also when the directory is something else.
pub fn check() -> Result<(), CaptureError> {
    let refuse = |reason: String| {
        let path = RUN_DIRECTORY.into();
        Err(CaptureError::Path { path, reason })
    };
    let remedy = format!("as root: chown root {RUN_DIRECTORY}; chmod 755 {RUN_DIRECTORY}");
    let stat = match rustix::fs::lstat(RUN_DIRECTORY) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return refuse(format!("{}; {remedy}", io::Error::from(error))),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return refuse("is not a directory; remove it".into());
    }
    if !is_trusted(stat.st_uid) {
        let user = stat.st_uid;
        return refuse(format!(
            "belongs to user {user}, who could keep false rings there; {remedy}"
        ));
    }
    if stat.st_mode & 0o022 != 0 {
        return refuse(format!(
            "other users may write to it, and could keep false rings there; {remedy}"
        ));
    }
    Ok(())
}

/// Whether a user may decide what we read: root, and ourselves.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Makes the directory if there is none.
fn create_directory() -> io::Result<()> {
    match std::fs::create_dir(RUN_DIRECTORY) {
        // Whatever the umask is.
        Ok(()) => Ok(chmod(RUN_DIRECTORY, Mode::from_raw_mode(0o755))?),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
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
        check()?;
        let _alone = lock(LOCK).map_err(unusable)?;
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

/// A locked file. Dropping it ends the lock, also where a child that another thread forked has the file, too.
pub struct Lock(OwnedFd);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Locks a file of the directory, which is made if needed: with `LOCK`, no other process makes or removes sockets.
/// Without the lock, a stale socket could be replaced by a living one just before it is removed, and one that does not
/// listen yet would look stale.
///
/// # Errors
/// The error of the system; `TimedOut` when another process holds it too long.
pub fn lock(name: &str) -> io::Result<Lock> {
    create_directory()?;
    // A FIFO in its place is not waited for.
    let flags =
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let path = Path::new(RUN_DIRECTORY).join(name);
    // Not the directory itself: any user may open it, and could hold its lock for ever.
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_trusted(stat.st_uid) {
        return Err(io::Error::other(format!(
            "{name} in it is no lock of ours; remove it"
        )));
    }
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Lock(file)),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_INTERVAL);
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                let reason = format!("another process holds {name} in it for more than a minute");
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            Err(error) => return Err(error.into()),
        }
    }
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
    check()?;
    let fail = |reason: &str| CaptureError::Name {
        name: name.into(),
        reason: reason.into(),
    };
    let path = path_of(name);
    let none = "no such ring; `parshall capture --list` shows those that run";
    let address = SocketAddrUnix::new(&path).map_err(|_| fail(none))?;
    let socket = open(SocketFlags::CLOEXEC).map_err(|error| fail(&error.to_string()))?;
    set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_PATIENCE))
        .map_err(|error| fail(&error.to_string()))?;
    let deadline = Instant::now() + CONNECT_PATIENCE;
    let connected = loop {
        match connect(&socket, &address) {
            Err(Errno::INTR) if Instant::now() < deadline => {}
            connected => break connected.map_err(io::Error::from),
        }
    };
    match connected {
        Ok(()) => match socket_peercred(&socket) {
            Ok(peer) if is_trusted(peer.uid.as_raw()) => Ok(socket),
            Ok(peer) => Err(fail(&format!(
                "user {} keeps it, and could show you anything; only rings of root and your own can be read",
                peer.uid.as_raw()
            ))),
            Err(error) => Err(fail(&error.to_string())),
        },
        Err(error) => Err(match error.kind() {
            io::ErrorKind::NotFound => fail(none),
            io::ErrorKind::ConnectionRefused => {
                fail("its keeper died; create a new one, which removes what is left of it")
            }
            io::ErrorKind::PermissionDenied => fail(
                "you may not read it; run as root, or let root create it with --group and a group of yours",
            ),
            io::ErrorKind::WouldBlock => fail("its keeper accepts no connection; end it"),
            _ => fail(&error.to_string()),
        }),
    }
}

/// Names of all sockets, also of those without a listener; none in a directory that [`check`] refuses.
pub fn names() -> Vec<String> {
    if check().is_err() {
        return Vec::new();
    }
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
    if check().is_err() || !Path::new(RUN_DIRECTORY).exists() {
        return Vec::new();
    }
    match lock(LOCK) {
        Ok(_alone) => clean_locked(),
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
