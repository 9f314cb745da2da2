//! The Internet checksum (RFC 1071), in parts that can be added.

/// Ones' complement sum of bytes as 16-bit words in network byte order; an odd last byte is the high one.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let whole: u64 = words
        .by_ref()
        .map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    whole
        + words
            .remainder()
            .first()
            .map_or(0, |byte| u64::from(*byte) << 8)
}

/// The sum in 16 bits.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of a header with this sum.
pub(super) fn finish(sum: u64) -> u16 {
    !fold(sum)
}

/// A UDP checksum of 0 means no checksum, so 0 is sent as all ones.
pub(super) fn finish_udp(sum: u64) -> u16 {
    match finish(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}
