//! Errors of output files.

use std::io;
use std::path::PathBuf;

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
    /// A directory on the path is a link of another user, who could lead the file anywhere.
    #[error(
        "{}: leads through a symbolic link of another user, {}; name the file without it",
        path.display(),
        link.display()
    )]
    ForeignLink { path: PathBuf, link: PathBuf },
    /// Something else than a file, in a directory whose content others may have made.
    #[error("{}: {what}; remove it, or name another directory", path.display())]
    InTheWay { path: PathBuf, what: &'static str },
    /// Something else has the name by which this output would be read.
    #[error("{}: {what}; name another file, or move what is there", path.display())]
    NameInUse { path: PathBuf, what: &'static str },
    /// An old file of a series could not be removed.
    #[error(
        "{}: cannot be removed to stay within the files that are kept: {source}; remove it",
        path.display()
    )]
    Remove { path: PathBuf, source: io::Error },
    /// The caller stopped before another program opened the FIFO for reading.
    #[error("{}: stopped before a reader opened it", path.display())]
    Stopped { path: PathBuf },
}

impl OutputError {
    /// Whether another name would do.
    pub fn is_about_the_name(&self) -> bool {
        matches!(
            self,
            Self::ForeignLink { .. } | Self::InTheWay { .. } | Self::NameInUse { .. }
        )
    }
}
