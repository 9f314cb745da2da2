//! Reads pcapng: any number of sections and interfaces, both byte orders, any resolution.

use super::byte_order::ByteOrder;
use super::contents::{Contents, Counters, Found};
use super::error::TraceError;
use super::input::Input;
use super::interface::Interface;
use super::packet::Direction;
use super::pcapng_blocks::*;
use super::resolution::Resolution;
use super::section::Section;

/// The packet block of drafts before 2010; files with it are still around.
const OLD_PACKET: u32 = 2;
/// Longer blocks are damage; Wireshark has the same limit.
const BLOCK_MAX_BYTES: usize = 16 << 20;
/// Maximum bytes of a block that is kept for more than its last packet.
const KEPT_BLOCK_MAX_BYTES: usize = 1 << 20;
/// Maximum bytes that are kept of interfaces, however many the file has.
const KEPT_MAX_BYTES: usize = 64 << 20;
/// Memory that a text takes besides its bytes.
const TEXT_BYTES: usize = size_of::<String>() + 16;
/// Type and length before the content of a block, the length again behind it.
const FRAME_BYTES: usize = 12;
/// The default of `if_tsresol`: microseconds.
const DEFAULT_TSRESOL: u8 = 6;

/// The state of a section.
pub(super) struct PcapngReader {
    order: ByteOrder,
    /// Number of the first interface of the section among all of the file.
    first_interface: usize,
    /// Time resolution and snapshot length of the section's interfaces.
    interfaces: Vec<(Resolution, u32)>,
}

impl PcapngReader {
    /// None when the file does not start with a section header.
    pub(super) fn new(first: &[u8]) -> Option<Self> {
        (first.get(..4)? == SECTION_HEADER.to_le_bytes()).then_some(Self {
            order: ByteOrder::Little,
            first_interface: 0,
            interfaces: Vec::new(),
        })
    }

    /// Skips to the next packet, and keeps descriptions and statistics.
    #[inline]
    pub(super) fn next(
        &mut self,
        input: &mut Input,
        contents: &mut Contents,
    ) -> Result<Option<Found>, TraceError> {
        loop {
            if !input.has(FRAME_BYTES, "a block")? {
                return Ok(None);
            }
            let head = input.bytes();
            let kind = self.order.u32(head, 0);
            if kind == SECTION_HEADER {
                self.order = byte_order(head, input)?;
            }
            let block_bytes = self.order.u32(input.bytes(), 4) as usize;
            if !(FRAME_BYTES..=BLOCK_MAX_BYTES).contains(&block_bytes)
                || !block_bytes.is_multiple_of(4)
            {
                return Err(input.corrupt(
                    format!("a block of type {kind:#x} and {block_bytes} bytes"),
                    format!("{FRAME_BYTES} to {BLOCK_MAX_BYTES}, a multiple of 4"),
                ));
            }
            if input.ready(block_bytes) < block_bytes {
                return Err(input.truncated("a block"));
            }
            let block = &input.bytes()[..block_bytes];
            let again_bytes = self.order.u32(block, block_bytes - 4) as usize;
            if again_bytes != block_bytes {
                return Err(input.corrupt(
                    format!("a block of type {kind:#x} and {block_bytes} bytes that ends with the length {again_bytes}"),
                    "the same length twice",
                ));
            }
            let content = &block[8..block_bytes - 4];
            let is_kept = matches!(
                kind,
                SECTION_HEADER | INTERFACE_DESCRIPTION | INTERFACE_STATISTICS
            );
            if is_kept && block_bytes > KEPT_BLOCK_MAX_BYTES {
                return Err(input.corrupt(
                    format!("a block of type {kind:#x} and {block_bytes} bytes"),
                    format!("at most {KEPT_BLOCK_MAX_BYTES} of that type"),
                ));
            }
            let found = match kind {
                ENHANCED_PACKET => {
                    Some(self.packet(content, self.order.u32(content, 0), 0, input)?)
                }
                SIMPLE_PACKET => Some(self.simple_packet(content, input)?),
                OLD_PACKET => Some(self.old_packet(content, input)?),
                SECTION_HEADER => self.section(content, input, contents).map(|()| None)?,
                INTERFACE_DESCRIPTION => self.interface(content, input, contents).map(|()| None)?,
                INTERFACE_STATISTICS => self.statistics(content, input, contents).map(|()| None)?,
                // Names, secrets, journals and private blocks are no damage.
                _ => None,
            };
            if contents.kept_bytes > KEPT_MAX_BYTES {
                return Err(input.corrupt(
                    format!("more than {} MiB about interfaces", KEPT_MAX_BYTES >> 20),
                    "less; take a part of the file (editcap)",
                ));
            }
            input.pass(block_bytes);
            if let Some(mut found) = found {
                // It counts from the start of the content; the caller needs it from the end of the block.
                found.behind_bytes = block_bytes - 8 - found.behind_bytes;
                return Ok(Some(found));
            }
        }
    }

    /// An enhanced packet, or one of the old form, which differs in the first 4 bytes.
    #[inline]
    fn packet(
        &self,
        content: &[u8],
        interface: u32,
        lost_before: u64,
        input: &Input,
    ) -> Result<Found, TraceError> {
        const HEAD_BYTES: usize = 20;
        let captured_bytes = self.order.u32(content, 12) as usize;
        let resolution = self.resolution(interface as usize, input)?;
        let after = self.after_packet(content, HEAD_BYTES, captured_bytes, input)?;
        let mut found = Found {
            interface: self.first_interface as u32 + interface,
            time_ns: resolution.to_ns(self.order.time(content, 4)),
            wire_bytes: self.order.u32(content, 16),
            captured_bytes,
            behind_bytes: HEAD_BYTES,
            lost_before,
            ..Found::default()
        };
        self.packet_options(content, after, &mut found);
        Ok(found)
    }

    fn old_packet(&self, content: &[u8], input: &Input) -> Result<Found, TraceError> {
        let interface = self.order.u16(content, 0).into();
        let lost_before = match self.order.u16(content, 2) {
            u16::MAX => 0, // not known
            packets => packets.into(),
        };
        self.packet(content, interface, lost_before, input)
    }

    /// A simple packet has no time, and its interface is the first.
    fn simple_packet(&self, content: &[u8], input: &Input) -> Result<Found, TraceError> {
        const HEAD_BYTES: usize = 4;
        let wire_bytes = self.order.u32(content, 0);
        self.resolution(0, input)?;
        let snaplen_bytes = match self.interfaces[0].1 {
            0 => u32::MAX,
            bytes => bytes,
        };
        let captured_bytes = wire_bytes.min(snaplen_bytes) as usize;
        self.after_packet(content, HEAD_BYTES, captured_bytes, input)?;
        Ok(Found {
            interface: self.first_interface as u32,
            wire_bytes,
            captured_bytes,
            behind_bytes: HEAD_BYTES,
            ..Found::default()
        })
    }

    #[inline]
    fn resolution(&self, interface: usize, input: &Input) -> Result<Resolution, TraceError> {
        match self.interfaces.get(interface) {
            Some((resolution, _)) => Ok(*resolution),
            None => Err(input.corrupt(
                format!("a packet of interface {interface}"),
                format!("one of the {} of its section", self.interfaces.len()),
            )),
        }
    }

    /// Where the options of a packet start.
    #[inline]
    fn after_packet(
        &self,
        content: &[u8],
        head_bytes: usize,
        captured_bytes: usize,
        input: &Input,
    ) -> Result<usize, TraceError> {
        let room_bytes = content.len().saturating_sub(head_bytes);
        if content.len() < head_bytes || captured_bytes > room_bytes {
            return Err(input.corrupt(
                format!("a packet of {captured_bytes} captured bytes"),
                format!("at most the {room_bytes} that its block has room for"),
            ));
        }
        Ok((head_bytes + captured_bytes).next_multiple_of(4))
    }

    #[inline]
    fn packet_options(&self, content: &[u8], after: usize, found: &mut Found) {
        for (code, value, at) in options(content, after, self.order) {
            match code {
                EPB_FLAGS => {
                    found.direction = match self.order.u32(value, 0) & 3 {
                        1 => Direction::In,
                        2 => Direction::Out,
                        _ => Direction::Unknown,
                    }
                }
                EPB_DROPCOUNT => found.lost_before = self.order.u64(value, 0),
                OPTION_COMMENT if found.comment.is_none() => {
                    // The reader counts from the start of the packet's bytes.
                    found.comment = Some((at - found.behind_bytes, value.len()));
                }
                _ => {}
            }
        }
    }

    fn section(
        &mut self,
        content: &[u8],
        input: &Input,
        contents: &mut Contents,
    ) -> Result<(), TraceError> {
        const HEAD_BYTES: usize = 16;
        has_head(content, HEAD_BYTES, "a section header", input)?;
        let (major, minor) = (self.order.u16(content, 4), self.order.u16(content, 6));
        if major != 1 {
            return Err(input.corrupt(format!("a section of version {major}.{minor}"), "version 1"));
        }
        let mut section = Section::default();
        for (code, value, _) in options(content, HEAD_BYTES, self.order) {
            match code {
                OPTION_COMMENT => section.comments.push(text(value)),
                SHB_HARDWARE => section.hardware = Some(text(value)),
                SHB_OS => section.os = Some(text(value)),
                SHB_USERAPPL => section.application = Some(text(value)),
                _ => {}
            }
        }
        contents.section = section;
        self.first_interface = contents.interfaces.len();
        self.interfaces.clear();
        Ok(())
    }

    fn interface(
        &mut self,
        content: &[u8],
        input: &Input,
        contents: &mut Contents,
    ) -> Result<(), TraceError> {
        const HEAD_BYTES: usize = 8;
        has_head(content, HEAD_BYTES, "an interface", input)?;
        let mut interface = Interface {
            link_type: self.order.u16(content, 0),
            snaplen_bytes: self.order.u32(content, 4),
            ..Interface::default()
        };
        let (mut exponent, mut offset_s) = (DEFAULT_TSRESOL, 0);
        for (code, value, _) in options(content, HEAD_BYTES, self.order) {
            match code {
                IF_NAME => interface.name = text(value),
                IF_DESCRIPTION => interface.description = Some(text(value)),
                IF_SPEED => interface.speed_bps = Some(self.order.u64(value, 0)),
                IF_TSRESOL => exponent = value.first().copied().unwrap_or(DEFAULT_TSRESOL),
                IF_FILTER if value.first() == Some(&0) => {
                    interface.filter = Some(text(&value[1..]));
                }
                IF_OS => interface.os = Some(text(value)),
                IF_TSOFFSET => offset_s = self.order.u64(value, 0) as i64,
                _ => {}
            }
        }
        let resolution = Resolution::new(exponent, offset_s);
        interface.resolution_ns = resolution.unit_ns();
        self.interfaces.push((resolution, interface.snaplen_bytes));
        contents.kept_bytes +=
            content.len() + size_of::<Interface>() + size_of::<Option<Counters>>();
        contents.interfaces.push(interface);
        contents.counters.push(None);
        Ok(())
    }

    fn statistics(
        &self,
        content: &[u8],
        input: &Input,
        contents: &mut Contents,
    ) -> Result<(), TraceError> {
        const HEAD_BYTES: usize = 12;
        let interface = self.order.u32(content, 0) as usize;
        let resolution = self.resolution(interface, input)?;
        let mut counters = Counters::default();
        for (code, value, _) in options(content, HEAD_BYTES, self.order) {
            let number = Some(self.order.u64(value, 0));
            let time = Some(resolution.to_ns(self.order.time(value, 0)));
            match code {
                OPTION_COMMENT => counters.comments.push(text(value)),
                ISB_STARTTIME => counters.start_ns = time,
                ISB_ENDTIME => counters.end_ns = time,
                ISB_IFRECV => counters.received = number,
                ISB_IFDROP => counters.dropped_by_interface = number,
                ISB_FILTERACCEPT => counters.accepted = number,
                ISB_OSDROP => counters.dropped_by_os = number,
                ISB_USRDELIV => counters.delivered = number,
                _ => {}
            }
        }
        let texts_bytes = |counters: &Counters| -> usize {
            let comments = counters.comments.iter();
            comments.map(|text| text.len() + TEXT_BYTES).sum()
        };
        contents.kept_bytes += texts_bytes(&counters);
        let before = contents.counters[self.first_interface + interface].replace(counters);
        contents.kept_bytes -= before.as_ref().map_or(0, texts_bytes);
        Ok(())
    }
}

/// The byte order of a section, from its head.
fn byte_order(head: &[u8], input: &Input) -> Result<ByteOrder, TraceError> {
    [ByteOrder::Little, ByteOrder::Big]
        .into_iter()
        .find(|order| order.u32(head, 8) == BYTE_ORDER_MAGIC)
        .ok_or_else(|| {
            input.corrupt(
                format!("a section with the byte-order magic {:02x?}", &head[8..12]),
                "1a 2b 3c 4d or its reverse",
            )
        })
}

/// Checks that a block's content has its fixed part.
fn has_head(content: &[u8], bytes: usize, what: &str, input: &Input) -> Result<(), TraceError> {
    if content.len() >= bytes {
        return Ok(());
    }
    let found = format!("{what} of {} bytes", content.len() + FRAME_BYTES);
    Err(input.corrupt(found, format!("at least {}", bytes + FRAME_BYTES)))
}

/// The options from `at` on: code, value, and where the value starts. It ends at the first that is cut.
#[inline]
fn options(
    content: &[u8],
    mut at: usize,
    order: ByteOrder,
) -> impl Iterator<Item = (u16, &[u8], usize)> {
    std::iter::from_fn(move || {
        if content.len() < at + 4 {
            return None;
        }
        let code = order.u16(content, at);
        let value_at = at + 4;
        let end = value_at + usize::from(order.u16(content, at + 2));
        let value = content.get(value_at..end)?;
        at = end.next_multiple_of(4);
        (code != OPTION_END).then_some((code, value, value_at))
    })
}

/// Text of a file, which should be UTF-8, and may end in a zero byte in files of some programs.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value)
        .trim_end_matches('\0')
        .to_owned()
}
