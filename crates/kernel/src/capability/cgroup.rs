//! Where the version-2 control groups are, and whether this process may make one.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::{Cause, Probe};

/// Remedy where [`cgroup2_mount`] finds no mount.
pub(super) const MOUNT_REMEDY: &str = "run it as root; or mount one: mount -t cgroup2 none DIR";

/// Where the cgroup-v2 hierarchy can be reached: its mount point from the mount table, or else a mount of
/// this process alone, by its descriptor (`/proc/PID/fd/N`); none when the kernel gives neither.
///
/// Hybrid hosts mount it beside version 1, usually at `/sys/fs/cgroup/unified`. Of several
/// mounts the one that shows the whole hierarchy is taken. `ip netns exec` hides them all behind a `/sys` of
/// its own.
pub fn cgroup2_mount() -> Option<PathBuf> {
    mounted().or_else(|| {
        let directory = PRIVATE_MOUNT.get_or_init(|| mount_privately().ok());
        let number = directory.as_ref()?.as_raw_fd();
        // Not /proc/self: child processes, such as a sender of the demo, get paths through it, too.
        Some(format!("/proc/{}/fd/{number}", std::process::id()).into())
    })
}

fn mounted() -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    parse_cgroup2_mount(&table)
}

/// It stays for as long as the process: paths lead through it.
static PRIVATE_MOUNT: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Mounts the hierarchy at no path: it is reached by the descriptor alone.
fn mount_privately() -> io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    Ok(mount)
}

fn parse_cgroup2_mount(table: &str) -> Option<PathBuf> {
    let mounts: Vec<(&str, &str)> = table
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut fields = before.split(' ').skip(3);
            let (root, mount_point) = (fields.next()?, fields.next()?);
            (after.split(' ').next()? == "cgroup2").then_some((root, mount_point))
        })
        .collect();
    let whole = mounts.iter().find(|(root, _)| *root == "/");
    let (_, mount_point) = whole.or(mounts.first())?;
    Some(unescaped(mount_point))
}

/// Undoes the octal escapes of the mount table (`\040` is a space).
fn unescaped(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let octal = (bytes[position] == b'\\')
            .then(|| field.get(position + 1..position + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                plain.push(byte);
                position += 4;
            }
            None => {
                plain.push(bytes[position]);
                position += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(plain).into()
}

/// A cgroup that lasts as long as this value.
pub(super) struct Throwaway(PathBuf);

impl Throwaway {
    /// Makes `parshall-<pid>-<start time>-doctor` in the hierarchy at `mount`; if this
    /// process is killed, the name shows the cleaner that the owner has exited.
    pub(super) fn new(mount: &Path) -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        let start_time_ticks = start_time_ticks(&stat)
            .ok_or_else(|| io::Error::other("no start time in /proc/self/stat"))?;
        let path = mount.join(format!(
            "parshall-{}-{start_time_ticks}-doctor",
            std::process::id()
        ));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        // A failure leaves an empty cgroup that `parshall doctor --clean` removes.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Field 22 of a process's stat file; the name in field 2 may hold spaces and brackets.
fn start_time_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// Whether there is a hierarchy.
pub(super) fn probes() -> Vec<Probe> {
    let probe = match cgroup2_mount() {
        Some(path) if path.starts_with("/proc") => Probe::works(
            "cgroup.v2",
            "mounted nowhere here; Parshall mounts it for itself alone",
        ),
        Some(path) if path == Path::new("/sys/fs/cgroup") => {
            Probe::works("cgroup.v2", format!("mounted at {}", path.display()))
        }
        Some(path) => Probe::works(
            "cgroup.v2",
            format!("mounted at {} (beside version 1)", path.display()),
        ),
        None => Probe::cannot(
            "cgroup.v2",
            Cause::Unsupported,
            "no cgroup2 file system is mounted, and this process may not mount one for itself",
            MOUNT_REMEDY,
        ),
    };
    vec![probe]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_on_unified_and_hybrid_hosts() {
        let unified = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            parse_cgroup2_mount(unified),
            Some(PathBuf::from("/sys/fs/cgroup"))
        );
        let hybrid = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n";
        assert_eq!(
            parse_cgroup2_mount(hybrid),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(
            parse_cgroup2_mount("24 1 8:1 / / rw - ext4 /dev/sda rw\n"),
            None
        );
    }

    #[test]
    fn the_whole_hierarchy_goes_before_a_part_of_it() {
        let table = "30 24 0:26 /docker/x /mnt/part rw - cgroup2 cgroup2 rw\n\
                     31 24 0:26 / /mnt/my\\040cgroups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            parse_cgroup2_mount(table),
            Some(PathBuf::from("/mnt/my cgroups"))
        );
    }

    #[test]
    fn the_start_time_is_found_behind_a_name_with_brackets() {
        let fields: Vec<String> = (3..=30).map(|field| field.to_string()).collect();
        let stat = format!("77 (a) b (c)) {}", fields.join(" "));
        assert_eq!(start_time_ticks(&stat), Some(22));
    }
}
