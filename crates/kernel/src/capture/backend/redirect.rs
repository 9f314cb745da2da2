//! The XDP program that redirects packets to an `AF_XDP` socket, behind a filter if there is one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use parshall_core::abi::{CAPTURE_SNAPLEN_MAX, CaptureVerdict};
use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram, Origin};
use parshall_core::filter::emit::{Hook, LinkLayer, TagsBeside, Target};
use parshall_core::filter::{MergedFilter, Subscription};

use super::error::BackendError;
use crate::filter::{self, Maps};
use crate::net::interface::Interface;
use crate::net::socket::{SocketError, failed};
use crate::programs::compiled::{CompiledObject, compiled_object};
use crate::programs::{self, InterfaceHook, Loaded, ProgramError, calls};

pub(crate) static OBJECT: CompiledObject = compiled_object!("af_xdp");
const PROGRAM: &str = "redirect";

/// The one queue that is captured.
pub(super) const QUEUE: u32 = 0;

/// The attached programs.
pub(super) struct Redirect {
    link: Option<OwnedFd>,
    object: Loaded,
    /// The filter program, and the map of its tail call: the kernel empties the map when it is closed.
    _filter: Option<(OwnedFd, MapHandle)>,
}

impl Redirect {
    /// Loads and attaches the programs. From then on packets that the filter accepts go to the
    /// socket only, and the others to the stack.
    pub(super) fn attach(
        interface: &Interface,
        socket: impl AsFd,
        filter: Option<&[ClassicInstruction]>,
    ) -> Result<Self, BackendError> {
        let name = &interface.name;
        let (object, program) = load(socket).map_err(|error| BackendError::socket(name, error))?;
        let filter = filter
            .map(|instructions| filter_before(&program, instructions, interface.index))
            .transpose()
            .map_err(failed("making an XDP program of the filter"))
            .map_err(|error| BackendError::socket(name, error))?;
        let first = filter.as_ref().map_or(&program, |(filter, _)| filter);
        let link = InterfaceHook::Xdp
            .attach(first.as_fd(), interface.index)
            .map_err(|error| BackendError::attaching(name, interface.mtu_bytes, error))?;
        Ok(Self {
            link: Some(link),
            object,
            _filter: filter,
        })
    }

    /// Lets all packets go to the stack again.
    pub(super) fn detach(&mut self) {
        self.link = None;
    }

    /// Packets that were redirected to the socket, dropped there or not.
    pub(super) fn redirected(&self) -> Result<u64, SocketError> {
        self.object
            .first("redirected")
            .ok_or_else(|| io::Error::other("it cannot be read"))
            .map_err(failed("reading the counter"))
    }
}

/// Loads the program that redirects to a socket.
fn load(socket: impl AsFd) -> Result<(Loaded, OwnedFd), SocketError> {
    let load = || -> Result<_, ProgramError> {
        let object = programs::open(&OBJECT, &[], |_| true)?.load()?;
        let descriptor = socket.as_fd().as_raw_fd().to_ne_bytes();
        object.set("sockets", QUEUE, &descriptor)?;
        let program = object.descriptor_of_program(PROGRAM)?;
        Ok((object, program))
    };
    load()
        .map_err(io::Error::other)
        .map_err(failed("loading the XDP program"))
}

/// Translates a classic filter into a program that tail-calls `program` for accepted packets.
fn filter_before(
    program: &OwnedFd,
    instructions: &[ClassicInstruction],
    interface_index: u32,
) -> io::Result<(OwnedFd, MapHandle)> {
    let subscription = Subscription {
        subscriber: 0,
        program: ClassicProgram::new(instructions).map_err(io::Error::other)?,
        snaplen_bytes: CAPTURE_SNAPLEN_MAX,
    };
    let emitted = MergedFilter::new(&[subscription])
        .and_then(|merged| {
            merged.emit(Target {
                hook: Hook::Xdp { frags: false },
                link_layer: LinkLayer::Ethernet,
                discard: false,
                origin: Origin {
                    is_outbound: false,
                    interface_index,
                },
                tags_beside: TagsBeside::ALL,
            })
        })
        .map_err(io::Error::other)?;
    let create = |kind, name, value_bytes| {
        calls::create_map(kind, name, value_bytes, 1, Default::default()).map_err(io::Error::other)
    };
    let verdict = create(MapType::PercpuArray, "verdict", size_of::<CaptureVerdict>())?;
    let jumps = create(MapType::ProgArray, "jumps", size_of::<i32>())?;
    let unfiltered = create(MapType::Array, "unfiltered", size_of::<u64>())?;
    let maps = Maps {
        verdict: verdict.as_fd(),
        jumps: jumps.as_fd(),
        unfiltered: unfiltered.as_fd(),
    };
    let filter = filter::load(&emitted, maps).map_err(io::Error::other)?;
    let descriptor = program.as_raw_fd().to_ne_bytes();
    jumps
        .update(&0u32.to_ne_bytes(), &descriptor, MapFlags::ANY)
        .map_err(io::Error::other)?;
    Ok((filter, jumps))
}
