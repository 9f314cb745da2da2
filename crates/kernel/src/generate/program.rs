//! The program in the kernel, and the memory that it shares with us.

use super::GenerateError;
use crate::ring::memory::Mapping;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};
use parshall_core::abi::{
    FlowHeader, GenerateOptions, GenerateState, HEADER_WORDS_MAX, PlannedPacket, TRANSPORT_NONE,
    TRANSPORT_TCP, TRANSPORT_UDP, plain_bytes,
};
use parshall_core::workload::{FRAME_BYTES_MIN, Packet, Packets, Protocol, STAMP_BYTES, Workload};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/generate.bpf.o"));

const PAGE_BYTES: usize = 4096;
const PACKET_BYTES: usize = size_of::<PlannedPacket>();

/// Frames that the kernel makes for a run lie in a page with their head- and tailroom.
pub(super) const FRAME_BYTES_MAX: usize = 3400;

/// The loaded program.
pub(super) struct Program {
    object: Object,
    /// What every frame holds before the first packet is written into it.
    pub frame: Vec<u8>,
    pub shared: Arc<Shared>,
}

// SAFETY: libbpf objects are not bound to a thread; `Program` is moved, never shared unguarded.
unsafe impl Send for Program {}

/// Memory that program and user space have in common.
pub(super) struct Shared {
    plan: Mapping,
    state: Mapping,
    places: u64,
    is_paced: bool,
}

fn kernel(what: &'static str) -> impl Fn(libbpf_rs::Error) -> GenerateError {
    move |error| GenerateError::Kernel {
        what,
        reason: match crate::libbpf_log::take() {
            Some(said) => format!("{error}: {said}"),
            None => error.to_string(),
        },
    }
}

impl Program {
    /// Loads the program for a workload with a ring of `places` planned packets, a power of two.
    pub fn load(
        workload: &Workload,
        packets: &Packets,
        interface_index: u32,
        places: u32,
    ) -> Result<Self, GenerateError> {
        let fail = kernel("load the generator");
        let layout = packets.layout();
        let header_words = layout.payload_offset.div_ceil(8);
        let stamp_bytes = if workload.is_stamped { STAMP_BYTES } else { 0 };
        let written_bytes = (8 * header_words).max(layout.payload_offset + stamp_bytes);
        let buffer_bytes = workload.largest_frame_bytes().max(written_bytes);
        let options = GenerateOptions {
            interface_index,
            plan_mask: places - 1,
            buffer_bytes: buffer_bytes as u32,
            written_bytes: written_bytes as u32,
            header_words: header_words as u32,
            ip_offset: layout.ip_offset as u32,
            transport_offset: layout.transport_offset as u32,
            payload_offset: layout.payload_offset as u32,
            frame_bytes_min: FRAME_BYTES_MIN as u32,
            transport: match layout.protocol {
                Protocol::Udp => TRANSPORT_UDP,
                Protocol::Tcp => TRANSPORT_TCP,
                Protocol::Raw(_) => TRANSPORT_NONE,
            },
            is_ipv6: u32::from(layout.is_ipv6),
            is_stamped: u32::from(workload.is_stamped),
            is_paced: u32::from(!workload.gaps.is_none()),
            pad: 0,
        };
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, crate::libbpf_log::keep)));
        let mut open = ObjectBuilder::default()
            .open_memory(OBJECT)
            .map_err(&fail)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == "plan" {
                map.set_max_entries(places).map_err(&fail)?;
            } else if name == "flows" {
                map.set_max_entries(workload.flows.count).map_err(&fail)?;
            } else if name.ends_with("rodata") {
                map.set_initial_value(plain_bytes(&options))
                    .map_err(&fail)?;
            }
        }
        let object = open.load().map_err(&fail)?;
        let map = |name: &str| {
            object
                .maps()
                .find(|map| map.name().to_string_lossy().ends_with(name))
                .ok_or_else(|| GenerateError::Kernel {
                    what: "load the generator",
                    reason: format!("map {name} is not in the object"),
                })
        };
        let flows = map("flows")?;
        for (flow, header) in (0_u32..).zip(packets.headers()) {
            let header = first_words(&header.bytes, packets.payload());
            flows
                .update(&flow.to_ne_bytes(), plain_bytes(&header), MapFlags::ANY)
                .map_err(&fail)?;
        }
        let mapped = |map: libbpf_rs::Map<'_>, bytes: usize| {
            Mapping::of_map(map.as_fd(), bytes.next_multiple_of(PAGE_BYTES), true).map_err(
                |errno| GenerateError::Kernel {
                    what: "map the generator's memory",
                    reason: errno.to_string(),
                },
            )
        };
        let shared = Arc::new(Shared {
            plan: mapped(map("plan")?, places as usize * PACKET_BYTES)?,
            state: mapped(map(".bss")?, size_of::<GenerateState>())?,
            places: u64::from(places),
            is_paced: options.is_paced != 0,
        });
        let mut frame = packets.headers()[0].bytes.clone();
        frame.extend(packets.payload());
        frame.resize(buffer_bytes, 0);
        Ok(Self {
            object,
            frame,
            shared,
        })
    }

    /// Descriptor of the program.
    pub fn descriptor(&self) -> Result<RawFd, GenerateError> {
        self.object
            .progs()
            .next()
            .map(|program| program.as_fd().as_raw_fd())
            .ok_or_else(|| GenerateError::Kernel {
                what: "load the generator",
                reason: "there is no program in the object".into(),
            })
    }
}

/// The header, and as much payload as fills its last word.
fn first_words(header: &[u8], payload: &[u8]) -> FlowHeader {
    let mut bytes = [0; 8 * HEADER_WORDS_MAX];
    let rest = (header.len().next_multiple_of(8) - header.len()).min(payload.len());
    bytes[..header.len()].copy_from_slice(header);
    bytes[header.len()..header.len() + rest].copy_from_slice(&payload[..rest]);
    let mut words = [0; HEADER_WORDS_MAX];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        *word = u64::from_ne_bytes(eight);
    }
    FlowHeader { words }
}

macro_rules! word {
    ($self:ident, $field:ident) => {
        $self
            .state
            .word(std::mem::offset_of!(GenerateState, $field))
    };
}

impl Shared {
    /// Places of the plan's ring.
    pub fn places(&self) -> u64 {
        self.places
    }

    /// Writes packet number `sequence`; told to the program by [`Shared::set_drawn`].
    pub fn plan(&self, sequence: u64, packet: &Packet) {
        let place = (sequence & (self.places - 1)) as usize * PACKET_BYTES;
        let mut rest = [0; 8];
        rest[..2].copy_from_slice(&(packet.flow as u16).to_ne_bytes());
        rest[2..4].copy_from_slice(&(packet.ip_bytes as u16).to_ne_bytes());
        rest[4..6].copy_from_slice(&packet.ip_checksum.to_be_bytes());
        rest[6..].copy_from_slice(&packet.transport_checksum.to_be_bytes());
        self.plan
            .word(place)
            .store(packet.due_ns, Ordering::Relaxed);
        self.plan
            .word(place + 8)
            .store(u64::from_ne_bytes(rest), Ordering::Relaxed);
    }

    /// Reads packet number `sequence` back after it was sent: when, if that was asked, and what.
    pub fn sent(&self, sequence: u64) -> (Option<u64>, Packet) {
        let place = (sequence & (self.places - 1)) as usize * PACKET_BYTES;
        let time_ns = self.plan.word(place).load(Ordering::Relaxed);
        let rest = self
            .plan
            .word(place + 8)
            .load(Ordering::Relaxed)
            .to_ne_bytes();
        let packet = Packet {
            due_ns: time_ns,
            flow: u32::from(u16::from_ne_bytes([rest[0], rest[1]])),
            ip_bytes: u32::from(u16::from_ne_bytes([rest[2], rest[3]])),
            ip_checksum: u16::from_be_bytes([rest[4], rest[5]]),
            transport_checksum: u16::from_be_bytes([rest[6], rest[7]]),
        };
        (self.is_paced.then_some(time_ns), packet)
    }

    /// Packets below this number may be sent.
    pub fn set_drawn(&self, drawn: u64) {
        word!(self, drawn).store(drawn, Ordering::Release);
    }

    /// Packets in all.
    pub fn set_end(&self, end: u64) {
        word!(self, end).store(end, Ordering::Release);
    }

    /// Packets in all.
    pub fn end(&self) -> u64 {
        word!(self, end).load(Ordering::Acquire)
    }

    /// No packet more.
    pub fn stop(&self) {
        word!(self, stop).store(1, Ordering::Release);
    }

    /// Whether it was told to stop.
    pub fn is_stopped(&self) -> bool {
        word!(self, stop).load(Ordering::Acquire) != 0
    }

    /// Packets that were sent, as far as the program has told.
    pub fn taken(&self) -> u64 {
        word!(self, taken).load(Ordering::Acquire)
    }

    /// Packets that were sent, exactly: for when the program does not run.
    pub fn next(&self) -> u64 {
        word!(self, next).load(Ordering::Acquire)
    }

    /// Runs that found nothing due, nothing drawn; packets whose frame could not be cut.
    pub fn idle(&self) -> (u64, u64, u64) {
        (
            word!(self, waited).load(Ordering::Acquire),
            word!(self, starved).load(Ordering::Acquire),
            word!(self, failed).load(Ordering::Acquire),
        )
    }

    /// Whether the times of packets are kept.
    pub fn is_paced(&self) -> bool {
        self.is_paced
    }
}
