//! The result of one probe.

use std::io;

use serde::Serialize;

use super::privilege::{self, Privileges};

/// Whether a thing can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It was tried and works.
    Works,
    /// It works in part; the detail says what is missing.
    Degraded,
    /// It cannot be used.
    Cannot,
}

/// Why a thing does not work in full, by who could change that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// This kernel or this hardware does not have it.
    Unsupported,
    /// The host has it, or may have it, but does not let this process use it.
    Forbidden,
    /// It ought to work and does not: an internal error.
    Broken,
}

/// One line of `parshall doctor`: what was tried and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Group and thing, as in `program.xdp`.
    pub name: String,
    /// Whether it can be used.
    pub status: Status,
    /// Why not, or why not in full; none when it works.
    pub cause: Option<Cause>,
    /// What was seen.
    pub detail: String,
    /// What a user can do about it; empty when it works.
    pub remedy: String,
}

impl Probe {
    /// A thing that works.
    pub fn works(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            status: Status::Works,
            cause: None,
            detail: detail.into(),
            remedy: String::new(),
        }
    }

    /// A thing that works in part.
    pub fn degraded(
        name: impl Into<String>,
        cause: Cause,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Degraded,
            cause: Some(cause),
            remedy: remedy.into(),
            ..Self::works(name, detail)
        }
    }

    /// A thing that cannot be used.
    pub fn cannot(
        name: impl Into<String>,
        cause: Cause,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Cannot,
            ..Self::degraded(name, cause, detail, remedy)
        }
    }

    /// The meaning of an attempt that needs the capabilities `needed`. A refusal is put down to
    /// missing privileges only when some are missing: if the process holds them all, the kernel
    /// does not offer the thing.
    pub fn of_attempt(
        name: &str,
        outcome: io::Result<String>,
        privileges: &Privileges,
        needed: &[&str],
        remedy: &str,
    ) -> Self {
        let error = match outcome {
            Ok(detail) => return Self::works(name, detail),
            Err(error) => error,
        };
        let missing = privileges.missing(needed);
        let text = error.to_string();
        // The number behind the text is of no use to a user.
        let text = text.split(" (os error").next().unwrap_or(&text);
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) if !missing.is_empty() => Self::cannot(
                name,
                Cause::Forbidden,
                format!(
                    "not tried in full: this process lacks {}",
                    missing.join(", ")
                ),
                privilege::remedy(&missing),
            ),
            Some(libc::EPERM | libc::EACCES) => Self::cannot(
                name,
                Cause::Unsupported,
                format!("the kernel refuses it ({text}) although no capability is missing"),
                remedy,
            ),
            Some(
                libc::EINVAL
                | libc::ENOENT
                | libc::ENOSYS
                | libc::ENOTSUP
                | libc::ENODEV
                | libc::ESRCH
                | libc::ENOPROTOOPT
                | libc::EAFNOSUPPORT
                | libc::EPROTONOSUPPORT
                | libc::E2BIG
                | ENOTSUPP,
            ) => Self::cannot(
                name,
                Cause::Unsupported,
                format!("not in this kernel ({text})"),
                remedy,
            ),
            _ => Self::cannot(
                name,
                Cause::Broken,
                format!("failed for an unforeseen reason: {text}"),
                "please report this line together with the output of `parshall doctor --json`",
            ),
        }
    }
}

/// The kernel's own "not supported", which is not in the C library.
const ENOTSUPP: i32 = 524;

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(errno: i32, privileges: &Privileges) -> Probe {
        let error = io::Error::from_raw_os_error(errno);
        Probe::of_attempt(
            "program.xdp",
            Err(error),
            privileges,
            &["CAP_BPF"],
            "a newer kernel",
        )
    }

    #[test]
    fn a_refusal_means_another_thing_with_and_without_privileges() {
        assert_eq!(
            attempt(libc::EPERM, &Privileges::default()).cause,
            Some(Cause::Forbidden)
        );
        assert_eq!(
            attempt(libc::EPERM, &Privileges::all()).cause,
            Some(Cause::Unsupported)
        );
    }

    #[test]
    fn an_unforeseen_error_is_called_broken() {
        let probe = attempt(libc::EIO, &Privileges::all());
        assert_eq!(
            (probe.status, probe.cause),
            (Status::Cannot, Some(Cause::Broken))
        );
        assert!(
            probe.detail.contains("Input/output error"),
            "{}",
            probe.detail
        );
    }

    #[test]
    fn missing_kernel_features_are_recognised_by_their_errors() {
        for errno in [libc::EINVAL, libc::ENOENT, 524] {
            assert_eq!(
                attempt(errno, &Privileges::all()).cause,
                Some(Cause::Unsupported)
            );
        }
    }
}
