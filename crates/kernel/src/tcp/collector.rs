//! From the ring to the log: reads every lane, puts the records in order of time, keeps accounts.

use parshall_core::abi::{
    HOOK_COUNT, RECORD_TCP_FLOW, RECORD_TCP_FLOW_END, RECORD_TCP_STATE, RecordHeader,
    TcpFlowEndRecord, TcpFlowRecord, TcpStateRecord, view_plain, view_plain_slice,
};

use super::flows::FlowTable;
use crate::clock::monotonic_ns;
use crate::ring::RingError;
use crate::ring::memory::Lane;
use crate::ring::reader::{Block, LaneReader};
use crate::ring::registry::LaneReaders;

/// Bytes copied out of a lane at once: fits a first-level cache, as a block is gone through several times.
const BLOCK_BYTES: usize = 22 << 10;
/// State records handed on at once.
const HAND_ON_RECORDS: usize = 512;
/// From so many records of one lane on, a run is handed on from where it lies, without a copy.
const LONG_RUN_RECORDS: usize = 32;
/// Records younger than this wait for the next look, so that lanes can be merged by time although
/// a hook on another CPU may still be at work.
const HOLD_BACK_NS: u64 = 1_000_000;

struct Source {
    reader: LaneReader,
    block: Block,
    register: Option<(LaneReaders, usize)>,
}

/// Reads all lanes of the TCP instrument.
pub struct Collector {
    sources: Vec<Source>,
    handed_on: Vec<TcpStateRecord>,
    /// Records read, by hook.
    pub read: [u64; HOOK_COUNT],
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
        let mut sources = Vec::new();
        for (lane, readers) in lanes {
            let reader = LaneReader::from_start(lane);
            let register = match readers {
                Some(readers) => {
                    let slot = readers.join(reader.position())?;
                    Some((readers, slot))
                }
                None => None,
            };
            sources.push(Source {
                reader,
                block: Block::default(),
                register,
            });
        }
        Ok(Self {
            sources,
            handed_on: Vec::with_capacity(HAND_ON_RECORDS),
            read: [0; HOOK_COUNT],
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
        let horizon_ns = if everything {
            u64::MAX
        } else {
            monotonic_ns().saturating_sub(HOLD_BACK_NS)
        };
        let mut taken = 0;
        for source in &mut self.sources {
            source.refill();
        }
        // The source with the oldest record gives records until another one's is older.
        'sources: while let Some((oldest, limit_ns)) = self.oldest(horizon_ns) {
            loop {
                let source = &mut self.sources[oldest];
                if source.block.is_empty() {
                    source.refill();
                }
                let run = source.block.run_length(|record| {
                    time_ns(record) <= limit_ns && kind(record) == RECORD_TCP_STATE
                });
                if run >= LONG_RUN_RECORDS {
                    self.hand_on(sink)?;
                    self.hand_on_in_place(oldest, run, sink)?;
                    taken += run;
                    continue;
                }
                // A short run, or one record of another kind.
                for _ in 0..run.max(1) {
                    let block = &mut self.sources[oldest].block;
                    let Some(record) = block.peek() else {
                        continue 'sources;
                    };
                    if time_ns(record) > limit_ns {
                        continue 'sources;
                    }
                    note(record, &mut self.read, &mut self.flows, &mut self.handed_on);
                    block.advance();
                    taken += 1;
                }
                if self.handed_on.len() >= HAND_ON_RECORDS {
                    self.hand_on(sink)?;
                }
            }
        }
        self.hand_on(sink)?;
        Ok(taken)
    }

    fn hand_on<E>(
        &mut self,
        sink: &mut dyn FnMut(&[TcpStateRecord]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.flows.note_states(&self.handed_on);
        let result = sink(&self.handed_on);
        self.handed_on.clear();
        result
    }

    /// Hands on the next `run` records of a source, all of them states, from where they lie.
    fn hand_on_in_place<E>(
        &mut self,
        source: usize,
        run: usize,
        sink: &mut dyn FnMut(&[TcpStateRecord]) -> Result<(), E>,
    ) -> Result<(), E> {
        let block = &mut self.sources[source].block;
        let states: &[TcpStateRecord] = view_plain_slice(block.peek_many(run));
        for state in states {
            if let Some(count) = self.read.get_mut(state.header.hook as usize) {
                *count += 1;
            }
        }
        self.flows.note_states(states);
        // All are given, also after an error: the sink counts what it cannot take.
        let mut result = Ok(());
        for states in states.chunks(HAND_ON_RECORDS) {
            result = result.and(sink(states));
        }
        self.sources[source].block.advance_many(run);
        result
    }

    /// The source whose next record is oldest, and up to which time it may go on.
    fn oldest(&self, horizon_ns: u64) -> Option<(usize, u64)> {
        let mut oldest: Option<(u64, usize)> = None;
        let mut second_ns = u64::MAX;
        for (index, source) in self.sources.iter().enumerate() {
            let Some(record) = source.block.peek() else {
                continue;
            };
            let time = time_ns(record);
            match oldest {
                Some((best, _)) if best <= time => second_ns = second_ns.min(time),
                _ => {
                    if let Some((best, _)) = oldest {
                        second_ns = second_ns.min(best);
                    }
                    oldest = Some((time, index));
                }
            }
        }
        let (time, index) = oldest?;
        (time <= horizon_ns).then_some((index, second_ns.min(horizon_ns)))
    }

    /// Whether everything that was written has been taken.
    pub fn is_caught_up(&self) -> bool {
        self.sources
            .iter()
            .all(|source| source.block.is_empty() && source.reader.is_caught_up())
    }

    /// Records overwritten before they were read, by the lanes' own sequence numbers. Exact after
    /// [`Collector::settle`].
    pub fn sequence_gaps(&self) -> u64 {
        self.sources
            .iter()
            .map(|source| source.reader.counts().gaps.max(0) as u64)
            .sum()
    }

    /// Counts what was overwritten at the very end. For when the hooks are off and all is read.
    pub fn settle(&mut self) {
        for source in &mut self.sources {
            source.reader.settle();
        }
    }
}

impl Source {
    fn refill(&mut self) {
        if !self.block.is_empty() {
            return;
        }
        self.reader.read_block(&mut self.block, BLOCK_BYTES);
        if let Some((readers, slot)) = &self.register {
            readers.report(*slot, self.reader.position());
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some((readers, slot)) = &self.register {
            readers.leave(*slot);
        }
    }
}

/// What a record is; see `enum record_kind` of `bpf/abi.h`.
#[inline]
fn kind(record: &[u64]) -> u16 {
    view_plain::<RecordHeader>(record).map_or(0, |header| header.kind)
}

/// Every record of ours has its time right behind the header.
#[inline]
fn time_ns(record: &[u64]) -> u64 {
    record
        .get(size_of::<RecordHeader>() / 8)
        .copied()
        .unwrap_or(0)
}

/// Books one record; a state waits in `states` to be handed on.
#[inline]
fn note(
    record: &[u64],
    read: &mut [u64; HOOK_COUNT],
    flows: &mut FlowTable,
    states: &mut Vec<TcpStateRecord>,
) {
    let Some(header) = view_plain::<RecordHeader>(record) else {
        return;
    };
    if let Some(count) = read.get_mut(header.hook as usize) {
        *count += 1;
    }
    match header.kind {
        RECORD_TCP_STATE => states.extend(view_plain::<TcpStateRecord>(record)),
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
