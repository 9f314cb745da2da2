//! The hook that a program is generated for.

use crate::filter::classic::Origin;

/// The kind of eBPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// XDP, before the stack.
    Xdp {
        /// Whether the program is loaded with `BPF_F_XDP_HAS_FRAGS` and may get multi-buffer frames.
        frags: bool,
    },
    /// A classifier: tcx or clsact.
    SchedCls,
}

/// The first header of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// An Ethernet header.
    Ethernet,
    /// An IPv4 or IPv6 header: interfaces without a link header.
    RawIp,
}

impl LinkLayer {
    /// Bytes of the shortest usual frame: an IPv4 header with 8 bytes behind it. The program reads shorter
    /// frames from a copy.
    pub(super) const fn usual_bytes(self) -> u32 {
        match self {
            Self::Ethernet => 42,
            Self::RawIp => 28,
        }
    }
}

/// The outer VLAN tags that a packet socket at a hook shows beside the frame; others it shows in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagsBeside {
    /// Those of 802.1Q.
    pub customer: bool,
    /// Those of 802.1ad.
    pub service: bool,
}

impl TagsBeside {
    /// What an interface receives: the kernel takes out every outer tag.
    pub const ALL: Self = Self {
        customer: true,
        service: true,
    };

    /// Whether tags of an EtherType are among them.
    pub fn contains(self, protocol: u16) -> bool {
        self.protocols().any(|one| one == protocol)
    }

    /// Their EtherTypes.
    pub fn protocols(self) -> impl Iterator<Item = u16> {
        let protocols = [(self.customer, 0x8100), (self.service, 0x88a8)];
        let beside = protocols.into_iter().filter(|(is_beside, _)| *is_beside);
        beside.map(|(_, protocol)| protocol)
    }
}

/// The hook that a program is generated for, and its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The kind of program.
    pub hook: Hook,
    /// The first header of frames.
    pub link_layer: LinkLayer,
    /// The hook drops all frames (XDP only), whether a filter accepts them or not.
    pub discard: bool,
    /// Where the hook is.
    pub origin: Origin,
    /// For programs of [`FrameView::Untagged`](crate::filter::classic::FrameView).
    pub tags_beside: TagsBeside,
}

/// Fields of `struct xdp_md` and `struct __sk_buff`, as offsets in bytes.
impl Target {
    /// What the program returns: `XDP_PASS`, `XDP_DROP` or `TCX_NEXT`.
    pub const fn verdict(self) -> i32 {
        match (self.hook, self.discard) {
            (Hook::Xdp { .. }, false) => 2,
            (Hook::Xdp { .. }, true) => 1,
            (Hook::SchedCls, _) => -1,
        }
    }

    pub(super) const SKB_LEN: i16 = 0;
    pub(super) const SKB_VLAN_PRESENT: i16 = 20;
    pub(super) const SKB_VLAN_TCI: i16 = 24;
    pub(super) const SKB_VLAN_PROTO: i16 = 28;

    pub(super) const fn data(self) -> i16 {
        match self.hook {
            Hook::Xdp { .. } => 0,
            Hook::SchedCls => 76,
        }
    }

    pub(super) const fn data_end(self) -> i16 {
        self.data() + 4
    }

    /// Whether a VLAN tag may be in the packet's metadata instead of the frame.
    pub(super) fn may_be_tagged(self) -> bool {
        self.hook == Hook::SchedCls && self.link_layer == LinkLayer::Ethernet
    }
}
