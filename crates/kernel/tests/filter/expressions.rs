//! The expressions of the data files, compiled.

use std::net::Ipv4Addr;

use parshall_core::filter::classic::ClassicInstruction;
use parshall_core::filter::emit::LinkLayer;
use parshall_core::filter::{MergedFilter, Subscription};
use parshall_kernel::filter::{Expression, ExpressionError};

use crate::witness::Witness;

/// An expression, and who says what it means.
pub struct Compiled {
    pub text: String,
    pub expression: Expression,
    /// None: too long for libpcap, or no text but a program.
    witness: Option<Witness>,
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
        let witness = Witness::of(text, link_layer, bits);
        let compiled = Expression::compile(text, link_layer, netmask);
        let is_refused = matches!(compiled, Err(ExpressionError::Compile { .. }));
        assert_eq!(witness.is_none(), is_refused, "{text}: {compiled:?}");
        Ok(Self {
            text: text.to_owned(),
            expression: compiled?,
            witness,
        })
    }

    /// A list that libpcap would compile for minutes.
    pub fn list(text: &str) -> Self {
        let compiled = Expression::compile(text, LinkLayer::Ethernet, None);
        Self {
            text: text.to_owned(),
            expression: compiled.unwrap_or_else(|error| panic!("{error}")),
            witness: None,
        }
    }

    /// A classic program, called by a text.
    pub fn program(text: String, program: &[ClassicInstruction]) -> Self {
        Self {
            text,
            expression: Expression::from_instructions(program).unwrap(),
            witness: None,
        }
    }

    /// Whether libpcap says that a frame is accepted.
    pub fn wants(&self, frame: &[u8]) -> bool {
        self.witness.as_ref().map_or_else(
            || self.expression.run_by_libpcap(frame) != 0,
            |witness| witness.accepts(frame),
        )
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

/// Filters merged, the first as subscriber 0, each with a snapshot length of its own.
pub fn merge<'a>(expressions: impl IntoIterator<Item = &'a Compiled>) -> MergedFilter {
    let subscriptions: Vec<Subscription> = expressions
        .into_iter()
        .zip(0..)
        .map(|(compiled, subscriber)| Subscription {
            subscriber,
            program: compiled.expression.program().clone(),
            snaplen_bytes: snaplen_bytes(subscriber),
        })
        .collect();
    MergedFilter::new(&subscriptions).unwrap_or_else(|error| panic!("{error}"))
}

/// Snapshot lengths in no order, some of them equal.
pub fn snaplen_bytes(subscriber: u32) -> u32 {
    64 + subscriber * 37 % 20 * 100
}

/// What libpcap says: the subscribers that want a frame, and the longest of their snapshots.
pub fn expected<'a>(
    expressions: impl IntoIterator<Item = &'a Compiled>,
    frame: &[u8],
) -> (u64, u32) {
    expressions
        .into_iter()
        .zip(0..)
        .filter(|(compiled, _)| compiled.wants(frame))
        .fold((0, 0), |(subscribers, longest), (_, subscriber)| {
            (
                subscribers | 1 << subscriber,
                longest.max(snaplen_bytes(subscriber)),
            )
        })
}
