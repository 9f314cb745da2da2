//! The XDP program that redirects packets to an `AF_XDP` socket, behind a filter if there is one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use libbpf_sys as sys;
use parshall_core::abi::{CAPTURE_SNAPLEN_MAX, CaptureVerdict};
use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram, Origin};
use parshall_core::filter::emit::{Hook, LinkLayer, TagsBeside, Target};
use parshall_core::filter::{MergedFilter, Subscription};

use super::error::BackendError;
use crate::bpf;
use crate::filter::{self, Maps};
use crate::net::interface::Interface;
use crate::net::socket::{SocketError, failed};
use crate::objects::{CompiledObject, compiled_object};

static OBJECT: CompiledObject = compiled_object!("af_xdp");

/// The one queue that is captured.
pub(super) const QUEUE: u32 = 0;

/// The attached programs.
pub(super) struct Redirect {
    link: Option<OwnedFd>,
    object: Object,
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
        let link = bpf::create_link(
            first.as_fd(),
            interface.index as i32,
            sys::BPF_XDP,
            sys::bpf_link_create_opts::default(),
        )
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
            .maps()
            .find(|map| map.name() == "redirected")
            .and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?)
            .and_then(|value| Some(u64::from_ne_bytes(value.try_into().ok()?)))
            .ok_or_else(|| missing("redirected"))
            .map_err(failed("reading the counter"))
    }
}

/// Loads the program that redirects to a socket.
fn load(socket: impl AsFd) -> Result<(Object, OwnedFd), SocketError> {
    let mut object = crate::libbpf_log::open(&OBJECT)
        .and_then(libbpf_rs::OpenObject::load)
        .map_err(io::Error::other)
        .map_err(failed("loading the XDP program"))?;
    let descriptor = socket.as_fd().as_raw_fd().to_ne_bytes();
    object
        .maps_mut()
        .find(|map| map.name() == "sockets")
        .ok_or_else(|| missing("sockets"))
        .and_then(|map| {
            map.update(&QUEUE.to_ne_bytes(), &descriptor, MapFlags::ANY)
                .map_err(io::Error::other)
        })
        .map_err(failed("giving the socket to the XDP program"))?;
    let program = object
        .progs_mut()
        .next()
        .ok_or_else(|| missing("program"))
        .and_then(|program| program.as_fd().try_clone_to_owned())
        .map_err(failed("finding the XDP program"))?;
    Ok((object, program))
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
        bpf::create_map(kind, name, value_bytes, 1, Default::default()).map_err(io::Error::other)
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

fn missing(name: &str) -> io::Error {
    io::Error::other(format!("'{name}' is not in the object; please report this"))
}
