//! Merged filters as an eBPF program.
//!
//! | register | holds |
//! |---|---|
//! | r1 | the current value |
//! | r2 to r4 | scratch |
//! | r5 | the frame at an index, when the frame is read in place |
//! | r6 | the context |
//! | r7 | start of the frame's linear part |
//! | r8 | end of the linear part; in a copied frame, bytes of the VLAN tag that the packet lacks |
//! | r9 | the verdict |
//!
//! From one question to the next, a value stays in a register only if a single path leads to the
//! next one. It never stays on the stack. The verifier follows every path, so it finds the same
//! state wherever paths meet, and its work grows with the length of the program, not with the
//! number of its paths. For the same reason the answers are collected in the verdict itself: the
//! verifier does not track the contents of map memory.

mod copied;
mod direct;
mod program;
mod questions;
mod slots;
mod tag;
mod target;
mod values;

pub use program::{EmittedProgram, Map, MapAddress};
pub use target::{Hook, LinkLayer, TagsBeside, Target};

use std::collections::{BTreeMap, BTreeSet};

use super::decision::Decisions;
use super::ebpf::{Assembler, Label};
use super::merged::MergedFilter;
use super::untagged::{TAG_BYTES, TAG_END, TAG_START};
use super::value::ValueId;
use slots::Slots;

/// How a piece of program reads the bytes of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// In place: the frame is as it was on the wire.
    Plain,
    /// In place, but four bytes short: the kernel keeps the VLAN tag beside the packet.
    Tagged,
    /// From a copy of the frame's start; a helper loads bytes behind the copy. For frames whose
    /// linear part is too short.
    Copied,
}

/// Maximum offset in an instruction, in bytes.
const OFFSET_MAX: u64 = 0x7fff;

/// A program under construction.
struct Emitter<'a> {
    filter: &'a MergedFilter,
    decisions: &'a Decisions,
    target: Target,
    assembler: Assembler,
    slots: Slots,
    /// Start of the code for frames that cannot be read in place.
    copied: Label,
    /// Where loads end, in bytes: from the frame's start (`None`), or from an index.
    ends: BTreeMap<Option<ValueId>, BTreeSet<u64>>,
}
