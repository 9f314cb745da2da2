//! The program of an edge, loaded and attached.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;

use parshall_core::abi::{EdgeAccount, EdgeOptions, EdgeTime, bytes_of_words, plain_bytes};
use parshall_core::filter::emit::LinkLayer;
use serde::Serialize;

use super::{EdgeError, EdgeHook, EdgeRequest};
use crate::capture::attachment::Attachment;
use crate::grace::Grace;
use crate::net::interface::{Interface, enter_namespace};
use crate::net::mapping::Mapping;
use crate::programs::compiled::{CompiledObject, compiled_object};
use crate::programs::{self, Loaded, ProgramError, Setting};

pub(crate) static OBJECT: CompiledObject = compiled_object!("edge");

/// Sequence numbers at most: 1 GiB of times.
const CAPACITY_MAX: u32 = 1 << 26;
const ETHERNET_BYTES: u32 = 14;

/// What passed an edge: packets = recorded + duplicates + beyond + other, where times are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EdgeAccounts {
    /// Packets in all.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Stamped packets with a time.
    pub recorded: u64,
    /// Stamped packets whose number was recorded before.
    pub duplicates: u64,
    /// Stamped packets with a number of at least the capacity.
    pub beyond: u64,
    /// Packets without a stamp.
    pub other: u64,
    /// Packets that passed within `timed_ns`: all but the first and the last ones.
    pub timed: u64,
    /// How long they took to pass, ns.
    pub timed_ns: u64,
    /// Runs of the program while the kernel's run-time statistics were on.
    pub runs: u64,
    /// How long they took, ns.
    pub run_ns: u64,
}

/// An edge that records.
pub(super) struct Edge {
    object: Loaded,
    times: Mapping,
    request: EdgeRequest,
    attachment: Option<Attachment>,
}

impl Edge {
    /// Loads the program and attaches it, in a thread of its own, since a namespace is a thread's.
    pub fn start(request: &EdgeRequest) -> Result<Self, EdgeError> {
        if request.capacity > CAPACITY_MAX {
            return Err(EdgeError::Capacity {
                interface: request.interface.clone(),
                capacity: request.capacity,
                maximum: CAPACITY_MAX,
            });
        }
        let started = std::thread::scope(|scope| scope.spawn(|| Self::attach(request)).join());
        started.unwrap_or_else(|_| Err(load_error(request, "its thread died")))
    }

    fn attach(request: &EdgeRequest) -> Result<Self, EdgeError> {
        if let Some(path) = &request.namespace {
            enter_namespace(path).map_err(|source| EdgeError::Namespace {
                path: path.display().to_string(),
                source,
            })?;
        }
        let interface = Interface::find(&request.interface)?;
        let (kind, direction) = request.hook.place();
        let is_xdp = kind.is_xdp();
        let entries = request.capacity.max(1);
        let options = EdgeOptions {
            capacity: request.capacity,
            port: u32::from(request.port),
            is_recording: u32::from(request.capacity > 0),
            is_discarding: u32::from(request.is_discarding && request.hook == EdgeHook::Xdp),
            link_bytes: match interface.link_layer() {
                LinkLayer::Ethernet => ETHERNET_BYTES,
                LinkLayer::RawIp => 0,
            },
            pad: 0,
        };
        let settings = [
            ("times", Setting::Entries(entries as usize)),
            (".rodata.options", Setting::Constants(plain_bytes(&options))),
        ];
        let name = if is_xdp { "edge_xdp" } else { "edge_tcx" };
        let load = || -> Result<_, ProgramError> {
            let object = programs::open(&OBJECT, &settings, |one| one == name)?.load()?;
            let bytes = entries as usize * size_of::<EdgeTime>();
            let times = object.mapping("times", bytes, false)?;
            let program = object.descriptor_of_program(name)?;
            Ok((object, times, program))
        };
        let (object, times, program) =
            load().map_err(|error| load_error(request, &error.to_string()))?;
        let attachment = Attachment::new(&interface, kind, direction, program.as_fd())?;
        Ok(Self {
            object,
            times,
            request: request.clone(),
            attachment: Some(attachment),
        })
    }

    /// What has passed so far.
    pub fn accounts(&self) -> EdgeAccounts {
        let mut sum = EdgeAccounts::default();
        let (mut first_ns, mut last_ns) = (u64::MAX, 0);
        for counts in self.object.first_of_each_cpu::<EdgeAccount>("account") {
            sum.packets += counts.packets;
            sum.bytes += counts.bytes;
            sum.recorded += counts.recorded;
            sum.duplicates += counts.duplicates;
            sum.beyond += counts.beyond;
            sum.other += counts.other;
            sum.timed += counts.timed;
            if counts.timed > 0 {
                first_ns = first_ns.min(counts.first_timed_ns);
                last_ns = last_ns.max(counts.last_timed_ns);
            }
        }
        sum.timed_ns = last_ns.saturating_sub(first_ns);
        for program in self.object.statistics() {
            sum.runs += program.runs;
            sum.run_ns += program.run_ns;
        }
        sum
    }

    /// Detaches the program, and returns the account and writes the times of all packets that it has seen.
    pub fn finish(mut self) -> Result<EdgeAccounts, EdgeError> {
        drop(self.attachment.take());
        // A program that runs at this moment still finishes.
        Grace::new()?.wait()?;
        let accounts = self.accounts();
        let Self { times, request, .. } = self;
        if let Some(path) = &request.path {
            write_words(
                path,
                &times,
                request.capacity as usize * size_of::<EdgeTime>() / 8,
            )
            .map_err(|source| EdgeError::Write {
                path: path.display().to_string(),
                source,
            })?;
        }
        Ok(accounts)
    }
}

/// Writes mapped memory, in pieces.
fn write_words(path: &Path, from: &Mapping, words: usize) -> std::io::Result<()> {
    const PIECE_WORDS: usize = 1 << 16;
    let mut file = File::create(path)?;
    let mut piece = Vec::with_capacity(PIECE_WORDS);
    for first in (0..words).step_by(PIECE_WORDS) {
        piece.clear();
        from.append_words(8 * first, PIECE_WORDS.min(words - first), &mut piece);
        file.write_all(bytes_of_words(&piece))?;
    }
    Ok(())
}

fn load_error(request: &EdgeRequest, reason: &str) -> EdgeError {
    EdgeError::Load {
        interface: request.interface.clone(),
        reason: reason.into(),
    }
}
