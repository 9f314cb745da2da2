//! The effective capabilities of this process.

use std::fs;

use super::{Cause, Probe};

/// The capabilities that matter to Parshall: name, bit, what it is for.
const KNOWN: [(&str, u32, &str); 6] = [
    ("CAP_BPF", 39, "load eBPF programs and make maps"),
    (
        "CAP_PERFMON",
        38,
        "trace, and read kernel memory in a program",
    ),
    (
        "CAP_NET_ADMIN",
        12,
        "attach to interfaces and cgroups, make links and qdiscs",
    ),
    ("CAP_NET_RAW", 13, "open packet sockets"),
    (
        "CAP_SYS_ADMIN",
        21,
        "make network namespaces, switch run-time statistics on",
    ),
    ("CAP_SYS_RESOURCE", 24, "raise limits of locked memory"),
];

/// A set of effective capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    effective: u64,
}

impl Privileges {
    /// Reads the set of the calling process; none when it cannot be read.
    pub fn of_this_process() -> Self {
        fs::read_to_string("/proc/thread-self/status")
            .ok()
            .and_then(|status| Self::parse(&status))
            .unwrap_or_default()
    }

    /// The full set, that of root outside every container.
    #[cfg(test)]
    pub(super) fn all() -> Self {
        Self {
            effective: u64::MAX,
        }
    }

    fn parse(status: &str) -> Option<Self> {
        let hex = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))?;
        let effective = u64::from_str_radix(hex.trim(), 16).ok()?;
        Some(Self { effective })
    }

    /// Whether the set has this capability.
    ///
    /// `CAP_SYS_ADMIN` stands for `CAP_BPF` and `CAP_PERFMON`, which were split from it in
    /// Linux 5.8.
    pub fn has(&self, name: &str) -> bool {
        let bit_set = |bit: u32| self.effective & (1 << bit) != 0;
        let split_off = matches!(name, "CAP_BPF" | "CAP_PERFMON") && bit_set(21);
        split_off
            || KNOWN
                .iter()
                .any(|(known, bit, _)| *known == name && bit_set(*bit))
    }

    /// Those of `names` that the set lacks.
    pub fn missing<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        names
            .iter()
            .copied()
            .filter(|name| !self.has(name))
            .collect()
    }

    /// One probe for each capability that matters.
    pub(super) fn probes(&self) -> Vec<Probe> {
        let of_one = |(name, _, purpose): &(&str, u32, &str)| {
            let probe_name = format!("privilege.{}", name.to_lowercase());
            if self.has(name) {
                return Probe::works(probe_name, format!("held: {purpose}"));
            }
            if *name == "CAP_SYS_RESOURCE" {
                // Maps are charged to the memory cgroup since Linux 5.11, so it is a comfort.
                return Probe::degraded(
                    probe_name,
                    Cause::Forbidden,
                    format!("not held: cannot {purpose}"),
                    "nothing needs it on Linux 5.11 and later",
                );
            }
            Probe::cannot(
                probe_name,
                Cause::Forbidden,
                format!("not held: cannot {purpose}"),
                remedy(&[name]),
            )
        };
        KNOWN.iter().map(of_one).collect()
    }
}

/// How this process gets capabilities that it lacks. Root of a container may be without them.
pub(super) fn remedy(missing: &[&str]) -> String {
    let names = missing.join(", ");
    match rustix::process::geteuid().is_root() {
        true => format!(
            "root lacks {names} here; add it to the container (--cap-add), or run it outside"
        ),
        false => format!("run as root, or grant the process {names}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_read_from_the_status_file() {
        let status = "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000001000\n";
        let privileges = Privileges::parse(status).unwrap();
        assert!(privileges.has("CAP_NET_ADMIN"));
        assert_eq!(
            privileges.missing(&["CAP_NET_ADMIN", "CAP_BPF"]),
            ["CAP_BPF"]
        );
        assert_eq!(Privileges::parse("Name:\tx\n"), None);
    }

    #[test]
    fn sys_admin_stands_for_what_was_split_from_it() {
        let privileges = Privileges { effective: 1 << 21 };
        assert!(privileges.missing(&["CAP_BPF", "CAP_PERFMON"]).is_empty());
        assert!(!privileges.has("CAP_NET_ADMIN"));
    }
}
