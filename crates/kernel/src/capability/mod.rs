//! What this host can do, found out by trying it.
//!
//! A version number or a line of the kernel's configuration says what ought to work; lockdown,
//! containers and missing privileges decide what does. So each probe does, in small and without
//! a trace, what an instrument would do: it loads a program of two instructions, makes a map of
//! one element, attaches to an interface of a network namespace of its own.
//!
//! What follows for the commands of Parshall is decided elsewhere, in the Python package
//! `parshall.host.doctor`.

pub mod cgroup;
mod host;
mod map;
mod namespace;
mod offload;
mod privilege;
mod probe;
mod program;
mod socket;

pub use privilege::Privileges;
pub use probe::{Cause, Probe, Status};

/// Tries everything and returns one probe a line, in the order in which a reader wants them.
///
/// It takes a fraction of a second, needs no privileges (probes that lack them report so), and leaves
/// nothing behind.
pub fn probe_all() -> Vec<Probe> {
    let privileges = Privileges::of_this_process();
    let mut probes = host::probes();
    probes.extend(privileges.probes());
    probes.extend(cgroup::probes());
    probes.extend(map::probes(&privileges));
    probes.extend(program::probes(&privileges));
    probes.extend(socket::probes(&privileges));
    probes.extend(namespace::probes(&privileges));
    probes.extend(offload::probes());
    probes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_probe_has_a_name_of_its_own_and_a_remedy_when_it_does_not_work() {
        let probes = probe_all();
        let names: HashSet<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        assert_eq!(names.len(), probes.len(), "names repeat: {probes:?}");
        for probe in &probes {
            assert!(!probe.detail.is_empty(), "no detail: {probe:?}");
            if probe.status == Status::Works {
                assert_eq!(probe.cause, None, "{probe:?}");
            } else {
                assert!(probe.cause.is_some(), "no cause: {probe:?}");
                assert!(!probe.remedy.is_empty(), "no remedy: {probe:?}");
            }
        }
    }
}
