//! How many CPUs have accounts and lanes, and on which CPU a thread runs.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread to a CPU.
pub(crate) fn bind_to(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "out of range"));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// How many CPUs the host can ever have. Each has an account.
pub(crate) fn possible() -> libbpf_rs::Result<usize> {
    libbpf_rs::num_possible_cpus()
}

/// How many CPUs have a lane: those up to the last that is online. Virtual machines often could have a
/// hundred CPUs more, and a lane is megabytes. What a CPU that comes later would write is dropped, and counted.
pub(crate) fn with_lanes() -> libbpf_rs::Result<usize> {
    let possible = possible()?;
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    Ok(last_of(&online).map_or(possible, |last| possible.min(last + 1)))
}

/// The last number of a list like `0-3,8`.
fn last_of(list: &str) -> Option<usize> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_end_with_the_last_cpu() {
        assert_eq!(last_of("0\n"), Some(0));
        assert_eq!(last_of("0-1\n"), Some(1));
        assert_eq!(last_of("0-3,8-11,13\n"), Some(13));
        assert_eq!(last_of(""), None);
    }

    #[test]
    fn this_thread_runs_on_a_cpu_with_a_lane() {
        let cpu = rustix::thread::sched_getcpu();
        assert!((cpu + 1..=possible().unwrap()).contains(&with_lanes().unwrap()));
    }
}
