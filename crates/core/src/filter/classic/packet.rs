//! A packet as a program sees it.

use serde::{Deserialize, Serialize};

use super::{Origin, TagField};

/// How a program sees a frame with a VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameView {
    /// As on the wire: every tag stands in the frame.
    #[default]
    Whole,
    /// As on a packet socket: the outer tag stands beside the frame, where the kernel has taken it out.
    Untagged,
}

/// The VLAN tag that stands beside a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Its EtherType.
    pub protocol: u16,
    /// Priority and number.
    pub control: u16,
}

impl Tag {
    /// What a program loads of a tag, or of none.
    pub(super) fn field(tag: Option<Self>, field: TagField) -> u32 {
        tag.map_or(0, |tag| match field {
            TagField::Control => u32::from(tag.control),
            TagField::Present => 1,
            TagField::Protocol => u32::from(tag.protocol),
        })
    }
}

/// A packet for [`super::ClassicProgram::run_on`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its bytes, or the first of them, without the tag that stands beside them.
    pub bytes: &'a [u8],
    /// Its length on the wire, without that tag.
    pub wire_bytes: u32,
    /// Where it passes.
    pub origin: Origin,
    /// The tag beside it.
    pub tag: Option<Tag>,
}

impl<'a> Packet<'a> {
    /// A whole frame.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            wire_bytes: bytes.len() as u32,
            origin: Origin::default(),
            tag: None,
        }
    }
}
