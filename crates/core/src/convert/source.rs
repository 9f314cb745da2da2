//! A log whose flow table is read before the first row.

use super::error::ConvertError;
use super::format::Format;
use super::row::{NEW_SYN_RECV, Row, rows};
use crate::abi::EVENT_PACKET;
use crate::ledger::Ledger;
use crate::tcp_log::{FlowRow, LogReader};
use arrow::array::BooleanArray;
use arrow::compute::filter_record_batch;
use arrow::record_batch::RecordBatch;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};
use std::sync::Arc;

/// The input of all conversions.
pub struct Source<R: Read> {
    reader: LogReader<R>,
    flows: Arc<BTreeMap<u32, FlowRow>>,
    ledger: Ledger,
    first: Option<RecordBatch>,
    /// The flows that are converted; all when it is empty.
    selected: BTreeSet<u32>,
    unknown_flows: BTreeSet<u32>,
    unknown_rows: u64,
    warnings: Vec<String>,
}

impl<R: Read + Seek> Source<R> {
    /// Surveys the log and reads its first batch.
    pub fn new(mut reader: LogReader<R>, selected: &[u32]) -> Result<Self, ConvertError> {
        reader.survey()?;
        let mut flows = reader.flows().clone();
        if let Some(unknown) = selected.iter().find(|flow| !flows.contains_key(flow)) {
            return Err(ConvertError::UnknownFlow {
                flow: *unknown,
                path: reader.path().to_string(),
                flows: flows.len(),
            });
        }
        let selected: BTreeSet<u32> = selected.iter().copied().collect();
        flows.retain(|flow, _| selected.is_empty() || selected.contains(flow));
        let ledger = reader.ledger().unwrap_or_default();
        let mut source = Self {
            reader,
            flows: Arc::new(flows),
            ledger,
            first: None,
            selected,
            unknown_flows: BTreeSet::new(),
            unknown_rows: 0,
            warnings: Vec::new(),
        };
        source.first = source.read_batch()?;
        Ok(source)
    }

    /// Whether only some flows are converted.
    pub fn is_selection(&self) -> bool {
        !self.selected.is_empty()
    }

    pub fn flows(&self) -> Arc<BTreeMap<u32, FlowRow>> {
        self.flows.clone()
    }

    /// The last ledger; all zeros if the log has none.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn reader(&self) -> &LogReader<R> {
        &self.reader
    }

    /// When the log began: the first row or the first flow, whichever came first.
    pub fn start_ns(&self) -> i64 {
        let first_flow = self.flows.values().map(|flow| flow.first_time_ns).min();
        let first_row = self
            .first
            .as_ref()
            .and_then(|batch| rows(batch).map(|row| row.time_ns).min());
        first_flow.into_iter().chain(first_row).min().unwrap_or(0)
    }

    /// The error for formats that need a flow, when no flow has a packet for the format.
    pub fn no_flow(&self, format: Format) -> ConvertError {
        ConvertError::NoFlow {
            path: self.reader.path().to_string(),
            format,
        }
    }

    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, ConvertError> {
        match self.first.take() {
            Some(batch) => Ok(Some(batch)),
            None => self.read_batch(),
        }
    }

    /// The next batch with rows of the selected flows.
    fn read_batch(&mut self) -> Result<Option<RecordBatch>, ConvertError> {
        while let Some(batch) = self.reader.next().transpose()? {
            if self.selected.is_empty() {
                return Ok(Some(batch));
            }
            let is_selected: BooleanArray = rows(&batch)
                .map(|row| Some(self.selected.contains(&row.flow)))
                .collect();
            let batch = filter_record_batch(&batch, &is_selected)
                .map_err(|error| ConvertError::Write(std::io::Error::other(error)))?;
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Calls `each` with every row whose flow is in the table.
    pub fn for_each_row(
        &mut self,
        mut each: impl FnMut(&Row, &FlowRow) -> Result<(), ConvertError>,
    ) -> Result<(), ConvertError> {
        let flows = self.flows();
        while let Some(batch) = self.next_batch()? {
            for row in rows(&batch) {
                match flows.get(&row.flow) {
                    Some(flow) => each(&row, flow)?,
                    None => {
                        self.unknown_rows += 1;
                        self.unknown_flows.insert(row.flow);
                    }
                }
            }
        }
        Ok(())
    }

    /// As [`Source::for_each_row`], packets only: older formats have no other events.
    pub fn for_each_packet(
        &mut self,
        mut each: impl FnMut(&Row, &FlowRow) -> Result<(), ConvertError>,
    ) -> Result<(), ConvertError> {
        self.for_each_row(|row, flow| match row.event {
            EVENT_PACKET => each(row, flow),
            _ => Ok(()),
        })
    }

    /// As [`Source::for_each_packet`], without handshakes that have no socket yet, and so no TCP state.
    pub fn for_each_packet_of_a_socket(
        &mut self,
        mut each: impl FnMut(&Row, &FlowRow) -> Result<(), ConvertError>,
    ) -> Result<(), ConvertError> {
        self.for_each_packet(|row, flow| match row.state {
            NEW_SYN_RECV => Ok(()),
            _ => each(row, flow),
        })
    }

    pub fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// All warnings, including warnings about the log itself.
    pub fn into_warnings(mut self) -> Vec<String> {
        let path = self.reader.path();
        if let Some(truncation) = self.reader.truncation() {
            self.warnings.push(format!("{path}: {truncation}"));
        }
        let hooks = self.ledger.hooks.iter();
        let lost: u64 = hooks.map(|account| account.lost.total()).sum();
        if lost > 0 {
            self.warnings.push(format!(
                "{path}: the log lacks {lost} events that were lost while measuring"
            ));
        }
        if self.unknown_rows > 0 {
            self.warnings.push(format!(
                "{path}: {} rows of {} flows were left out: their addresses never reached the log",
                self.unknown_rows,
                self.unknown_flows.len()
            ));
        }
        self.warnings
    }
}
