//! Where and how the relay's thread runs.

use super::error::RelayError;
use crate::net::interface::enter_namespace;
use crate::{cpus, os_text};
use serde::Deserialize;
use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;

/// Namespace, CPU and priority of the thread.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Placement {
    /// Path of the network namespace, such as `/run/netns/name`; none: that of the caller.
    #[serde(deserialize_with = "os_text::optional_path")]
    pub namespace: Option<PathBuf>,
    /// CPU to which the thread is bound; none: the scheduler decides.
    pub cpu: Option<usize>,
    /// SCHED_FIFO priority to ask for, 1 to 99; without permission the thread runs as others do,
    /// and the statistics say so.
    pub fifo_priority: Option<i32>,
}

impl Placement {
    /// Moves the calling thread; gives the scheduling that the kernel granted.
    pub fn apply(&self) -> Result<String, RelayError> {
        block_signals();
        if let Some(path) = &self.namespace {
            let failed = |source: io::Error| RelayError::Namespace {
                path: path.display().to_string(),
                source,
            };
            enter_namespace(path).map_err(failed)?;
        }
        if let Some(cpu) = self.cpu {
            cpus::bind_to(cpu).map_err(|source| RelayError::Cpu { cpu, source })?;
        }
        // The default slack lets a sleeping thread wake 50 us late. A kernel that refuses leaves
        // the default, which the lateness in the statistics shows.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Ok(self.schedule())
    }

    fn schedule(&self) -> String {
        let Some(priority) = self.fifo_priority else {
            return "other".into();
        };
        // SAFETY: sched_param is plain data for which zeros are valid.
        let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
        parameter.sched_priority = priority;
        // SAFETY: process 0 is the calling thread, and the parameter outlives the call.
        let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
        if result == 0 {
            format!("fifo:{priority}")
        } else {
            "other".into()
        }
    }
}

/// Signals are for the process's other threads: Python's, for example, for Ctrl-C.
fn block_signals() {
    // SAFETY: sigset_t is plain data, filled by sigfillset before it is used; both pointers are
    // valid for the calls, and a null pointer means that the old mask is not wanted.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}
