//! IP and MAC addresses as numbers, and their ranges.

use super::WorkloadError;
use std::net::IpAddr;

/// The syntax of MAC address ranges.
pub(super) const MAC_RANGE: &str = "ADDRESS or FIRST-LAST, for example 02:00:00:00:00:01";

/// An IP address as a number, and whether it is IPv6.
pub(super) fn ip_number(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), false),
        IpAddr::V6(address) => (u128::from(address), true),
    }
}

/// `A`, `A-B` or `A/PREFIX` as the first and the last address.
pub(super) fn ip_range(
    parameter: &'static str,
    text: &str,
) -> Result<(IpAddr, IpAddr), WorkloadError> {
    let wrong = |reason: &str| WorkloadError::Flows {
        parameter,
        found: text.into(),
        reason: reason.into(),
        expected: "ADDRESS, FIRST-LAST or ADDRESS/PREFIX, for example 10.0.0.1-10.0.0.9 or fd00::/120",
    };
    let address = |part: &str| {
        part.trim()
            .parse::<IpAddr>()
            .map_err(|_| wrong("is no IP address"))
    };
    if let Some((network, prefix)) = text.split_once('/') {
        let first = address(network)?;
        let (number, is_ipv6) = ip_number(first);
        let width = if is_ipv6 { 128 } else { 32 };
        let prefix: u32 = prefix
            .trim()
            .parse()
            .ok()
            .filter(|prefix| *prefix <= width)
            .ok_or_else(|| wrong("has an invalid prefix length"))?;
        let hosts = (1_u128.checked_shl(width - prefix)).map_or(u128::MAX, |size| size - 1);
        let low = number & !hosts;
        return Ok((ip_address(low, is_ipv6), ip_address(low | hosts, is_ipv6)));
    }
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (address(first)?, address(last)?),
        None => (address(text)?, address(text)?),
    };
    if first.is_ipv4() != last.is_ipv4() {
        return Err(wrong("mixes IPv4 and IPv6"));
    }
    if first > last {
        return Err(wrong("ends before it begins"));
    }
    Ok((first, last))
}

/// The address of a number.
pub(super) fn ip_address(number: u128, is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        IpAddr::V6(number.into())
    } else {
        IpAddr::V4((number as u32).into())
    }
}

/// `aa:bb:cc:dd:ee:ff` as a number.
pub(super) fn mac_number(parameter: &'static str, text: &str) -> Result<u64, WorkloadError> {
    let parts: Vec<&str> = text.trim().split(':').collect();
    let mut number = 0;
    for part in &parts {
        match u8::from_str_radix(part, 16) {
            Ok(byte) if part.len() == 2 => number = number << 8 | u64::from(byte),
            _ => number = u64::MAX,
        }
    }
    if parts.len() == 6 && number < 1 << 48 {
        return Ok(number);
    }
    Err(WorkloadError::Flows {
        parameter,
        found: text.into(),
        reason: "is no MAC address".into(),
        expected: MAC_RANGE,
    })
}
