//! A trace that is replayed, in memory that the kernel's program reads: one for all senders.

use super::frame_limit::FRAME_BYTES_MAX;
use crate::free_memory::available_bytes;
use crate::generate::GenerateError;
use crate::generate::error::failed;
use crate::net::mapping::{Mapping, mappable_array};
use libbpf_rs::MapHandle;
use parshall_core::abi::{TRACE_BLOCK_BYTES, TRACE_SLACK_BYTES};
use parshall_core::workload::{FRAME_BYTES_MIN, Replay};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

/// Before each frame: the position of the frame that its sender sends next.
const HEAD_BYTES: usize = size_of::<u64>();
const WHOLE_BLOCK_BYTES: usize = TRACE_BLOCK_BYTES + TRACE_SLACK_BYTES;

/// The frames, each with the position of the one that its sender sends next.
#[derive(Debug)]
pub(crate) struct TraceMemory {
    map: MapHandle,
    first: Vec<u64>,
}

impl TraceMemory {
    /// Copies the frames; of n senders, number k sends the frames k, k + n and so on, and begins anew behind the last.
    pub fn of(replay: &Replay, senders: usize) -> Result<Self, GenerateError> {
        let frames = replay.frames();
        if let Some(number) = (0..frames).find(|k| replay.frame(*k as u64).len() > FRAME_BYTES_MAX)
        {
            let bytes = replay.frame(number as u64).len();
            let found = format!("with frame {} of {bytes} bytes", number + 1);
            let expected = format!(
                "frames of at most {FRAME_BYTES_MAX} bytes, since each lies in one page; --backend af-packet and \
                 af-xdp send longer ones"
            );
            return Err(GenerateError::option("--replay", found, expected));
        }
        let (positions, blocks) = lay_out((0..frames).map(|k| replay.frame(k as u64).len()));
        let bytes = blocks * WHOLE_BLOCK_BYTES;
        check_memory(frames, bytes as u64, available_bytes().unwrap_or(u64::MAX))?;
        let map = mappable_array("trace", WHOLE_BLOCK_BYTES, blocks).map_err(|error| {
            GenerateError::Kernel {
                what: "give memory for the trace",
                reason: format!(
                    "{error}; {} MiB, which --backend af-packet does not need",
                    bytes >> 20
                ),
            }
        })?;
        let memory = Mapping::of(map.as_fd(), bytes, 0, true)
            .map_err(|errno| failed("map the trace's memory")(errno.into()))?;
        for (number, position) in positions.iter().enumerate() {
            let next = positions[(number + senders) % frames];
            let at = place(*position);
            memory.word(at).store(next, Ordering::Relaxed);
            // What pads the shortest frames is 0 from the start.
            for (word, bytes) in replay.frame(number as u64).chunks(8).enumerate() {
                let mut eight = [0; 8];
                eight[..bytes.len()].copy_from_slice(bytes);
                memory
                    .word(at + HEAD_BYTES + 8 * word)
                    .store(u64::from_ne_bytes(eight), Ordering::Relaxed);
            }
        }
        let first = (0..senders).map(|k| positions[k % frames]).collect();
        Ok(Self { map, first })
    }

    /// The map in which it lies.
    pub fn map(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Where the first frame of a sender lies.
    pub fn first(&self, sender: u64) -> u64 {
        self.first[sender as usize]
    }
}

/// Refuses a trace that is larger than the free memory: the kernel would take it from other processes.
fn check_memory(frames: usize, requested_bytes: u64, free_bytes: u64) -> Result<(), GenerateError> {
    if requested_bytes <= free_bytes {
        return Ok(());
    }
    let found = format!(
        "of {frames} frames: live frames need {} MiB of memory for them, and {} MiB are free",
        requested_bytes >> 20,
        free_bytes >> 20
    );
    let expected = "a shorter file, or --backend af-packet, which sends from the file in memory";
    Err(GenerateError::option("--replay", found, expected))
}

/// Where in the map a position is.
fn place(position: u64) -> usize {
    let position = position as usize;
    position / TRACE_BLOCK_BYTES * WHOLE_BLOCK_BYTES + position % TRACE_BLOCK_BYTES
}

/// The positions of frames of these lengths, and the blocks that hold them.
fn lay_out(frames_bytes: impl Iterator<Item = usize>) -> (Vec<u64>, usize) {
    let mut end = 0;
    let positions = frames_bytes
        .map(|bytes| {
            let position = end;
            end += HEAD_BYTES + bytes.max(FRAME_BYTES_MIN).next_multiple_of(8);
            if position / TRACE_BLOCK_BYTES != end / TRACE_BLOCK_BYTES {
                // It ends in the slack, if not with the block; the next one begins the next block.
                end = end / TRACE_BLOCK_BYTES * TRACE_BLOCK_BYTES;
            }
            position as u64
        })
        .collect();
    (positions, end.div_ceil(TRACE_BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_lie_apart_and_within_their_blocks() {
        let lengths: Vec<usize> = (0..5000).map(|k| 15 + k * 7919 % 3386).collect();
        let (positions, blocks) = lay_out(lengths.iter().copied());
        let mut free = 0;
        for (position, bytes) in positions.iter().zip(&lengths) {
            let start = place(*position);
            assert!(start >= free && start.is_multiple_of(8));
            free = start + HEAD_BYTES + bytes.max(&FRAME_BYTES_MIN);
            // All of it in one element of the map.
            assert_eq!(start / WHOLE_BLOCK_BYTES, (free - 1) / WHOLE_BLOCK_BYTES);
            // At most what the kernel's program may copy behind a position is there.
            assert!(start % WHOLE_BLOCK_BYTES < TRACE_BLOCK_BYTES);
        }
        assert!(free <= blocks * WHOLE_BLOCK_BYTES && blocks > 8);
    }

    #[test]
    fn a_trace_larger_than_the_free_memory_is_refused_in_words() {
        assert!(check_memory(9, 5 << 20, 5 << 20).is_ok());
        let refusal = check_memory(9, 5 << 20, (5 << 20) - 1).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "--replay of 9 frames: live frames need 5 MiB of memory for them, and 4 MiB are free: expected a shorter file, or \
             --backend af-packet, which sends from the file in memory"
        );
    }

    #[test]
    fn a_frame_that_ends_with_its_block_leaves_no_block_empty() {
        let bytes = TRACE_BLOCK_BYTES / 8 - HEAD_BYTES;
        let (positions, blocks) = lay_out([bytes; 8].into_iter());
        assert_eq!(
            (positions[7], blocks),
            (7 * TRACE_BLOCK_BYTES as u64 / 8, 1)
        );
    }
}
