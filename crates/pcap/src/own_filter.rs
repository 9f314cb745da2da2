//! A filter that the kernel cannot merge with the others: it runs here, on every packet of the ring.

use parshall_core::abi::{CaptureRecord, DIRECTION_OUT};
use parshall_core::filter::classic::{
    ClassicProgram, FrameView, Origin, Packet, ProgramError, Tag,
};
use parshall_core::filter::emit::TagsBeside;
use parshall_kernel::net::ethtool::tags_sent_beside;

use crate::subscription::Wanted;

/// Bytes before a VLAN tag, and up to its end.
const TAG_START: usize = 12;
const TAG_END: usize = 16;

/// How a packet passed its interface.
#[derive(Clone, Copy, Default)]
pub struct Passage {
    pub is_outbound: bool,
    /// The kernel kept the VLAN tag beside the packet.
    pub is_tag_beside: bool,
}

impl From<&CaptureRecord> for Passage {
    fn from(record: &CaptureRecord) -> Self {
        Self {
            is_outbound: record.direction == DIRECTION_OUT,
            is_tag_beside: record.vlan_protocol != 0,
        }
    }
}

/// The filter, and what it needs to see packets as a packet socket shows them.
pub struct OwnFilter {
    program: ClassicProgram,
    interface_index: u32,
    /// The tags that the kernel keeps beside sent packets.
    tags_beside: TagsBeside,
    /// The last packet that was filtered without its tag.
    untagged: Vec<u8>,
}

impl OwnFilter {
    /// A filter for the packets of an interface.
    ///
    /// # Errors
    /// When the program is not valid, or asks for data that a ring does not have.
    pub fn new(program: Wanted<'_>, interface_index: u32) -> Result<Self, ProgramError> {
        Ok(Self {
            program: ClassicProgram::of_view(program.instructions, program.view)?,
            interface_index,
            tags_beside: tags_sent_beside(interface_index),
            untagged: Vec::new(),
        })
    }

    /// Reads from the kernel again which tags the interface inserts itself.
    pub fn update(&mut self) {
        self.tags_beside = tags_sent_beside(self.interface_index);
    }

    /// Whether the filter accepts a packet; `whole` has the bytes as on the wire.
    pub fn accepts(&mut self, passage: Passage, wire_bytes: u32, whole: &[u8]) -> bool {
        let mut packet = Packet {
            bytes: whole,
            wire_bytes,
            origin: Origin {
                is_outbound: passage.is_outbound,
                interface_index: self.interface_index,
            },
            tag: None,
        };
        let is_beside = |tag: &Tag| match passage.is_outbound {
            // A tag that its sender wrote into the frame stays there.
            true => passage.is_tag_beside && self.tags_beside.contains(tag.protocol),
            false => TagsBeside::ALL.contains(tag.protocol),
        };
        if self.program.view() == FrameView::Untagged
            && let Some(tag) = outer_tag(whole).filter(is_beside)
        {
            self.untagged.clear();
            self.untagged.extend_from_slice(&whole[..TAG_START]);
            self.untagged.extend_from_slice(&whole[TAG_END..]);
            packet.bytes = &self.untagged;
            packet.wire_bytes -= (TAG_END - TAG_START) as u32;
            packet.tag = Some(tag);
        }
        self.program.run_on(&packet) != 0
    }
}

/// The bytes at the place of an outer tag, whether or not they are one.
fn outer_tag(frame: &[u8]) -> Option<Tag> {
    let bytes = frame.get(TAG_START..TAG_END)?;
    Some(Tag {
        protocol: u16::from_be_bytes([bytes[0], bytes[1]]),
        control: u16::from_be_bytes([bytes[2], bytes[3]]),
    })
}
