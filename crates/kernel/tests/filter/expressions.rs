//! The expressions of the data files, compiled.

use std::net::Ipv4Addr;

use parshall_core::filter::emit::LinkLayer;
use parshall_core::filter::{MergedFilter, Subscription};
use parshall_kernel::filter::Expression;

/// An expression and what libpcap made of it.
pub struct Compiled {
    pub text: String,
    pub expression: Expression,
}

impl Compiled {
    pub fn new(text: &str, link_layer: LinkLayer) -> Self {
        let mask = Some(Ipv4Addr::new(255, 255, 255, 0));
        Self {
            text: text.to_owned(),
            expression: Expression::compile(text, link_layer, mask)
                .unwrap_or_else(|error| panic!("{error}")),
        }
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
pub fn merge<'a>(expressions: impl IntoIterator<Item = &'a Expression>) -> MergedFilter {
    let subscriptions: Vec<Subscription> = expressions
        .into_iter()
        .zip(0..)
        .map(|(expression, subscriber)| Subscription {
            subscriber,
            program: expression.program().clone(),
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
    expressions: impl IntoIterator<Item = &'a Expression>,
    frame: &[u8],
) -> (u64, u32) {
    expressions
        .into_iter()
        .zip(0..)
        .filter(|(expression, _)| expression.run_by_libpcap(frame) != 0)
        .fold((0, 0), |(subscribers, longest), (_, subscriber)| {
            (
                subscribers | 1 << subscriber,
                longest.max(snaplen_bytes(subscriber)),
            )
        })
}
