//! The XDP program that hands packets to an `AF_XDP` socket, behind a filter if there is one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use libbpf_sys as sys;
use parshall_core::abi::{CAPTURE_SNAPLEN_MAX, CaptureVerdict};
use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram};
use parshall_core::filter::emit::{Hook, LinkLayer, Target};
use parshall_core::filter::{MergedFilter, Subscription};

use super::Settings;
use super::error::BackendError;
use crate::capture::interface::Interface;
use crate::filter::{self, Maps};
use crate::objects::{CompiledObject, compiled_object};

static OBJECT: CompiledObject = compiled_object!("af_xdp");

/// The one queue that is captured.
pub(super) const QUEUE: u32 = 0;

/// The attached programs.
pub(super) struct Redirect {
    link: Option<OwnedFd>,
    object: Object,
    /// The filter in front, and the map through which it goes on to the other program: the kernel
    /// empties that map when nobody holds it any more.
    _filter: Option<(OwnedFd, MapHandle)>,
}

impl Redirect {
    /// Loads the programs and attaches them: from here on the packets that the filter takes go to the socket, and
    /// no more to the stack. The others go their way.
    pub(super) fn attach(
        index: i32,
        socket: BorrowedFd<'_>,
        settings: &Settings<'_>,
    ) -> Result<Self, BackendError> {
        let failed =
            |action| move |source| BackendError::socket(settings.interface, action, source);
        let mut object = crate::libbpf_log::open(&OBJECT)
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(io::Error::other)
            .map_err(failed("loading the XDP program"))?;
        let descriptor = socket.as_raw_fd().to_ne_bytes();
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
            .find(|program| program.name() == "hand_over")
            .ok_or_else(|| missing("hand_over"))
            .and_then(|program| program.as_fd().try_clone_to_owned())
            .map_err(failed("finding the XDP program"))?;
        let filter = match settings.filter {
            Some(instructions) => Some(
                filter_before(&program, instructions)
                    .map_err(failed("making an XDP program of the filter"))?,
            ),
            None => None,
        };
        let first = filter.as_ref().map_or(&program, |(filter, _)| filter);
        // SAFETY: a plain system call; without options.
        let raw =
            unsafe { sys::bpf_link_create(first.as_raw_fd(), index, sys::BPF_XDP, ptr::null()) };
        if raw < 0 {
            let mtu_bytes = Interface::find(settings.interface).map(|found| found.mtu_bytes);
            return Err(BackendError::attaching(
                settings.interface,
                mtu_bytes.ok(),
                io::Error::from_raw_os_error(-raw),
            ));
        }
        Ok(Self {
            // SAFETY: the kernel has just opened the descriptor for us; nobody else holds it.
            link: Some(unsafe { OwnedFd::from_raw_fd(raw) }),
            object,
            _filter: filter,
        })
    }

    /// Lets all packets go their way again.
    pub(super) fn detach(&mut self) {
        self.link = None;
    }

    /// Packets that were handed to the socket, whether it had room or not.
    pub(super) fn handed(&self) -> io::Result<u64> {
        self.object
            .maps()
            .find(|map| map.name() == "handed")
            .and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).transpose())
            .ok_or_else(|| missing("handed"))?
            .map_err(io::Error::other)?
            .try_into()
            .map(u64::from_ne_bytes)
            .map_err(|_| missing("handed"))
    }
}

/// Makes a program of a classic filter that goes on to `program` with what it takes.
fn filter_before(
    program: &OwnedFd,
    instructions: &[ClassicInstruction],
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
            })
        })
        .map_err(io::Error::other)?;
    let create = |kind, name: &str, value_bytes| {
        // SAFETY: the options are plain data for which zeros are valid.
        let mut options: sys::bpf_map_create_opts = unsafe { std::mem::zeroed() };
        options.sz = size_of::<sys::bpf_map_create_opts>() as _;
        MapHandle::create(kind, Some(name), 4, value_bytes as u32, 1, &options)
            .map_err(io::Error::other)
    };
    let verdict = create(MapType::PercpuArray, "verdict", size_of::<CaptureVerdict>())?;
    let jumps = create(MapType::ProgArray, "jumps", size_of::<i32>())?;
    let maps = Maps {
        verdict: verdict.as_fd(),
        jumps: jumps.as_fd(),
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
