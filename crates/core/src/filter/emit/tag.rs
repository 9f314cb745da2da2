//! Whether a packet socket shows the frame's outer VLAN tag beside it.
//!
//! For a classifier and for a packet socket, the kernel keeps the tag in metadata. XDP runs before the kernel takes the
//! tag out of the frame. If an interface cannot insert tags itself, the stack inserts the tag of a sent frame before a
//! packet socket sees the frame.

use super::questions::Known;
use super::{Emitter, Hook, LinkLayer, TAG_START, TagsBeside, View};
use crate::filter::classic::Width;
use crate::filter::ebpf::Register::{R1, R8};
use crate::filter::ebpf::{Alu, Bits, Test};

impl Emitter<'_> {
    /// The answer for all frames of a view; `None` if it depends on the frame.
    pub(super) fn tag_answer(&self, view: View) -> Option<bool> {
        let beside = self.target.tags_beside;
        if self.target.link_layer == LinkLayer::RawIp || beside.protocols().next().is_none() {
            return Some(false);
        }
        match (self.target.hook, view) {
            (Hook::SchedCls, View::Plain) => Some(false),
            (Hook::SchedCls, View::Tagged) if beside == TagsBeside::ALL => Some(true),
            _ => None,
        }
    }

    /// Sets r1 to 0 if no tag is beside the frame, and to another number if one is.
    pub(super) fn ask_tag(&mut self, view: View, known: &mut Known) {
        known.held = None;
        let (yes, no) = (self.assembler.label(), self.assembler.label());
        let (done, beside) = (self.assembler.label(), self.target.tags_beside);
        if view == View::Copied {
            if self.target.hook == Hook::SchedCls {
                self.alu64(Alu::Move, R1, R8);
                if beside == TagsBeside::ALL {
                    return;
                }
                self.branch(Bits::B64, Test::Equal, R1, 0, no);
            }
            // The copy of a short frame ends in zeros.
            self.load_copied(Width::Half, TAG_START);
        } else {
            self.load_in_place(Width::Half, TAG_START, view, known);
        }
        for protocol in beside.protocols() {
            self.branch(Bits::B32, Test::Equal, R1, i32::from(protocol), yes);
        }
        self.assembler.place(no);
        self.alu32(Alu::Move, R1, 0);
        self.assembler.jump(done);
        self.assembler.place(yes);
        self.alu32(Alu::Move, R1, 1);
        self.assembler.place(done);
    }
}
