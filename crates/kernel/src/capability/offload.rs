//! Which offloads the host's interfaces use: with them one record stands for many packets.

use std::fs;

use super::Probe;
use crate::net::ethtool::Ethtool;

/// Commands of the ethtool ioctl, one for each feature.
const FEATURES: [(&str, u32); 5] = [
    ("tso", 0x1e),
    ("gso", 0x23),
    ("gro", 0x2b),
    ("rx-checksum", 0x14),
    ("tx-checksum", 0x16),
];
/// Maximum rows of the table: a host of containers has hundreds of interfaces.
const SHOWN: usize = 8;

/// One probe that lists the interfaces and the offloads enabled on each.
pub(super) fn probes() -> Vec<Probe> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names: Vec<&str> = interface_names(&table)
        .filter(|name| *name != "lo")
        .collect();
    let ethtool = Ethtool::open();
    let described = names.iter().take(SHOWN).map(|name| {
        let on: Vec<&str> = FEATURES
            .iter()
            .filter(|(_, command)| {
                let value = ethtool.as_ref().map(|one| one.number(name, *command));
                matches!(value, Ok(Ok(1..)))
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
