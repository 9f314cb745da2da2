//! Our subscribers: what each wants, and the file or channel that takes it.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;

use parshall_core::trace::{
    Compression, Format, Interface, Packet, Rotation, Section, Statistics, TraceError,
    WriterOptions, Written,
};
use serde::Deserialize;

use super::CaptureError;
use super::batch::PacketBatch;
use super::dispatcher::CompiledFilter;
use super::load::{Load, LoadRequest};
use super::request::Subscription;
use super::sink::{OpenTarget, Sink, Target};
use super::status::CaptureProgress;
use crate::net::interface::Interface as CapturedInterface;
use crate::os_text;
use crate::session::Control;

/// One subscriber of ours.
#[derive(Debug)]
pub struct Output {
    /// What it wants.
    pub subscription: Subscription,
    /// Where that goes.
    pub target: Target,
    /// Work on each packet before it is written, in this order.
    pub loads: Vec<Load>,
}

/// One subscriber of ours, as it is requested.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputRequest {
    /// See [`Subscription::filter`].
    pub filter: String,
    /// See [`Subscription::snaplen`].
    pub snaplen: u32,
    /// Its file; `-` is standard output; `None`: packets go to the caller, as batches.
    #[serde(deserialize_with = "os_text::optional_path")]
    pub path: Option<PathBuf>,
    /// `None`: by the name of the file.
    pub format: Option<Format>,
    /// `None`: by the name of the file.
    pub compression: Option<Compression>,
    /// When a new file begins, and which stay.
    pub rotation: Rotation,
    /// See [`Output::loads`].
    pub loads: Vec<LoadRequest>,
}

impl OutputRequest {
    /// The subscriber; `batches` takes its packets when it has no file.
    pub(super) fn output(self, batches: &SyncSender<PacketBatch>) -> Output {
        let target = match self.path {
            None => Target::Batches(batches.clone()),
            Some(path) => {
                let named = WriterOptions::of_name(&path);
                let options = WriterOptions {
                    format: self.format.unwrap_or(named.format),
                    compression: self.compression.unwrap_or(named.compression),
                    snaplen_bytes: self.snaplen,
                    rotation: self.rotation,
                };
                Target::File { path, options }
            }
        };
        Output {
            subscription: Subscription {
                filter: self.filter,
                snaplen: self.snaplen,
            },
            target,
            loads: self.loads.into_iter().map(Load::from).collect(),
        }
    }
}

/// What each of them wants, with filters compiled for these interfaces.
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
    loads: Vec<Load>,
    /// Packets that its sink has been given.
    pub(super) packets: u64,
    /// The reader of its pipe has closed it: what still comes is counted as unwritten.
    pub(super) is_abandoned: bool,
}

impl Opened {
    /// Whether it has reached its count, or its target accepts no more.
    pub(super) fn is_done(&self, count: Option<u64>) -> bool {
        let is_full = count.is_some_and(|count| self.packets >= count);
        is_full || self.is_abandoned || self.sink.as_ref().is_none_or(Sink::is_over)
    }

    /// Works on a packet and writes it.
    #[inline]
    pub(super) fn write(
        &mut self,
        packet: &Packet<'_>,
        control: &Control<CaptureProgress>,
        failure: &mut Option<CaptureError>,
    ) {
        for load in &mut self.loads {
            load.work(packet.captured);
        }
        if let Some(sink) = &mut self.sink
            && let Err(error) = sink.write(packet)
        {
            complain(control, failure, error);
        }
    }

    /// Lets its sink do something, and notes what came of it.
    pub(super) fn with_sink(
        &mut self,
        control: &Control<CaptureProgress>,
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
            complain(control, failure, error);
        }
    }

    /// Opens the targets of all; what exists stays as it is.
    pub(super) fn open_all(
        outputs: Vec<Output>,
        is_given_up: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Self>, CaptureError> {
        let opened = outputs.into_iter();
        opened
            .map(|output| Self::open(output, is_given_up))
            .collect()
    }

    /// Opens its target; what exists stays as it is.
    fn open(output: Output, is_stopping: &mut dyn FnMut() -> bool) -> Result<Self, CaptureError> {
        let file = match &output.target {
            Target::File { path, .. } => path.display().to_string(),
            Target::Batches(_) => String::new(),
        };
        Ok(Self {
            target: Some(output.target.open(is_stopping)?),
            sink: None,
            loads: output.loads,
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
    pub(super) fn commit(&mut self) -> Result<(), CaptureError> {
        match &mut self.sink {
            Some(sink) => Ok(sink.commit()?),
            None => Ok(()),
        }
    }

    /// Ends its file with the final accounts; returns what became of the packets of each interface, and the bytes
    /// of the file.
    pub(super) fn finish(
        &mut self,
        statistics: &[Statistics],
        control: &Control<CaptureProgress>,
        failure: &mut Option<CaptureError>,
    ) -> (Vec<Written>, u64) {
        let Some(ended) = self.sink.take().map(|sink| sink.finish(statistics)) else {
            return (Vec::new(), 0);
        };
        if let Err(error) = ended.result {
            complain(control, failure, error);
        }
        (ended.written, ended.bytes)
    }
}

/// Reports that a file accepts no more packets, and keeps the first such failure. A pipe that its
/// reader has closed is not a failure.
pub(super) fn complain(
    control: &Control<CaptureProgress>,
    failure: &mut Option<CaptureError>,
    error: TraceError,
) {
    if error.is_reader_gone() {
        return;
    }
    control.notify(error.to_string());
    failure.get_or_insert(error.into());
}
