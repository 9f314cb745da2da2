//! The program in the kernel, and the memory that it shares with us.

use super::trace_memory::TraceMemory;
use crate::generate::GenerateError;
use crate::generate::plan_ring::{PlanRing, Shape};
use crate::programs::compiled::{CompiledObject, compiled_object};
use crate::programs::{self, Loaded, Setting};
use parshall_core::abi::{
    FRAME_IMAGE_BYTES, FlowHeader, GenerateOptions, HEADER_WORDS_MAX, TRANSPORT_NONE,
    TRANSPORT_TCP, TRANSPORT_UDP, plain_bytes,
};
use parshall_core::workload::{FRAME_BYTES_MIN, Packets, Protocol, STAMP_BYTES, Workload};
use std::sync::Arc;

pub(crate) static OBJECT: CompiledObject = compiled_object!("generate");
const PROGRAM: &str = "generate";

/// The kernel passes frames on at the end of a batch, so paced packets leave alone, or in pairs
/// that are due at almost the same time. A third run would delay single packets more than it would
/// gain.
pub(crate) const BATCH_RUNS: u32 = 2;

/// The loaded program.
pub(crate) struct Program {
    object: Loaded,
    /// What every frame holds before the first packet is written into it.
    pub frame: Vec<u8>,
    pub ring: Arc<PlanRing>,
}

impl Program {
    /// Loads the program for a sender's share of a workload.
    pub fn load(
        workload: &Workload,
        packets: &Packets,
        interface_index: u32,
        shape: Shape,
        trace: Option<&TraceMemory>,
    ) -> Result<Self, GenerateError> {
        let layout = packets.layout();
        let header_words = layout.payload_offset.div_ceil(8);
        let stamp_bytes = if workload.is_stamped { STAMP_BYTES } else { 0 };
        // Whole words of a header may reach beyond the shortest frames.
        let written_bytes = (8 * header_words)
            .max(layout.payload_offset + stamp_bytes)
            .max(workload.largest_frame_bytes());
        let buffer_bytes = written_bytes + 1;
        let options = GenerateOptions {
            plan_mask: shape.capacity - 1,
            buffer_bytes: buffer_bytes as u32,
            written_bytes: written_bytes as u32,
            header_words: match workload.flows.count {
                1 => 0,
                _ => header_words as u32,
            },
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
            is_paced: u32::from(shape.is_paced),
            is_replay: u32::from(trace.is_some()),
            batch_runs: BATCH_RUNS,
            first_sequence: shape.sender as u32,
            sequence_step: shape.senders as u32,
        };
        let settings = [
            ("plan", Setting::Entries(shape.capacity as usize)),
            ("flows", Setting::Entries(workload.flows.count as usize)),
            (
                "trace",
                trace.map_or(Setting::Absent, |trace| Setting::Shared(trace.map())),
            ),
            (".rodata", Setting::Constants(plain_bytes(&options))),
        ];
        let object = programs::open(&OBJECT, &settings, |_| true)?.load()?;
        object.set("tx_devices", 0, &interface_index.to_ne_bytes())?;
        for (flow, header) in (0_u32..).zip(packets.headers()) {
            let header = first_words(&header.bytes, packets.payload());
            object.set("flows", flow, plain_bytes(&header))?;
        }
        let (plan, state) = (object.map("plan")?, object.map(".bss")?);
        let ring = Arc::new(PlanRing::of_maps(plan, state, shape)?);
        if let Some(trace) = trace {
            ring.set_replayed(trace.first(shape.sender));
        }
        let mut frame = packets.headers()[0].bytes.clone();
        frame.extend(packets.payload());
        frame.resize(FRAME_IMAGE_BYTES, 0);
        object.set("image", 0, &frame)?;
        frame.truncate(buffer_bytes);
        Ok(Self {
            object,
            frame,
            ring,
        })
    }

    /// The only program of the object.
    pub fn program(&self) -> Result<libbpf_rs::ProgramMut<'_>, GenerateError> {
        Ok(self.object.program(PROGRAM)?)
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
