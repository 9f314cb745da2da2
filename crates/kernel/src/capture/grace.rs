//! Waiting until no CPU runs a program any more that was replaced or detached.

use std::os::fd::{AsRawFd, OwnedFd};

use super::CaptureError;
use crate::bpf;

/// The kernel waits for all running programs before an update of a map of maps returns, so that whoever
/// replaced an inner map may read the old one. This is a map of maps for nothing but that.
#[derive(Debug)]
pub struct Grace {
    outer: OwnedFd,
    inner: OwnedFd,
}

impl Grace {
    /// Makes the maps.
    ///
    /// # Errors
    /// [`CaptureError::Load`].
    pub fn new() -> Result<Self, CaptureError> {
        let inner = create(libbpf_sys::BPF_MAP_TYPE_ARRAY, None)?;
        let outer = create(libbpf_sys::BPF_MAP_TYPE_ARRAY_OF_MAPS, Some(&inner))?;
        Ok(Self { outer, inner })
    }

    /// Returns when every program that was running at the call has ended.
    ///
    /// # Errors
    /// [`CaptureError::Load`].
    pub fn wait(&self) -> Result<(), CaptureError> {
        let key = 0u32;
        let value = self.inner.as_raw_fd();
        // SAFETY: key and value have the sizes the map was made with, and outlive the call.
        let status = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.outer.as_raw_fd(),
                std::ptr::from_ref(&key).cast(),
                std::ptr::from_ref(&value).cast(),
                0,
            )
        };
        if status < 0 {
            return Err(CaptureError::load(std::io::Error::last_os_error()));
        }
        Ok(())
    }
}

fn create(kind: u32, inner: Option<&OwnedFd>) -> Result<OwnedFd, CaptureError> {
    let options = libbpf_sys::bpf_map_create_opts {
        inner_map_fd: inner.map_or(0, |map| map.as_raw_fd() as u32),
        ..Default::default()
    };
    bpf::create_map(kind, c"parshall_grace", 4, 1, options).map_err(CaptureError::load)
}
