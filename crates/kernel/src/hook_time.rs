//! How long the eBPF programs of this host run: `/proc/stat` counts their time as that of others.

use crate::programs::calls;
use libbpf_rs::query::ProgInfoIter;
use std::io;
use std::os::fd::OwnedFd;

/// Runs of one program since it was loaded, counted while statistics were on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookTime {
    /// The kernel's number of the program.
    pub id: u32,
    /// Its name, of at most 15 bytes.
    pub name: String,
    /// Number of runs.
    pub runs: u64,
    /// Total time of the runs, ns.
    pub run_ns: u64,
}

/// The kernel's run-time statistics, on while this lives. They cost every run of every program some tens of ns.
#[derive(Debug)]
pub struct HookTimes {
    _statistics: OwnedFd,
}

impl HookTimes {
    /// Switches the statistics on.
    ///
    /// # Errors
    /// The kernel's error, most often that CAP_SYS_ADMIN is missing.
    pub fn start() -> io::Result<Self> {
        Ok(Self {
            _statistics: calls::enable_run_time_statistics()?,
        })
    }

    /// All programs that are loaded now.
    pub fn read(&self) -> Vec<HookTime> {
        ProgInfoIter::default()
            .map(|program| HookTime {
                id: program.id,
                name: program.name.to_string_lossy().into_owned(),
                runs: program.run_cnt,
                run_ns: program.run_time_ns,
            })
            .collect()
    }
}
