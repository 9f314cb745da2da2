//! Numbers of capture files, in the byte order of the machine that wrote them.

/// Order of the bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// The 16 bits at `at`; 0 beyond the end, so the caller must check lengths.
    #[inline]
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(chunk(bytes, at)),
            Self::Big => u16::from_be_bytes(chunk(bytes, at)),
        }
    }

    /// The 32 bits at `at`; 0 beyond the end, so the caller must check lengths.
    #[inline]
    pub(super) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(chunk(bytes, at)),
            Self::Big => u32::from_be_bytes(chunk(bytes, at)),
        }
    }

    /// The 64 bits at `at`; 0 beyond the end, so the caller must check lengths.
    pub(super) fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let first = u64::from(self.u32(bytes, at));
        let second = u64::from(self.u32(bytes, at + 4));
        match self {
            Self::Little => second << 32 | first,
            Self::Big => first << 32 | second,
        }
    }

    /// A time: two numbers of 32 bits, the high half first in either order.
    #[inline]
    pub(super) fn time(self, bytes: &[u8], at: usize) -> u64 {
        u64::from(self.u32(bytes, at)) << 32 | u64::from(self.u32(bytes, at + 4))
    }
}

#[inline]
fn chunk<const BYTES: usize>(bytes: &[u8], at: usize) -> [u8; BYTES] {
    let chunk = bytes.get(at..).and_then(<[u8]>::first_chunk);
    chunk.copied().unwrap_or([0; BYTES])
}
