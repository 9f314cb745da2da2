//! Waiting until no CPU runs a program any more that was replaced or detached.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::capture::CaptureError;
use crate::programs::calls::create_map;

/// The kernel waits for all running programs before an update of a map of maps returns, so that a process
/// that replaced an inner map may read the old one. This is a map of maps for nothing but that.
#[derive(Debug)]
pub struct Grace {
    outer: MapHandle,
    inner: MapHandle,
}

impl Grace {
    /// Makes the maps.
    pub fn new() -> Result<Self, CaptureError> {
        let inner = create(MapType::Array, None)?;
        let outer = create(MapType::ArrayOfMaps, Some(&inner))?;
        Ok(Self { outer, inner })
    }

    /// Returns when every program that was running at the call has ended.
    pub fn wait(&self) -> Result<(), CaptureError> {
        let inner = self.inner.as_fd().as_raw_fd();
        self.outer
            .update(&0_u32.to_ne_bytes(), &inner.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::load)
    }
}

fn create(kind: MapType, inner: Option<&MapHandle>) -> Result<MapHandle, CaptureError> {
    let options = libbpf_sys::bpf_map_create_opts {
        inner_map_fd: inner.map_or(0, |map| map.as_fd().as_raw_fd() as u32),
        ..Default::default()
    };
    create_map(kind, "parshall_grace", 4, 1, options).map_err(CaptureError::load)
}
