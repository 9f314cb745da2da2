//! Bytes of a frame that is read in place, in its linear part.
//!
//! The verifier requires a bounds check before every load. One check serves all loads behind it, and reaches
//! a little further if complete frames do. A frame that fails a check is not decided here: the program starts
//! over with a copy, where a missing byte matters only to the filters that load it.

use super::questions::Known;
use super::{Emitter, OFFSET_MAX, TAG_BYTES, TAG_END, TAG_START, Target, View};
use crate::filter::FilterError;
use crate::filter::classic::{Arithmetic, Width};
use crate::filter::ebpf::Register::{R1, R2, R5, R6, R7, R8};
use crate::filter::ebpf::{Alu, Bits, Instruction, Register, Size, Test};
use crate::filter::value::{Value, ValueId};

/// Bytes by which a bounds check may reach beyond its load: with the two of a port, the eight that every
/// transport header has.
const FURTHER_BYTES: u64 = 6;

impl Emitter<'_> {
    /// Whether the instructions here can load a value.
    pub(super) fn lies_in_place(value: Value, view: View) -> bool {
        let tagged = view == View::Tagged;
        match value {
            Value::Load { width, offset } => {
                let end = offset + width.bytes();
                let in_tag = width == Width::Half && matches!(offset, 12 | 14);
                u64::from(end) <= OFFSET_MAX
                    && (!tagged || end <= TAG_START || offset >= TAG_END || in_tag)
            }
            Value::LoadIndexed { width, offset, .. } => {
                u64::from(offset) + u64::from(width.bytes()) <= OFFSET_MAX
                    && (!tagged || offset >= TAG_END)
            }
            _ => true,
        }
    }

    /// Checks that the frame reaches `end`; otherwise it is copied.
    pub(super) fn reach(&mut self, end: u32, view: View, known: &mut Known) {
        if known.reach >= end {
            return;
        }
        let usual = self.target.link_layer.usual_bytes() + tag_bytes(view);
        let end = self.further(None, u64::from(end), usual) as u32;
        self.alu64(Alu::Move, R2, R7);
        self.alu64(Alu::Add, R2, in_packet(end, view) as i32);
        self.branch(Bits::B64, Test::Greater, R2, R8, self.copied);
        known.reach = end;
    }

    /// The end of the bounds check for `end`: that of another load which is not much further.
    fn further(&self, index: Option<ValueId>, end: u64, usual: u32) -> u64 {
        let most = u64::from(usual).max(end + FURTHER_BYTES).min(OFFSET_MAX);
        self.ends
            .get(&index)
            .and_then(|ends| ends.range(end..=most).next_back().copied())
            .unwrap_or(end)
    }

    /// Points r5 at an index and checks that the frame reaches `end` from there.
    pub(super) fn anchor(
        &mut self,
        index: ValueId,
        end: u64,
        view: View,
        known: &mut Known,
    ) -> Result<(), FilterError> {
        if known.reaches(index, end) {
            return Ok(());
        }
        self.put_value(index, view, known)?;
        self.set_anchor(index, end, view, known);
        Ok(())
    }

    /// The same, when the index is in r1 already.
    pub(super) fn set_anchor(&mut self, index: ValueId, end: u64, view: View, known: &mut Known) {
        let end = self.further(Some(index), end, 0);
        if self.bound_that_verifier_sees(index) > OFFSET_MAX {
            self.branch(Bits::B64, Test::Greater, R1, OFFSET_MAX as i32, self.copied);
        }
        self.alu64(Alu::Move, R5, R7);
        self.alu64(Alu::Add, R5, R1);
        self.alu64(Alu::Move, R2, R5);
        self.alu64(Alu::Add, R2, end as i32 - tag_bytes(view) as i32);
        self.branch(Bits::B64, Test::Greater, R2, R8, self.copied);
        known.anchor = Some((index, end));
    }

    /// The upper bound of a value that the verifier knows, too.
    fn bound_that_verifier_sees(&self, id: ValueId) -> u64 {
        let values = &self.decisions.values;
        match values.get(id) {
            Value::Constant(constant) => u64::from(constant),
            // Wider loads are turned into the machine's byte order, which it does not follow.
            Value::Load {
                width: Width::Byte, ..
            }
            | Value::LoadIndexed {
                width: Width::Byte, ..
            } => 0xff,
            Value::Computed {
                operator,
                left,
                right,
            } => match (operator, values.as_constant(right)) {
                (Arithmetic::And, Some(mask)) => u64::from(mask),
                (Arithmetic::ShiftLeft, Some(bits)) => self.bound_that_verifier_sees(left) << bits,
                (Arithmetic::ShiftRight, Some(bits)) => self.bound_that_verifier_sees(left) >> bits,
                _ => u64::from(u32::MAX),
            },
            _ => u64::from(u32::MAX),
        }
    }

    /// Loads from a constant offset into r1.
    pub(super) fn load_in_place(
        &mut self,
        width: Width,
        offset: u32,
        view: View,
        known: &mut Known,
    ) {
        if view == View::Tagged && (TAG_START..TAG_END).contains(&offset) {
            if offset == TAG_START {
                self.put(Instruction::load(
                    Size::Word,
                    R1,
                    R6,
                    Target::SKB_VLAN_PROTO,
                ));
                self.put(Instruction::network_order(R1, 16));
            } else {
                self.put(Instruction::load(Size::Word, R1, R6, Target::SKB_VLAN_TCI));
            }
            return;
        }
        self.reach(offset + width.bytes(), view, known);
        self.load(width, R7, in_packet(offset, view) as i16);
    }

    /// Loads from an offset behind r5 into r1.
    pub(super) fn load_at_anchor(&mut self, width: Width, offset: u32, view: View) {
        self.load(width, R5, (offset - tag_bytes(view)) as i16);
    }

    /// Loads into r1, from network byte order.
    pub(super) fn load(&mut self, width: Width, base: Register, offset: i16) {
        let (size, bits) = match width {
            Width::Byte => (Size::Byte, None),
            Width::Half => (Size::Half, Some(16)),
            Width::Word => (Size::Word, Some(32)),
        };
        self.put(Instruction::load(size, R1, base, offset));
        if let Some(bits) = bits {
            self.put(Instruction::network_order(R1, bits));
        }
    }
}

/// Where an offset of the frame lies in the packet: the tag may not be in it.
const fn in_packet(offset: u32, view: View) -> u32 {
    match view {
        View::Tagged if offset >= TAG_END => offset - TAG_BYTES,
        View::Tagged if offset > TAG_START => TAG_START,
        _ => offset,
    }
}

/// Bytes of the frame that are not in the packet.
const fn tag_bytes(view: View) -> u32 {
    match view {
        View::Tagged => TAG_BYTES,
        View::Plain | View::Copied => 0,
    }
}
