//! Packet traces as files: pcapng and classic pcap, written and read.
//!
//! `docs/formats/capture-files.md` documents their contents.

mod allowance;
mod byte_order;
mod contents;
mod decompressor;
mod destination;
mod encoder;
mod error;
mod format;
mod input;
mod interface;
mod options;
mod output;
mod packet;
mod pcap_reader;
mod pcap_records;
mod pcapng_blocks;
mod pcapng_reader;
mod reader;
mod resolution;
mod section;
mod statistics;
mod writer;

pub use crate::output_file::series::Rotation;
pub use allowance::allowance_bytes;
pub use contents::Counters;
pub use destination::Destination;
pub use error::TraceError;
pub use format::{Compression, Format};
pub use interface::{
    Interface, LINK_TYPE_ETHERNET, LINK_TYPE_IPV4, LINK_TYPE_IPV6, LINK_TYPE_LINUX_SLL,
    LINK_TYPE_LINUX_SLL2, LINK_TYPE_LOOP, LINK_TYPE_NULL, LINK_TYPE_RAW,
};
pub use options::WriterOptions;
pub use output::Sink;
pub use packet::{Direction, Packet};
pub use reader::Reader;
pub use section::Section;
pub use statistics::{Account, Statistics, Written};
pub use writer::{Finished, Writer};
