//! From the ring to the log: reads every lane, puts the records in order of time, keeps accounts.

use parshall_core::abi::{
    RECORD_TCP_FLOW, RECORD_TCP_FLOW_END, RECORD_TCP_STATE, RecordHeader, TCP_HOOK_COUNT,
    TcpFlowEndRecord, TcpFlowRecord, TcpStateRecord, view_plain, view_plain_slice,
};

use super::flows::FlowTable;
use crate::clock::monotonic_ns;
use crate::ring::memory::Lane;
use crate::ring::merge::{MergedLanes, time_ns};
use crate::ring::reader::{LaneReader, Wanted};
use crate::ring::registry::LaneReaders;
use crate::ring::{HOLD_BACK_NS, RingError};

/// Bytes copied out of a lane at once: fits a first-level cache, as a block is gone through several times.
const BLOCK_BYTES: usize = 22 << 10;
/// State records handed on at once.
const HAND_ON_RECORDS: usize = 512;
/// From so many records of one lane on, a run is handed on from where it lies, without a copy.
const LONG_RUN_RECORDS: usize = 32;

/// Reads all lanes of the TCP instrument.
pub struct Collector {
    lanes: MergedLanes,
    registered: Vec<(LaneReaders, usize)>,
    handed_on: Vec<TcpStateRecord>,
    /// Records up to this time were taken, by their clock.
    pub taken_until_ns: u64,
    /// Records read, by hook.
    pub read: [u64; TCP_HOOK_COUNT],
    /// The flow table.
    pub flows: FlowTable,
}

impl Collector {
    /// A collector of these lanes, from their first record.
    ///
    /// # Errors
    /// [`RingError::Readers`] when a lane's register of readers is full.
    pub fn new(
        lanes: impl IntoIterator<Item = (Lane, Option<LaneReaders>)>,
        flows: FlowTable,
    ) -> Result<Self, RingError> {
        let mut merged = MergedLanes::new(BLOCK_BYTES, Wanted::default());
        let mut registered = Vec::new();
        for (lane, readers) in lanes {
            let reader = LaneReader::from_start(lane);
            let register = match readers {
                Some(readers) => {
                    let slot = readers.join(reader.position())?;
                    Some((readers, slot))
                }
                None => None,
            };
            registered.extend(register.clone());
            merged.add(reader, register);
        }
        Ok(Self {
            lanes: merged,
            registered,
            handed_on: Vec::with_capacity(HAND_ON_RECORDS),
            taken_until_ns: 0,
            read: [0; TCP_HOOK_COUNT],
            flows,
        })
    }

    /// Takes what is in the lanes and hands the state records on, in order of time, in pieces.
    /// Returns how many records of all kinds were taken.
    ///
    /// With `everything` nothing is held back: for the end of a log, when the hooks are off.
    ///
    /// # Errors
    /// The first error of `sink`; the records read until then are taken and counted nevertheless.
    pub fn collect<E>(
        &mut self,
        everything: bool,
        sink: &mut dyn FnMut(&[TcpStateRecord]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let now_ns = monotonic_ns();
        let horizon_ns = if everything {
            u64::MAX
        } else {
            now_ns.saturating_sub(HOLD_BACK_NS)
        };
        let mut taken = 0;
        self.lanes.refill();
        'lanes: while let Some((oldest, limit_ns)) = self.lanes.oldest(horizon_ns) {
            loop {
                let block = self.lanes.block(oldest);
                let run = block.run_length(|record| {
                    time_ns(record) <= limit_ns && kind(record) == RECORD_TCP_STATE
                });
                if run == 0 {
                    // A record of another kind, or none that is old enough.
                    match block.peek() {
                        Some(record) if time_ns(record) <= limit_ns => {
                            note(record, &mut self.read, &mut self.flows);
                        }
                        _ => continue 'lanes,
                    }
                    block.advance();
                    taken += 1;
                    continue;
                }
                if run < LONG_RUN_RECORDS {
                    let states: &[TcpStateRecord] = view_plain_slice(block.peek_many(run));
                    self.handed_on.extend_from_slice(states);
                    block.advance_many(run);
                    if self.handed_on.len() >= HAND_ON_RECORDS {
                        self.hand_on(sink)?;
                    }
                } else {
                    self.hand_on(sink)?;
                    self.hand_on_in_place(oldest, run, sink)?;
                }
                taken += run;
            }
        }
        self.hand_on(sink)?;
        self.taken_until_ns = horizon_ns.min(now_ns);
        Ok(taken)
    }

    fn hand_on<E>(
        &mut self,
        sink: &mut dyn FnMut(&[TcpStateRecord]) -> Result<(), E>,
    ) -> Result<(), E> {
        note_states(&self.handed_on, &mut self.read, &mut self.flows);
        let result = sink(&self.handed_on);
        self.handed_on.clear();
        result
    }

    /// Hands on the next `run` records of a lane, all of them states, from where they lie.
    fn hand_on_in_place<E>(
        &mut self,
        lane: usize,
        run: usize,
        sink: &mut dyn FnMut(&[TcpStateRecord]) -> Result<(), E>,
    ) -> Result<(), E> {
        let block = self.lanes.block(lane);
        let states: &[TcpStateRecord] = view_plain_slice(block.peek_many(run));
        note_states(states, &mut self.read, &mut self.flows);
        let result = sink(states);
        block.advance_many(run);
        result
    }

    /// The lanes: how far they are read, and what was missed.
    pub fn lanes(&self) -> &MergedLanes {
        &self.lanes
    }

    /// Counts what was overwritten at the very end. For when the hooks are off and all is read.
    pub fn settle(&mut self) {
        self.lanes.settle();
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        for (readers, slot) in &self.registered {
            readers.leave(*slot);
        }
    }
}

/// What a record is; see `enum record_kind` of `bpf/abi.h`.
#[inline]
fn kind(record: &[u64]) -> u16 {
    view_plain::<RecordHeader>(record).map_or(0, |header| header.kind)
}

/// Books states; those of a hook mostly come one behind the other.
fn note_states(states: &[TcpStateRecord], read: &mut [u64; TCP_HOOK_COUNT], flows: &mut FlowTable) {
    for run in states.chunk_by(|left, right| left.header.hook == right.header.hook) {
        if let Some(count) = read.get_mut(run[0].header.hook as usize) {
            *count += run.len() as u64;
        }
    }
    flows.note_states(states);
}

/// Books a record that is no state.
fn note(record: &[u64], read: &mut [u64; TCP_HOOK_COUNT], flows: &mut FlowTable) {
    let Some(header) = view_plain::<RecordHeader>(record) else {
        return;
    };
    if let Some(count) = read.get_mut(header.hook as usize) {
        *count += 1;
    }
    match header.kind {
        RECORD_TCP_FLOW => {
            if let Some(facts) = view_plain::<TcpFlowRecord>(record) {
                flows.note_facts(facts);
            }
        }
        RECORD_TCP_FLOW_END => {
            if let Some(end) = view_plain::<TcpFlowEndRecord>(record) {
                flows.note_end(end);
            }
        }
        _ => {}
    }
}
