//! Reads packets from capture files, as fast as the disk, in constant memory.

use super::contents::{Contents, Counters};
use super::error::TraceError;
use super::input::Input;
use super::interface::Interface;
use super::packet::Packet;
use super::pcap_reader::PcapReader;
use super::pcapng_reader::PcapngReader;
use super::section::Section;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::path::Path;

enum Kind {
    Pcap(PcapReader),
    Pcapng(PcapngReader),
}

/// Reads a capture file: pcapng or classic pcap, as it is or compressed with gzip or zstd.
///
/// ```no_run
/// # use parshall_core::trace::*;
/// # fn main() -> Result<(), TraceError> {
/// let mut reader = Reader::open("day.pcapng.zst".as_ref())?;
/// let mut bytes = 0;
/// while let Some(packet) = reader.next()? {
///     bytes += u64::from(packet.wire_bytes);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Reader {
    input: Input,
    kind: Kind,
    contents: Contents,
    has_ended: bool,
}

impl Reader {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        if path.as_os_str() == "-" {
            let name = "standard input";
            return match io::stdin().as_fd().try_clone_to_owned() {
                Ok(stdin) => Self::new(Box::new(File::from(stdin)), name),
                Err(source) => Err(TraceError::Read {
                    path: name.into(),
                    source,
                }),
            };
        }
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(Box::new(file), &name),
            Err(source) => Err(TraceError::Read { path: name, source }),
        }
    }

    /// Reads from any source; `name` is for messages.
    ///
    /// # Errors
    /// [`TraceError::Read`] when it cannot be read, [`TraceError::NotATrace`] when it is something else,
    /// [`TraceError::Truncated`] and [`TraceError::Corrupt`] when it has no good head.
    pub fn new(source: Box<dyn Read + Send>, name: &str) -> Result<Self, TraceError> {
        let (mut input, first) = Input::new(source, name.to_owned())?;
        let mut contents = Contents::default();
        let kind = if let Some(reader) = PcapngReader::new(&first) {
            Kind::Pcapng(reader)
        } else if let Some((reader, interface)) = PcapReader::new(&mut input, &first)? {
            contents.interfaces.push(interface);
            contents.counters.push(None);
            Kind::Pcap(reader)
        } else {
            return Err(input.not_a_trace(&first));
        };
        Ok(Self {
            input,
            kind,
            contents,
            has_ended: false,
        })
    }

    /// The next packet, which is valid until the next call; `None` at the end.
    ///
    /// # Errors
    /// [`TraceError::Read`], [`TraceError::Truncated`], [`TraceError::Corrupt`], after all packets before the
    /// fault. After an error it returns `None`.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot lend its items"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Packet<'_>>, TraceError> {
        if self.has_ended {
            return Ok(None);
        }
        let found = match &mut self.kind {
            Kind::Pcap(reader) => reader.next(&mut self.input),
            Kind::Pcapng(reader) => reader.next(&mut self.input, &mut self.contents),
        };
        let Some(found) = found.inspect_err(|_| self.has_ended = true)? else {
            self.has_ended = true;
            return Ok(None);
        };
        self.input.packets += 1;
        let bytes = self.input.passed(found.behind_bytes);
        let comment = found.comment.and_then(|(start, length)| {
            let bytes = &bytes[start..start + length];
            let good_bytes = match std::str::from_utf8(bytes) {
                Ok(_) => bytes.len(),
                Err(error) => error.valid_up_to(),
            };
            std::str::from_utf8(&bytes[..good_bytes]).ok()
        });
        Ok(Some(Packet {
            interface: found.interface,
            time_ns: found.time_ns,
            direction: found.direction,
            wire_bytes: found.wire_bytes,
            captured: &bytes[..found.captured_bytes],
            lost_before: found.lost_before,
            comment,
        }))
    }

    /// The section that the last packet came from, or the first.
    pub fn section(&self) -> &Section {
        &self.contents.section
    }

    /// All interfaces so far; [`Packet::interface`] numbers them across sections.
    pub fn interfaces(&self) -> &[Interface] {
        &self.contents.interfaces
    }

    /// The last statistics of each interface so far.
    pub fn counters(&self) -> &[Option<Counters>] {
        &self.contents.counters
    }

    /// The error for a file of more packets than it may have.
    pub fn too_much(&self, packets: u64) -> TraceError {
        TraceError::TooMuch {
            path: self.input.name().to_owned(),
            packets,
        }
    }

    /// Packets delivered.
    pub fn packets(&self) -> u64 {
        self.input.packets
    }
}
