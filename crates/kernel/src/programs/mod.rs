//! eBPF programs: an object is opened with the sizes of its maps, loaded, asked, attached to hooks, and undone.
//!
//! [`compiled`] holds what the build made, [`loaded`] an object in the kernel, [`hook`] the places where its programs run,
//! [`memory`] what its maps take; [`log`] keeps libbpf's messages, and [`calls`] are those that `libbpf-rs` does not wrap.

pub(crate) mod calls;
pub(crate) mod compiled;
pub(crate) mod hook;
pub(crate) mod loaded;
pub(crate) mod log;
pub(crate) mod memory;

pub(crate) use hook::{Hook, InterfaceHook, Link};
pub(crate) use loaded::{Loaded, Opened, ProgramStatistics, Setting, open};

/// Why programs cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// The kernel did not load them, or does not show a map.
    #[error("{0}")]
    Load(String),
    /// One could not be attached, or run.
    #[error("program {program}: {source}")]
    Attach {
        program: String,
        source: std::io::Error,
    },
}

impl ProgramError {
    fn load(error: impl std::fmt::Display) -> Self {
        Self::Load(error.to_string())
    }

    pub(crate) fn attach(program: &str, source: std::io::Error) -> Self {
        Self::Attach {
            program: program.into(),
            source,
        }
    }
}
