//! What a subscriber checks before it maps a ring: it came from another process.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use parshall_core::abi::{CAPTURE_SLACK_BYTES, CAPTURE_SUBSCRIBERS_MAX, RING_READERS_MAX};

use super::CaptureError;
use super::keeper::message::RingDescription;
use crate::ring::registry::LANE_READERS_BYTES;
use crate::ring::{Preference, lane_bytes, layout_with_slack};

/// More CPUs than any kernel has.
const LANES_MAX: usize = 1 << 13;
const MAP_LINK: &[u8] = b"anon_inode:bpf-map";

/// Refuses a ring whose memory could change its size, be written by a process, or differ from its description.
pub(super) fn check(ring: &RingDescription, memory: impl AsFd) -> Result<(), CaptureError> {
    let is_layout_valid = layout_with_slack(
        ring.layout.size_bytes,
        Preference::FastReader,
        CAPTURE_SLACK_BYTES,
    )
    .is_ok_and(|valid| {
        valid.part_shift == ring.layout.part_shift && valid.slack_bytes == ring.layout.slack_bytes
    });
    let are_numbers_valid = (1..=LANES_MAX).contains(&ring.lanes)
        && ring.reader_slot.is_none_or(|slot| slot < RING_READERS_MAX);
    if !is_layout_valid || !are_numbers_valid {
        return Err(refusal(ring, "describes itself wrongly"));
    }
    check_map(ring, memory, lane_bytes(&ring.layout), true)
}

/// The same for the register of readers, which readers write.
pub(super) fn check_register(
    ring: &RingDescription,
    memory: impl AsFd,
) -> Result<(), CaptureError> {
    check_map(ring, memory, LANE_READERS_BYTES, false)
}

/// Refuses bits of subscriptions that no ring has.
pub(super) fn check_bits(
    ring: &RingDescription,
    bits: &[usize],
    expected: usize,
) -> Result<(), CaptureError> {
    if bits.len() == expected && bits.iter().all(|bit| *bit < CAPTURE_SUBSCRIBERS_MAX) {
        return Ok(());
    }
    Err(refusal(ring, "has no such subscriptions"))
}

/// An array map keeps its size; a file may be cut while it is mapped, and reading it then ends the process.
fn check_map(
    ring: &RingDescription,
    memory: impl AsFd,
    value_bytes: usize,
    is_frozen: bool,
) -> Result<(), CaptureError> {
    let info = MapInfo::of(memory).map_err(|_| refusal(ring, "offers memory that is no map"))?;
    let is_valid = info.is_mappable_array
        && info.value_bytes == value_bytes
        && info.entries == ring.lanes
        && (info.is_frozen || !is_frozen);
    if is_valid {
        return Ok(());
    }
    Err(refusal(ring, "offers memory of another size or kind"))
}

fn refusal(ring: &RingDescription, reason: &str) -> CaptureError {
    CaptureError::keeper(format!(
        "ring {} {reason}; end it, and create the ring again",
        ring.name.escape_debug()
    ))
}

/// What the kernel says of a map, to those without privileges, too.
#[derive(Debug, Default)]
struct MapInfo {
    is_mappable_array: bool,
    is_frozen: bool,
    value_bytes: usize,
    entries: usize,
}

impl MapInfo {
    fn of(descriptor: impl AsFd) -> io::Result<Self> {
        let number = descriptor.as_fd().as_raw_fd();
        let link = rustix::fs::readlink(format!("/proc/thread-self/fd/{number}"), Vec::new())?;
        if link.as_bytes() != MAP_LINK {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let text = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{number}"))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let number = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let value = value.trim();
            match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => value.parse().ok(),
            }
        };
        let flags = number("map_flags").unwrap_or(0);
        Self {
            is_mappable_array: number("map_type") == Some(libbpf_sys::BPF_MAP_TYPE_ARRAY.into())
                && flags & u64::from(libbpf_sys::BPF_F_MMAPABLE) != 0,
            is_frozen: number("frozen") == Some(1),
            value_bytes: number("value_size").unwrap_or(0) as usize,
            entries: number("max_entries").unwrap_or(0) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_map_is_understood() {
        let text = "pos:\t0\nflags:\t02000002\nmap_type:\t2\nkey_size:\t4\nvalue_size:\t528384\n\
                    max_entries:\t2\nmap_flags:\t0x400\nmap_extra:\t0x0\nmemlock:\t1060864\n\
                    map_id:\t7\nfrozen:\t1\n";
        let info = MapInfo::parse(text);
        assert!(info.is_mappable_array && info.is_frozen);
        assert_eq!((info.value_bytes, info.entries), (528_384, 2));
        let other = MapInfo::parse(
            &text
                .replace("0x400", "0x0")
                .replace("frozen:\t1", "frozen:\t0"),
        );
        assert!(!other.is_mappable_array && !other.is_frozen);
    }

    #[test]
    fn memory_that_is_no_map_is_refused() {
        let name = c"parshall-test";
        let memory = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(MapInfo::of(&memory).is_err());
        assert!(MapInfo::of(tempfile::tempfile().unwrap()).is_err());
    }
}
