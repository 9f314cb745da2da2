//! The memory of maps and rings, known before they are made: the kernel would take it from other processes.

use libbpf_rs::MapType;

use super::Opened;
use crate::free_memory::available_bytes;
use crate::measurement_error::MeasurementError;

/// The part of the free memory that the maps and rings of a measurement may take.
const FREE_PARTS: u64 = 2;
const PAGE_BYTES: u64 = 4096;
/// What the kernel adds to each element of a hash table: see `struct htab_elem`, and a bucket.
const HASH_ELEMENT_BYTES: u64 = 48 + 16;

/// Bytes that the maps of an object take for so many possible CPUs, once their sizes are set.
pub(crate) fn needed_bytes(open: &Opened, possible_cpus: usize) -> u64 {
    open.0
        .maps()
        .map(|map| {
            let [key_bytes, value_bytes] = [map.key_size(), map.value_size()]
                .map(|bytes| u64::from(bytes).next_multiple_of(8));
            let elements = u64::from(map.max_entries());
            let cpus = possible_cpus as u64;
            let bytes = match map.map_type() {
                MapType::PercpuArray => elements * value_bytes * cpus,
                MapType::Hash | MapType::LruHash => {
                    elements * (HASH_ELEMENT_BYTES + key_bytes + value_bytes)
                }
                MapType::PercpuHash => {
                    elements * (HASH_ELEMENT_BYTES + key_bytes + value_bytes * cpus)
                }
                // The storage of a socket comes with the socket.
                MapType::SkStorage => 0,
                _ => elements * value_bytes,
            };
            bytes.next_multiple_of(PAGE_BYTES)
        })
        .sum()
}

/// Refuses maps and rings that need more than half of the free memory. `remedy` names the options that make them smaller.
pub(crate) fn check(
    open: &Opened,
    possible_cpus: usize,
    remedy: &'static str,
) -> Result<(), MeasurementError> {
    let free_bytes = available_bytes().unwrap_or(u64::MAX);
    compare(
        needed_bytes(open, possible_cpus),
        possible_cpus,
        free_bytes,
        remedy,
    )
}

fn compare(
    needed_bytes: u64,
    cpus: usize,
    free_bytes: u64,
    remedy: &'static str,
) -> Result<(), MeasurementError> {
    if needed_bytes > free_bytes / FREE_PARTS {
        return Err(MeasurementError::Memory {
            needed_mib: needed_bytes >> 20,
            cpus,
            free_mib: free_bytes >> 20,
            remedy,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_of_the_free_memory_is_refused_in_words() {
        assert!(compare(1 << 30, 4, 2 << 30, "--buffer").is_ok());
        let refusal = compare(
            (1 << 30) + (1 << 20),
            4,
            2 << 30,
            "--buffer or --groups-max",
        );
        assert_eq!(
            refusal.unwrap_err().to_string(),
            "memory: the maps and rings need 1025 MiB on a host of 4 CPUs, more than half of the 2048 MiB that are free; lower --buffer or --groups-max"
        );
    }
}
