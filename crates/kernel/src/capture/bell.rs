//! What wakes a subscriber at each packet: a ring buffer of the kernel, whose words have no meaning. When a word comes to
//! an empty buffer, the kernel wakes the process that polls it; so a subscriber that is awake costs no wake-up.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use parshall_core::abi::CAPTURE_SUBSCRIBERS_MAX;

use crate::net::mapping::Mapping;
use crate::programs::calls::create_map;

/// The subscriber's end.
#[derive(Debug)]
pub struct Bell {
    descriptor: OwnedFd,
    /// Where the reader is, and where the kernel is.
    read: Mapping,
    written: Mapping,
}

impl Bell {
    /// Over a descriptor from the keeper.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn new(descriptor: OwnedFd) -> rustix::io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        Ok(Self {
            read: Mapping::of(&descriptor, page_bytes, 0, true)?,
            written: Mapping::of(&descriptor, page_bytes, page_bytes as u64, false)?,
            descriptor,
        })
    }

    /// Empties the buffer: it is readable again with the next packet. The caller looks for packets once more before it
    /// waits, as one may have come in between.
    pub fn rearm(&self) {
        let written = self.written.word(0).load(Ordering::Acquire);
        self.read.word(0).store(written, Ordering::SeqCst);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// The kernel's ends.
pub(super) struct Bells {
    /// By subscriber, once the first one asked; whose it was last.
    bells: Vec<(MapHandle, Option<u32>)>,
}

impl Bells {
    /// None yet.
    pub const fn new() -> Self {
        Self { bells: Vec::new() }
    }

    /// The bell of a subscriber, for a user. Another user cannot have kept it.
    pub fn give(&mut self, table: &MapHandle, bit: usize, user: u32) -> libbpf_rs::Result<OwnedFd> {
        if self.bells.is_empty() {
            // All at once, because the kernel waits for a grace period.
            let bells = (0..CAPTURE_SUBSCRIBERS_MAX).map(|_| Ok((make()?, None)));
            let bells: Vec<_> = bells.collect::<libbpf_rs::Result<_>>()?;
            let keys: Vec<u8> = (0..bells.len() as u32).flat_map(u32::to_ne_bytes).collect();
            let values = bells.iter().map(|(bell, _)| bell.as_fd().as_raw_fd());
            let values: Vec<u8> = values.flat_map(i32::to_ne_bytes).collect();
            let count = bells.len() as u32;
            table.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)?;
            self.bells = bells;
        }
        let (bell, owner) = &mut self.bells[bit];
        if owner.is_some_and(|owner| owner != user) {
            *bell = make()?;
            let key = (bit as u32).to_ne_bytes();
            let descriptor = bell.as_fd().as_raw_fd().to_ne_bytes();
            table.update(&key, &descriptor, MapFlags::ANY)?;
        }
        *owner = Some(user);
        Ok(bell.as_fd().try_clone_to_owned()?)
    }
}

fn make() -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let bytes = rustix::param::page_size() as u32;
    MapHandle::create(
        MapType::RingBuf,
        Some("parshall_bell"),
        0,
        0,
        bytes,
        &options,
    )
}

/// The table of a ring, without bells.
pub(super) fn make_table() -> libbpf_rs::Result<MapHandle> {
    let inner = make()?;
    let options = libbpf_sys::bpf_map_create_opts {
        inner_map_fd: inner.as_fd().as_raw_fd() as u32,
        ..Default::default()
    };
    create_map(
        MapType::ArrayOfMaps,
        "parshall_bells",
        4,
        CAPTURE_SUBSCRIBERS_MAX,
        options,
    )
}
