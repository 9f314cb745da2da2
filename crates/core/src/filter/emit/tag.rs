//! Whether a packet socket shows the frame's outer VLAN tag beside it.
//!
//! A classifier has the tag in the metadata, as a packet socket. XDP runs before the kernel takes the tag out. The stack
//! puts the tag of a sent frame into the frame before a packet socket sees it, if the interface does not send such tags by itself.

use super::questions::Known;
use super::{Emitter, Hook, LinkLayer, TAG_START, TagsBeside, View};
use crate::filter::classic::Width;
use crate::filter::ebpf::Register::{R1, R8};
use crate::filter::ebpf::{Alu, Bits, Test};

impl Emitter<'_> {
    /// The answer that all frames of a view have, if they have one.
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

    /// Puts a number into r1 that is 0 only if the tag is not beside the frame.
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
            // Zeros stand behind the end of a short frame.
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
