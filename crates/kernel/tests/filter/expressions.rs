//! The expressions of the data files, compiled.

use std::net::Ipv4Addr;

use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram, FrameView, Tag};
use parshall_core::filter::emit::LinkLayer;
use parshall_core::filter::{FilterError, MergedFilter, Subscription};
use parshall_kernel::filter::{Expression, ExpressionError};

use crate::witness::{self, Handle};

/// An expression, and what says what it means.
#[derive(Clone)]
pub struct Compiled {
    pub text: String,
    pub program: ClassicProgram,
    /// For libpcap's interpreter: the program, or what libpcap compiles without its optimizer.
    witness: Vec<ClassicInstruction>,
}

impl Compiled {
    pub fn new(text: &str, link_layer: LinkLayer) -> Self {
        let mask = Ipv4Addr::new(255, 255, 255, 0);
        Self::or_refused(text, link_layer, Some(mask)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What libpcap refuses we refuse, and nothing else but what is too much arithmetic.
    pub fn or_refused(
        text: &str,
        link_layer: LinkLayer,
        netmask: Option<Ipv4Addr>,
    ) -> Result<Self, ExpressionError> {
        let bits = netmask.map_or(u32::MAX, u32::from);
        let witness = Handle::dead(link_layer).compile(text, false, bits);
        let compiled = Expression::compile(text, link_layer, netmask);
        let is_refused = matches!(compiled, Err(ExpressionError::Compile { .. }));
        assert_eq!(witness.is_none(), is_refused, "{text}: {compiled:?}");
        Ok(Self {
            text: text.to_owned(),
            program: compiled?.program().clone(),
            witness: witness.unwrap_or_default(),
        })
    }

    /// A list that libpcap would compile for minutes.
    pub fn list(text: &str) -> Self {
        let compiled = Expression::compile(text, LinkLayer::Ethernet, None);
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
        Self {
            text: text.to_owned(),
            program: compiled.program().clone(),
            witness: compiled.instructions().to_vec(),
        }
    }

    /// A classic program, called by a text.
    pub fn program(text: String, program: &[ClassicInstruction], view: FrameView) -> Self {
        Self {
            text,
            program: ClassicProgram::of_view(program, view).unwrap(),
            witness: program.to_vec(),
        }
    }

    /// An expression as programs compile it for a packet socket; `None` when libpcap refuses it, or its optimizer makes a
    /// invalid program, such as one that shifts by more than 31 bits.
    pub fn on_socket(text: &str, live: &Handle) -> Option<Self> {
        let mask = u32::from(Ipv4Addr::new(255, 255, 255, 0));
        let witness = live.compile(text, true, mask)?;
        Some(Self {
            text: text.to_owned(),
            program: ClassicProgram::of_view(&witness, FrameView::Untagged).ok()?,
            witness,
        })
    }

    /// Whether it can be merged: a load must not lie on both sides of a tag.
    pub fn can_be_merged(&self) -> bool {
        match MergedFilter::new(&subscribe([self])) {
            Err(FilterError::Program { .. }) => false,
            other => other.is_ok(),
        }
    }

    /// Whether libpcap says that a frame is accepted. `tag_is_beside`: a packet socket shows its outer tag beside it.
    pub fn wants(&self, frame: &[u8], tag_is_beside: bool) -> bool {
        if self.program.view() == FrameView::Whole {
            return witness::accepts(&self.witness, frame);
        }
        if !tag_is_beside {
            return witness::accepts_beside(&self.witness, frame, None);
        }
        let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let tag = Tag {
            protocol: number(12),
            control: number(14),
        };
        let untagged = [&frame[..12], &frame[16..]].concat();
        witness::accepts_beside(&self.witness, &untagged, Some(tag))
    }
}

/// Every expression of a data file.
pub fn all(link_layer: LinkLayer) -> Vec<Compiled> {
    let name = match link_layer {
        LinkLayer::Ethernet => "ethernet.txt",
        LinkLayer::RawIp => "raw-ip.txt",
    };
    let file = format!("{}/tests/filter/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{file}: {error}"))
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| Compiled::new(line, link_layer))
        .collect()
}

/// The first as subscriber 0, each with a snapshot length of its own.
pub fn subscribe<'a>(expressions: impl IntoIterator<Item = &'a Compiled>) -> Vec<Subscription> {
    let subscription = |(compiled, subscriber): (&Compiled, u32)| Subscription {
        subscriber,
        program: compiled.program.clone(),
        snaplen_bytes: snaplen_bytes(subscriber),
    };
    expressions.into_iter().zip(0..).map(subscription).collect()
}

/// Filters merged.
pub fn merge<'a>(expressions: impl IntoIterator<Item = &'a Compiled>) -> MergedFilter {
    MergedFilter::new(&subscribe(expressions)).unwrap_or_else(|error| panic!("{error}"))
}

/// Snapshot lengths in no order, some of them equal.
pub fn snaplen_bytes(subscriber: u32) -> u32 {
    64 + subscriber * 37 % 20 * 100
}

/// What libpcap says: the subscribers that want a frame, and the longest of their snapshots.
pub fn expected<'a>(
    expressions: impl IntoIterator<Item = &'a Compiled>,
    frame: &[u8],
    tag_is_beside: bool,
) -> (u64, u32) {
    expressions
        .into_iter()
        .zip(0..)
        .filter(|(compiled, _)| compiled.wants(frame, tag_is_beside))
        .fold((0, 0), |(subscribers, longest), (_, subscriber)| {
            (
                subscribers | 1 << subscriber,
                longest.max(snaplen_bytes(subscriber)),
            )
        })
}
