//! Many packet filters as one program.
//!
//! The filters of all subscribers of a capture, as classic BPF programs, become one decision
//! diagram ([`MergedFilter`]) and then one eBPF program ([`emit`]), which finds the subscribers
//! whose filters accept a frame. A question that filters share is asked once. Each filter has the
//! verdict of libpcap's interpreter for the frame on the wire. When a filter cannot be merged, the
//! error has the number of its subscriber. `docs/filters.md` describes the method.
//!
//! ```
//! use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram};
//! use parshall_core::filter::{MergedFilter, Subscription};
//!
//! // "ip": ldh [12]; jeq #0x800; ret.
//! let instruction = |code, jt, jf, k| ClassicInstruction { code, jt, jf, k };
//! let program = ClassicProgram::new(&[
//!     instruction(0x28, 0, 0, 12),
//!     instruction(0x15, 0, 1, 0x800),
//!     instruction(0x06, 0, 0, 262_144),
//!     instruction(0x06, 0, 0, 0),
//! ])?;
//! let merged = MergedFilter::new(&[Subscription { subscriber: 3, program, snaplen_bytes: 96 }])?;
//! let mut frame = [0; 34];
//! frame[12] = 8;
//! assert_eq!(merged.subscribers(&frame), 0b1000);
//! assert_eq!(merged.subscribers(&frame[..13]), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod build;
pub mod classic;
mod condition;
mod decision;
pub mod ebpf;
pub mod emit;
mod error;
mod merged;
mod search;
mod simplify;
mod stage;
#[cfg(test)]
mod tests;
mod untagged;
mod value;

pub use error::FilterError;
pub use merged::{MergedFilter, Subscription};
