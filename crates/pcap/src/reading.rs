//! One subscription of a capture, and where it is read.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use libc::c_int;
use parshall_core::filter::classic::ClassicInstruction;
use parshall_kernel::capture::CaptureError;
use parshall_kernel::capture::collector::Collector;
use parshall_kernel::capture::dispatcher::CompiledFilter;
use parshall_kernel::capture::kept_ring::HookCount;
use parshall_kernel::capture::request::Subscription;
use parshall_kernel::net::interface::Interface;

use crate::injected::Injected;
use crate::ready::Watched;
use crate::ring::Place;

/// `BPF_RET | BPF_K`.
const RETURN_CONSTANT: u16 = 0x06;
/// `BPF_RET`.
const RETURN: u16 = 0x06;
const CLASS: u16 = 0x07;

/// One subscription, and where it is read.
pub struct Reading {
    pub collector: Collector,
    pub watched: Watched,
    /// Packets of the interface that were taken from the ring.
    pub read: u64,
    /// Of these, frames that the capture sent itself.
    pub own: u64,
}

/// Packets of the interface that the filter accepted, and those of them that were lost.
#[derive(Clone, Copy, Default)]
pub struct Counted {
    pub received: u64,
    pub dropped: u64,
}

impl Reading {
    /// Subscribes to the packets of an interface that a program accepts. `text` describes the program to others.
    ///
    /// # Errors
    /// When the kernel cannot run the program merged with the others, or the keeper has ended.
    pub fn subscribe(
        place: &mut Place,
        interface: &Interface,
        snaplen: c_int,
        program: &[ClassicInstruction],
        text: &str,
        injected: &Arc<Injected>,
    ) -> Result<Self, CaptureError> {
        // A program may return fewer bytes than the capture's snapshot length.
        let returned = program
            .iter()
            .filter(|one| one.code & CLASS == RETURN)
            .map(|one| match one.code {
                RETURN_CONSTANT => one.k,
                _ => u32::MAX,
            })
            .max();
        let snaplen = (snaplen as u32).min(returned.unwrap_or(u32::MAX)).max(1);
        let mut filter = CompiledFilter::default();
        for one in &place.client.ring.interfaces {
            // Packets of other interfaces are not read, and a program may not fit their link type.
            let program = match one.link_type == interface.link_type {
                true => program,
                false => &[return_constant(0)],
            };
            filter.add(one.link_type, program)?;
        }
        let subscription = Subscription {
            filter: text.to_owned(),
            snaplen,
        };
        let client = &mut place.client;
        let (bits, starts) = client.subscribe(vec![(subscription, filter)])?;
        let mask = bits.iter().fold(0, |mask, bit| mask | 1 << bit);
        let register = client.register.as_ref();
        let register = register.map(|(readers, slot)| (readers.as_slice(), *slot));
        Ok(Self {
            collector: Collector::new(&client.lanes, &starts, register, mask, snaplen),
            watched: Watched {
                lanes: client.lanes.clone(),
                starts,
                mask,
                interface_number: place.interface_number,
                keeper: client.as_fd().as_raw_fd(),
                injected: Arc::clone(injected),
            },
            read: 0,
            own: 0,
        })
    }

    /// Packets of this subscription, from what the kernel has counted for it.
    pub fn count(&self, place: &Place, counts: &[Vec<HookCount>]) -> Counted {
        let hooks = place.client.ring.hooks.iter();
        let (mut matched, mut refused) = (0, 0);
        for (hook, count) in hooks.zip(counts.first().into_iter().flatten()) {
            if hook.interface_number == place.interface_number {
                matched += count.matched;
                refused += count.refused;
            }
        }
        // Unread packets are in the ring or were overwritten: at most `gaps` were overwritten.
        let unread = matched.saturating_sub(refused + self.read);
        let overwritten = unread.min(self.collector.lanes().sequence_gaps());
        Counted {
            received: matched.saturating_sub(self.own),
            dropped: refused + overwritten,
        }
    }
}

/// The instruction that returns so many bytes; 0 rejects the packet.
pub const fn return_constant(bytes: u32) -> ClassicInstruction {
    ClassicInstruction {
        code: RETURN_CONSTANT,
        jt: 0,
        jf: 0,
        k: bytes,
    }
}
