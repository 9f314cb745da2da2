//! What a capture subscribes to.

use libc::c_int;
use parshall_core::filter::classic::{ClassicInstruction, FrameView};
use parshall_kernel::capture::CaptureError;
use parshall_kernel::capture::dispatcher::CompiledFilter;
use parshall_kernel::capture::keeper::message::RingDescription;
use parshall_kernel::capture::request::Subscription;
use parshall_kernel::net::interface::Interface;

/// `BPF_RET | BPF_K`.
const RETURN_CONSTANT: u16 = 0x06;
/// `BPF_RET`.
const RETURN: u16 = 0x06;
const CLASS: u16 = 0x07;

/// A program that decides which packets a capture gets.
#[derive(Clone, Copy)]
pub struct Wanted<'program> {
    pub instructions: &'program [ClassicInstruction],
    /// How it sees a frame with a VLAN tag.
    pub view: FrameView,
    /// Describes it to people.
    pub text: &'program str,
}

/// Every packet.
pub fn everything(program: &[ClassicInstruction; 1]) -> Wanted<'_> {
    Wanted {
        instructions: program,
        view: FrameView::Untagged,
        text: "",
    }
}

/// A subscription to the packets of an interface that a program accepts.
///
/// # Errors
/// When the program cannot be merged with others.
pub fn subscription(
    ring: &RingDescription,
    interface: &Interface,
    snaplen: c_int,
    program: Wanted<'_>,
) -> Result<(Subscription, CompiledFilter), CaptureError> {
    // A program may return fewer bytes than the capture's snapshot length.
    let returned = program
        .instructions
        .iter()
        .filter(|one| one.code & CLASS == RETURN)
        .map(|one| match one.code {
            RETURN_CONSTANT => one.k,
            _ => u32::MAX,
        })
        .max();
    let snaplen = (snaplen as u32).min(returned.unwrap_or(u32::MAX)).max(1);
    let mut filter = CompiledFilter::of_view(program.view);
    for one in &ring.interfaces {
        // Packets of other interfaces are not read, and a program may not fit their link type.
        let instructions = match one.link_type == interface.link_type {
            true => program.instructions,
            false => &[return_constant(0)],
        };
        filter.add(one.link_type, instructions)?;
    }
    let subscription = Subscription {
        filter: program.text.to_owned(),
        snaplen,
    };
    Ok((subscription, filter))
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
