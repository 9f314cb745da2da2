//! Translates loads of programs that see a frame without its outer VLAN tag into loads from the
//! whole frame. The tag stands between the addresses and the type.

use super::classic::{Arithmetic, Width};
use super::value::{ValueId, Values};

/// Bytes of the VLAN tag, and its position in a frame.
pub const TAG_BYTES: u32 = 4;
pub const TAG_START: u32 = 12;
pub const TAG_END: u32 = TAG_START + TAG_BYTES;

/// A load whose side of the tag depends on the packet.
#[derive(Debug)]
pub struct UnknownSide;

impl Values {
    /// The bytes at `index + offset` of the frame without its tag; `None` when no frame is that long.
    pub fn load_untagged(
        &mut self,
        width: Width,
        index: ValueId,
        offset: u32,
    ) -> Result<Option<ValueId>, UnknownSide> {
        if offset >= TAG_START {
            let behind = offset.checked_add(TAG_BYTES);
            return Ok(behind.and_then(|offset| self.load_indexed(width, index, offset)));
        }
        let end_max = u64::from(self.maximum(index)) + u64::from(offset + width.bytes());
        if end_max <= u64::from(TAG_START) {
            return Ok(self.load_indexed(width, index, offset));
        }
        match self.as_constant(index) {
            Some(0) => Ok(self.load_across_tag(width, offset)),
            _ => Err(UnknownSide),
        }
    }

    /// A load that starts before the tag and ends behind it.
    fn load_across_tag(&mut self, width: Width, offset: u32) -> Option<ValueId> {
        let (zero, eight) = (self.constant(0), self.constant(8));
        (offset..offset + width.bytes()).try_fold(zero, |bytes_before, at| {
            let moved = if at < TAG_START { at } else { at + TAG_BYTES };
            let byte = self.load(Width::Byte, moved);
            let shifted = self.compute(Arithmetic::ShiftLeft, bytes_before, eight)?;
            self.compute(Arithmetic::Or, shifted, byte)
        })
    }
}
