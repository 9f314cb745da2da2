//! The memory of a ring: what the programs of all its hooks write into and all its readers map.

use libbpf_rs::MapHandle;
use parshall_core::abi::RingLayout;

use super::{CaptureError, bell};
use crate::free_memory::available_bytes;
use crate::net::mapping::mappable_array;
use crate::ring;
use crate::ring::registry::LANE_READERS_BYTES;

/// What all hooks of a ring write into.
pub(super) struct RingMaps {
    /// The ring.
    pub ring: MapHandle,
    /// The register of its readers.
    pub readers: MapHandle,
    /// Two words, subscribers as bits: those that get every packet, and those that are woken at each packet.
    pub sets: MapHandle,
    /// What wakes each subscriber.
    pub bells: MapHandle,
    /// Its constants.
    pub layout: RingLayout,
    /// Packets go no further than the hook.
    pub discard: bool,
}

impl RingMaps {
    /// Makes the maps, if there is memory for them.
    pub fn make(layout: &RingLayout, cpus: usize, discard: bool) -> Result<Self, CaptureError> {
        check_memory(layout, cpus, available_bytes().unwrap_or(u64::MAX))?;
        let make = |name: &str, value_bytes: usize| mappable_array(name, value_bytes, cpus);
        let ring = make("parshall_ring", ring::lane_bytes(layout)).map_err(CaptureError::load)?;
        // From now on only programs can write into it, and no process that gets its descriptor, not
        // even this one. (A read-only descriptor would do the same, but cannot be mapped.)
        ring.freeze().map_err(CaptureError::load)?;
        Ok(Self {
            ring,
            readers: make("parshall_read", LANE_READERS_BYTES).map_err(CaptureError::load)?,
            sets: mappable_array("parshall_sets", 2 * size_of::<u64>(), 1)
                .map_err(CaptureError::load)?,
            bells: bell::make_table().map_err(CaptureError::load)?,
            layout: *layout,
            discard,
        })
    }
}

/// Refuses a ring that is larger than the free memory: the kernel would take it from other processes.
fn check_memory(layout: &RingLayout, cpus: usize, free_bytes: u64) -> Result<(), CaptureError> {
    let total_bytes = (ring::lane_bytes(layout) * cpus) as u64;
    if total_bytes > free_bytes {
        return Err(CaptureError::Memory {
            requested_bytes: layout.size_bytes,
            total_bytes,
            cpus,
            free_bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Preference;
    use parshall_core::abi::CAPTURE_SLACK_BYTES;

    #[test]
    fn a_ring_larger_than_the_free_memory_is_refused_in_words() {
        let layout =
            ring::layout_with_slack(1 << 28, Preference::FastReader, CAPTURE_SLACK_BYTES).unwrap();
        let total_bytes = 4 * ring::lane_bytes(&layout) as u64;
        assert!(check_memory(&layout, 4, total_bytes).is_ok());
        let refusal = check_memory(&layout, 4, total_bytes - 1).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            format!(
                "--buffer 268435456: a ring of {total_bytes} bytes for 4 CPUs, but {} bytes of memory are free; choose a smaller one",
                total_bytes - 1
            )
        );
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
