//! Which offloads the host's interfaces use: with them one record stands for many packets.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use super::Probe;

/// Commands of the ethtool ioctl, one for each feature.
const FEATURES: [(&str, u32); 5] = [
    ("tso", 0x1e),
    ("gso", 0x23),
    ("gro", 0x2b),
    ("rx-checksum", 0x14),
    ("tx-checksum", 0x16),
];
const SIOCETHTOOL: u64 = 0x8946;
/// Maximum rows of the table: a host of containers has hundreds of interfaces.
const SHOWN: usize = 8;

/// One probe that lists the interfaces and the offloads enabled on each.
pub(super) fn probes() -> Vec<Probe> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names: Vec<&str> = interface_names(&table)
        .filter(|name| *name != "lo")
        .collect();
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    );
    let described = names.iter().take(SHOWN).map(|name| {
        let on: Vec<&str> = FEATURES
            .iter()
            .filter(|(_, command)| {
                socket
                    .as_ref()
                    .is_ok_and(|socket| is_on(socket, name, *command))
            })
            .map(|(feature, _)| *feature)
            .collect();
        let list = if on.is_empty() {
            "none".into()
        } else {
            on.join(" ")
        };
        format!("{name}: {list}")
    });
    let mut detail = described.collect::<Vec<_>>().join("; ");
    if names.len() > SHOWN {
        detail.push_str(&format!("; and {} more", names.len() - SHOWN));
    }
    if detail.is_empty() {
        detail.push_str("no interface but the loopback");
    }
    vec![Probe::works("interface.offloads", detail)]
}

/// Interface names in /proc/net/dev: the text before the colon, below two header lines.
fn interface_names(table: &str) -> impl Iterator<Item = &str> {
    table
        .lines()
        .filter_map(|line| line.split_once(':').map(|(name, _)| name.trim()))
        .filter(|name| !name.contains('|'))
}

/// struct ethtool_value.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn is_on(socket: &OwnedFd, name: &str, command: u32) -> bool {
    // SAFETY: all bytes zero is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return false;
    }
    for (target, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *target = byte as libc::c_char;
    }
    let mut value = EthtoolValue { command, data: 0 };
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
    // SAFETY: request and value outlive the call; the kernel writes no more than the value.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    status == 0 && value.data != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_the_table_is_not_an_interface() {
        let table =
            "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n    lo: 1 2\n  eth0:3 4\n";
        assert_eq!(interface_names(table).collect::<Vec<_>>(), ["lo", "eth0"]);
    }
}
