//! IP addresses as the formats write them.

use std::net::IpAddr;

/// As in SIFTR 1.2: IPv6 as eight groups without leading zeros and without `::`.
pub fn full(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => v6.segments().map(|group| format!("{group:x}")).join(":"),
    }
}

/// As FreeBSD's `ip6_sprintf`: the longest run of zeros is `::`, all groups are hexadecimal.
pub fn short(address: IpAddr) -> String {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            let groups = v6.segments();
            format!("::ffff:{:x}:{:x}", groups[6], groups[7])
        }
        address => address.to_string(),
    }
}

/// As in ttprobe and Web10G's logger: IPv6 as eight groups of four, in upper case (a reader drops lines in
/// which it finds a letter from a to z).
pub fn upper(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => v6.segments().map(|group| format!("{group:04X}")).join(":"),
    }
}

/// 16 bytes; IPv4 in the first four, as a kernel's `struct in_addr` in a union with `in6_addr`.
pub fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}
