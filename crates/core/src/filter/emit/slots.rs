//! The stack: scratch space, the copy of the frame's start, and values that a question needs again.
//!
//! ```text
//! r10 -8    scratch: the key of the map look-up, later the bytes that a helper loads
//! r10 -136  the copy of the frame's start
//! r10 -512  slots of 8 bytes: the verifier tracks the bounds of a stored value only at this size
//! ```

use crate::filter::FilterError;

pub const SCRATCH: i16 = -8;
/// Bytes of the frame's start that are copied: all headers up to TCP's over IPv6 with two tags.
pub const COPY_BYTES: u32 = 128;
pub const COPY: i16 = SCRATCH - COPY_BYTES as i16;
const SLOT_BYTES: i16 = 8;
const STACK_BYTES: i16 = 512;
const SLOTS: usize = ((STACK_BYTES + COPY) / SLOT_BYTES) as usize;

#[derive(Clone, Debug)]
pub struct Slots {
    taken: [bool; SLOTS],
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            taken: [false; SLOTS],
        }
    }
}

impl Slots {
    /// Takes a free slot; returns its offset from r10.
    pub fn take(&mut self) -> Result<i16, FilterError> {
        let slot = self
            .taken
            .iter()
            .position(|taken| !taken)
            .ok_or(FilterError::TooManyValues { limit: SLOTS })?;
        self.taken[slot] = true;
        Ok(COPY - SLOT_BYTES * (slot as i16 + 1))
    }

    pub fn give_back(&mut self, offset: i16) {
        self.taken[((COPY - offset) / SLOT_BYTES - 1) as usize] = false;
    }

    pub fn clear(&mut self) {
        self.taken.fill(false);
    }
}
