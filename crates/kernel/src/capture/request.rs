//! The request for a ring, and that of a subscriber, as processes exchange them.

use parshall_core::abi::CAPTURE_SNAPLEN_MAX;
use serde::{Deserialize, Serialize};

use super::CaptureError;
use crate::ring::{LANE_SIZE_MAX_BYTES, Preference};

/// Where packets are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookChoice {
    /// tcx, which changes nothing about the interface; XDP where the kernel has no tcx.
    Auto,
    /// In the driver, or where that has no support, right behind it.
    Xdp,
    /// At the traffic control hooks.
    Tcx,
}

/// The directions that are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directions {
    /// What the interface receives.
    In,
    /// What the interface sends.
    Out,
    /// Both.
    Both,
}

/// The ring that is to be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingRequest {
    /// Its name; `None`: the interfaces', with a number when that is taken.
    pub name: Option<String>,
    /// Interfaces, at least one.
    pub interfaces: Vec<String>,
    /// Where packets are taken.
    pub hook: HookChoice,
    /// Which packets.
    pub directions: Directions,
    /// Data bytes for each CPU, a power of two.
    pub ring_bytes: u64,
    /// Whether the kernel waits for slow readers.
    pub slow_reader: bool,
    /// Whether the interfaces are made promiscuous.
    pub promiscuous: bool,
    /// The group whose members may join; `None`: root only.
    pub group: Option<String>,
    /// Whether received packets are dropped after the copy: for interfaces at a mirror port.
    pub discard: bool,
}

/// Smallest ring for each CPU: a few packets of the largest size.
pub const RING_MIN_BYTES: u64 = 1 << 20;

impl RingRequest {
    /// The preference in the ring's terms.
    pub fn preference(&self) -> Preference {
        if self.slow_reader {
            Preference::SlowReader
        } else {
            Preference::FastReader
        }
    }

    /// Checks the request before anything is created.
    pub fn check(&self) -> Result<(), CaptureError> {
        let wrong = |option, value: String, expected: &str| {
            Err(CaptureError::option(option, value, expected))
        };
        if self.interfaces.is_empty() {
            return wrong("interface", "(none)".into(), "name at least one interface");
        }
        for (index, name) in self.interfaces.iter().enumerate() {
            if self.interfaces[..index].contains(name) {
                return wrong("interface", name.clone(), "it is named twice; name it once");
            }
        }
        if self.interfaces.len() > 127 {
            let count = format!("{} interfaces", self.interfaces.len());
            return wrong("interface", count, "expected at most 127");
        }
        if !self.ring_bytes.is_power_of_two()
            || !(RING_MIN_BYTES..=LANE_SIZE_MAX_BYTES).contains(&self.ring_bytes)
        {
            return wrong(
                "buffer",
                self.ring_bytes.to_string(),
                &format!(
                    "expected a power of two from {RING_MIN_BYTES} to {LANE_SIZE_MAX_BYTES} bytes for each CPU"
                ),
            );
        }
        if self.hook == HookChoice::Xdp && self.directions != Directions::In {
            let direction = match self.directions {
                Directions::Out => "out",
                _ => "both",
            };
            return wrong(
                "direction",
                direction.into(),
                "XDP sees only packets that come in; give --direction in, or --hook tcx",
            );
        }
        if self.discard && self.hook != HookChoice::Xdp {
            return wrong(
                "discard",
                "without XDP".into(),
                "only XDP keeps packets from the stack; give --hook xdp, too",
            );
        }
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        Ok(())
    }
}

/// Whether a ring may have this name: its socket is a file of that name.
pub fn check_name(name: &str) -> Result<(), CaptureError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._+@:-".contains(&byte);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(fits) {
        let expected =
            "expected up to 64 letters, digits and . _ + @ : -, not beginning with a dot";
        return Err(CaptureError::option("name", name, expected));
    }
    Ok(())
}

/// What one subscriber wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// In libpcap's language; empty: everything.
    pub filter: String,
    /// Most bytes of a packet.
    pub snaplen: u32,
}

impl Subscription {
    /// Checks the request before it is sent.
    pub fn check(&self) -> Result<(), CaptureError> {
        if !(1..=CAPTURE_SNAPLEN_MAX).contains(&self.snaplen) {
            let expected = format!("expected 1 to {CAPTURE_SNAPLEN_MAX} bytes, or 0 for the most");
            return Err(CaptureError::option(
                "snaplen",
                self.snaplen.to_string(),
                expected,
            ));
        }
        Ok(())
    }
}
