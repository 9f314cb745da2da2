//! The TCP instrument: per-packet state of every connection, from hook to log.
//!
//! [`options`] says what is wanted, [`hooks`] is the kernel side.

pub mod hooks;
pub mod options;

use std::path::PathBuf;

/// Why a TCP state log cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// An option is out of bounds: a mistake of the request.
    #[error("--{option} {value}: expected {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        expected: String,
    },
    /// The programs were not accepted.
    #[error("the kernel did not load the TCP programs: {reason}; `parshall doctor` tells what this host offers")]
    Load {
        /// What the kernel or libbpf said.
        reason: String,
    },
    /// A program could not be attached.
    #[error("program {program} could not be attached: {reason}; `parshall doctor` tells what this host offers")]
    Attach {
        /// Name of the program.
        program: String,
        /// What the kernel said.
        reason: String,
    },
    /// The control group cannot be used.
    #[error("cgroup {}: {reason}; give a directory below the cgroup-v2 mount", path.display())]
    Cgroup {
        /// What was given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The ring could not be made.
    #[error(transparent)]
    Ring(#[from] crate::ring::RingError),
}

impl TcpError {
    fn load(error: impl std::fmt::Display) -> Self {
        Self::Load { reason: error.to_string() }
    }
}
