//! Facts of the host that need no attempt: kernel, processors, clock, memory, lockdown.

use std::fs;
use std::path::Path;

use super::{Cause, Probe};

/// One probe for each fact.
pub(super) fn probes() -> Vec<Probe> {
    vec![
        kernel(),
        btf(),
        lockdown(
            fs::read_to_string("/sys/kernel/security/lockdown")
                .ok()
                .as_deref(),
        ),
        cpus(),
        clock(),
        memory(),
        congestion_controls(),
    ]
}

fn read_trimmed(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn kernel() -> Probe {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    of_release(&release, &uname.machine().to_string_lossy())
}

fn of_release(release: &str, machine: &str) -> Probe {
    let detail = format!("Linux {release} {machine}");
    match release_number(release) {
        Some(number) if number >= (6, 6) => Probe::works("host.kernel", detail),
        _ => Probe::degraded(
            "host.kernel",
            Cause::Unsupported,
            format!("{detail}: older than 6.6, so some hooks are missing"),
            "Linux 6.6 or newer has everything that Parshall can use",
        ),
    }
}

/// Major and minor number of a release such as `6.18.5-amd64`.
fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether the kernel exposes its BTF types, by which programs find fields and tracepoints.
fn btf() -> Probe {
    const FILE: &str = "/sys/kernel/btf/vmlinux";
    if Path::new(FILE).exists() {
        return Probe::works("host.btf", FILE);
    }
    Probe::cannot(
        "host.btf",
        Cause::Unsupported,
        format!("{FILE} does not exist"),
        "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as all distributions do",
    )
}

fn lockdown(file: Option<&str>) -> Probe {
    let Some(text) = file else {
        return Probe::works(
            "host.lockdown",
            "not shown (no securityfs); what it forbids fails in the probes below",
        );
    };
    let mode = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .unwrap_or("none");
    if mode == "confidentiality" {
        return Probe::degraded(
            "host.lockdown",
            Cause::Forbidden,
            "confidentiality: eBPF programs may not read kernel memory",
            "boot with lockdown=integrity or without lockdown",
        );
    }
    Probe::works("host.lockdown", mode)
}

fn cpus() -> Probe {
    let online = read_trimmed("/sys/devices/system/cpu/online").unwrap_or_else(|| "?".into());
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let detail = format!("{usable} usable, online: {online}");
    if usable == 1 {
        return Probe::degraded(
            "host.cpus",
            Cause::Unsupported,
            format!("{detail}: the reader shares the only one with what it measures"),
            "give the machine a second processor",
        );
    }
    Probe::works("host.cpus", detail)
}

fn clock() -> Probe {
    let source = read_trimmed("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .unwrap_or_else(|| "unknown".into());
    if matches!(source.as_str(), "hpet" | "acpi_pm" | "jiffies") {
        return Probe::degraded(
            "host.clock",
            Cause::Unsupported,
            format!("clock source {source}: one reading takes about a microsecond or more"),
            "a clock source that the processor reads itself: tsc, kvm-clock, arch_sys_counter",
        );
    }
    Probe::works("host.clock", format!("clock source {source}"))
}

fn memory() -> Probe {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mib = |key: &str| -> u64 {
        meminfo
            .lines()
            .find_map(|line| {
                line.strip_prefix(key)?
                    .split_whitespace()
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
            .unwrap_or(0)
            / 1024
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock)
        .current
        .map_or("none".into(), |bytes| format!("{} KiB", bytes / 1024));
    let group = own_cgroup_limit().map_or("none".into(), |bytes| format!("{} MiB", bytes >> 20));
    Probe::works(
        "host.memory",
        format!(
            "{} MiB, {} MiB available; limit of the memory cgroup: {group}; of locked memory: {limit}",
            mib("MemTotal:"),
            mib("MemAvailable:")
        ),
    )
}

/// The memory limit of this process's own cgroup, version 2 or 1, when there is one.
fn own_cgroup_limit() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let of_line = |line: &str| -> Option<u64> {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let file = if controllers.is_empty() {
            super::cgroup::cgroup2_mount()?
                .join(path.trim_start_matches('/'))
                .join("memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes").into()
        } else {
            return None;
        };
        fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    // Version 1 writes "no limit" as a number near the maximum.
    membership
        .lines()
        .filter_map(of_line)
        .filter(|bytes| *bytes < 1 << 60)
        .min()
}

fn congestion_controls() -> Probe {
    let available = read_trimmed("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let default = read_trimmed("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    match available {
        Some(names) if !names.is_empty() => Probe::works(
            "host.congestion_control",
            format!("{} (default {default})", names.replace(' ', ", ")),
        ),
        _ => Probe::cannot(
            "host.congestion_control",
            Cause::Unsupported,
            "the kernel lists no congestion control",
            "mount /proc, or use a kernel with TCP",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::Status;

    #[test]
    fn old_kernels_are_degraded() {
        assert_eq!(of_release("6.18.5", "x86_64").status, Status::Works);
        assert_eq!(of_release("6.6.0-rc1+", "x86_64").status, Status::Works);
        assert_eq!(
            of_release("5.15.0-91-generic", "x86_64").status,
            Status::Degraded
        );
        assert_eq!(of_release("unheard-of", "x86_64").status, Status::Degraded);
    }

    #[test]
    fn only_the_strictest_lockdown_hurts() {
        assert_eq!(lockdown(None).status, Status::Works);
        assert_eq!(
            lockdown(Some("none [integrity] confidentiality\n")).detail,
            "integrity"
        );
        let strict = lockdown(Some("none integrity [confidentiality]\n"));
        assert_eq!(strict.cause, Some(Cause::Forbidden));
    }
}
