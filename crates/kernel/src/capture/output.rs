//! Our subscribers: what each wants, and the file or channel that takes it.

use parshall_core::trace::{Interface, Section, Statistics, TraceError, Written};

use super::CaptureError;
use super::dispatcher::CompiledFilter;
use super::request::Subscription;
use super::sink::{OpenTarget, Sink, Target};
use super::status::StatusBoard;
use crate::net::interface::Interface as CapturedInterface;

/// One subscriber of ours.
#[derive(Debug)]
pub struct Output {
    /// What it wants.
    pub subscription: Subscription,
    /// Where that goes.
    pub target: Target,
}

/// What each of them wants, as programs for packets like those of these interfaces.
pub(super) fn compile_filters(
    outputs: &[Output],
    interfaces: &[CapturedInterface],
) -> Result<Vec<CompiledFilter>, CaptureError> {
    outputs
        .iter()
        .map(|output| CompiledFilter::compile(&output.subscription.filter, interfaces))
        .collect()
}

/// A subscriber of ours with its open target.
pub(super) struct Opened {
    pub(super) subscription: Subscription,
    pub(super) file: String,
    /// Until its file has begun.
    target: Option<OpenTarget>,
    pub(super) sink: Option<Sink>,
    /// Packets that its sink has been given.
    pub(super) packets: u64,
    /// Who read its pipe has gone: what still comes is counted as unwritten.
    pub(super) is_abandoned: bool,
}

impl Opened {
    /// Whether it has its count, or nobody takes more.
    pub(super) fn is_done(&self, count: Option<u64>) -> bool {
        let is_full = count.is_some_and(|count| self.packets >= count);
        is_full || self.is_abandoned || self.sink.as_ref().is_none_or(Sink::is_over)
    }

    /// Lets its sink do something, and notes what came of it.
    pub(super) fn with_sink(
        &mut self,
        status: &StatusBoard,
        failure: &mut Option<CaptureError>,
        act: impl FnOnce(&mut Sink) -> Result<(), TraceError>,
    ) {
        let Some(sink) = &mut self.sink else {
            return;
        };
        if !self.is_abandoned
            && let Err(error) = act(sink)
        {
            self.is_abandoned = error.is_reader_gone();
            complain(status, failure, error);
        }
    }

    /// Opens its target; what exists stays as it is.
    pub(super) fn open(
        output: Output,
        is_stopping: &mut dyn FnMut() -> bool,
    ) -> Result<Self, CaptureError> {
        let file = match &output.target {
            Target::File { path, .. } => path.display().to_string(),
            Target::Batches(_) => String::new(),
        };
        Ok(Self {
            target: Some(output.target.open(is_stopping)?),
            sink: None,
            subscription: output.subscription,
            file,
            packets: 0,
            is_abandoned: false,
        })
    }

    /// Writes the head of its file.
    pub(super) fn begin(
        &mut self,
        section: &Section,
        interfaces: &[CapturedInterface],
    ) -> Result<(), CaptureError> {
        let interfaces: Vec<Interface> = interfaces
            .iter()
            .map(|interface| Interface {
                name: interface.name.clone(),
                link_type: interface.link_type,
                snaplen_bytes: self.subscription.snaplen,
                filter: Some(self.subscription.filter.clone()).filter(|filter| !filter.is_empty()),
                os: section.os.clone(),
                ..Interface::default()
            })
            .collect();
        if let Some(target) = self.target.take() {
            self.sink = Some(Sink::begin(target, section, &interfaces)?);
        }
        Ok(())
    }

    /// Gives its file the name.
    pub(super) fn take_place(&mut self) -> Result<(), CaptureError> {
        match &mut self.sink {
            Some(sink) => Ok(sink.take_place()?),
            None => Ok(()),
        }
    }

    /// Ends its file with the final accounts; returns what became of the packets of each interface, and the bytes
    /// of the file.
    pub(super) fn finish(
        &mut self,
        statistics: &[Statistics],
        status: &StatusBoard,
        failure: &mut Option<CaptureError>,
    ) -> (Vec<Written>, u64) {
        let Some(ended) = self.sink.take().map(|sink| sink.finish(statistics)) else {
            return (Vec::new(), 0);
        };
        if let Err(error) = ended.result {
            complain(status, failure, error);
        }
        (ended.written, ended.bytes)
    }
}

/// Says that a file takes no more, and keeps the first such failure. That the reader of a pipe has gone
/// is none.
pub(super) fn complain(
    status: &StatusBoard,
    failure: &mut Option<CaptureError>,
    error: TraceError,
) {
    if error.is_reader_gone() {
        return;
    }
    status.say(error.to_string());
    failure.get_or_insert(error.into());
}
