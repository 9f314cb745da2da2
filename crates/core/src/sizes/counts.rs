//! Number of packets of each size.

use super::SizesError;

/// The largest size that is counted by itself: what the stack joins (GSO, GRO) is not longer.
pub const SIZE_MAX_BYTES: u32 = 1 << 19;

/// Packets of each size. Its memory depends on the largest size, not on the number of packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SizeCounts {
    // Index: size in bytes.
    counts: Vec<u64>,
    total: u64,
}

impl SizeCounts {
    /// No packets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts `packets` more of `size_bytes`.
    ///
    /// # Errors
    /// When the size is 0 or beyond [`SIZE_MAX_BYTES`], or the sum of packets beyond 2^64 - 1.
    pub fn add(&mut self, size_bytes: u32, packets: u64) -> Result<(), SizesError> {
        if size_bytes == 0 || size_bytes > SIZE_MAX_BYTES {
            return Err(SizesError::Parameter {
                parameter: "packet size",
                found: format!("{size_bytes} bytes"),
                expected: format!("1 to {SIZE_MAX_BYTES} bytes"),
            });
        }
        self.total = self
            .total
            .checked_add(packets)
            .ok_or_else(|| SizesError::Parameter {
                parameter: "number of packets",
                found: format!("{} and {packets} more", self.total),
                expected: "at most 2^64 - 1 in all".into(),
            })?;
        let index = size_bytes as usize;
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += packets;
        Ok(())
    }

    /// Adds all packets of `other`.
    ///
    /// # Errors
    /// As [`SizeCounts::add`].
    pub fn merge(&mut self, other: &Self) -> Result<(), SizesError> {
        other
            .iter()
            .try_for_each(|(size_bytes, packets)| self.add(size_bytes, packets))
    }

    /// Packets of this size.
    pub fn of(&self, size_bytes: u32) -> u64 {
        self.counts.get(size_bytes as usize).copied().unwrap_or(0)
    }

    /// All packets.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// (size, packets) of the sizes that occur, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        (0..)
            .zip(self.counts.iter().copied())
            .filter(|(_, packets)| *packets > 0)
    }

    /// Packets larger than `maximum_bytes`.
    pub fn above(&self, maximum_bytes: u32) -> u64 {
        self.counts.iter().skip(maximum_bytes as usize + 1).sum()
    }

    /// Mean size, bytes; 0 of nothing.
    pub fn mean_bytes(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        let bytes: u128 = self
            .iter()
            .map(|(size, packets)| u128::from(size) * u128::from(packets))
            .sum();
        bytes as f64 / self.total as f64
    }
}
