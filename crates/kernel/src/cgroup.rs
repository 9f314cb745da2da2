//! Control groups: finds the one to attach to, and the path of a socket's group.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::capability::cgroup::cgroup2_mount;
use crate::measurement_error::MeasurementError;

/// A directory of the cgroup-v2 hierarchy.
#[derive(Clone, Debug)]
pub struct Cgroup {
    /// Its directory.
    pub path: PathBuf,
    /// Its number in the kernel; 0 stands for the root, which has all processes.
    pub id: u64,
}

/// The group to attach to: `path`, absolute or below the mount, or the root.
///
/// # Errors
/// [`MeasurementError::Cgroup`] when it is not a directory of the hierarchy.
pub fn resolve(path: Option<&Path>) -> Result<Cgroup, MeasurementError> {
    let root = cgroup2_mount().ok_or_else(|| MeasurementError::Cgroup {
        path: "/sys/fs/cgroup".into(),
        reason:
            "no cgroup-v2 hierarchy is mounted, and this process may not mount one for itself; \
                 run it as root, or mount -t cgroup2 none DIR"
                .into(),
    })?;
    let Some(given) = path else {
        return Ok(Cgroup { path: root, id: 0 });
    };
    let fail = |reason: &str| MeasurementError::Cgroup {
        path: given.into(),
        reason: format!(
            "{reason}; give a directory below {}, where cgroup v2 is mounted",
            root.display()
        ),
    };
    let path = if given.starts_with(&root) {
        given.to_path_buf()
    } else {
        root.join(given.strip_prefix("/").unwrap_or(given))
    };
    let directory = fs::metadata(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => fail("there is no such control group"),
        _ => fail(&error.to_string()),
    })?;
    if !directory.is_dir() || !path.join("cgroup.procs").exists() {
        return Err(fail("is not a control group"));
    }
    let is_root = fs::metadata(&root).is_ok_and(|root| root.ino() == directory.ino());
    Ok(Cgroup {
        path,
        id: if is_root { 0 } else { directory.ino() },
    })
}

/// Opens the directory of a group, to attach to it.
///
/// # Errors
/// [`MeasurementError::Cgroup`] when it cannot be read.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, MeasurementError> {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|source| MeasurementError::Cgroup {
        path: path.into(),
        reason: format!("{source}; give one that exists and may be read"),
    })
}

/// Paths of groups by number. A number that is not known yet causes a walk of the hierarchy.
#[derive(Debug)]
pub struct Paths {
    root: Option<PathBuf>,
    known: HashMap<u64, Option<String>>,
}

/// Maximum groups in the cache, which is cleared when it is full.
const PATHS_MAX: usize = 4096;

impl Paths {
    /// An empty cache.
    pub fn new() -> Self {
        Self {
            root: cgroup2_mount(),
            known: HashMap::new(),
        }
    }

    /// The path below the mount, `/` for the root; `None` when the group was removed.
    pub fn path_of(&mut self, id: u64) -> Option<String> {
        if let Some(path) = self.known.get(&id) {
            return path.clone();
        }
        let root = self.root.clone()?;
        self.known = self.walk(&root);
        // A removed group must not cause a walk for each of its flows.
        self.known.entry(id).or_insert(None).clone()
    }

    fn walk(&self, root: &Path) -> HashMap<u64, Option<String>> {
        let mut known: HashMap<u64, Option<String>> = if self.known.len() < PATHS_MAX {
            self.known.clone()
        } else {
            HashMap::new()
        };
        let mut pending = vec![root.to_path_buf()];
        while let Some(directory) = pending.pop() {
            if let Ok(metadata) = fs::metadata(&directory) {
                let below = directory.strip_prefix(root).unwrap_or(&directory);
                known.insert(metadata.ino(), Some(format!("/{}", below.display())));
            }
            let Ok(children) = fs::read_dir(&directory) else {
                continue;
            };
            pending.extend(
                children
                    .flatten()
                    .filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|child| child.path()),
            );
        }
        known
    }
}
