//! Where the packets of one subscriber go.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;

use parshall_core::trace::{
    Destination, Interface, Packet, Section, Statistics, TraceError, Writer, WriterOptions, Written,
};

use super::batch::{BatchBuilder, PacketBatch};

/// Where a subscriber wants its packets.
#[derive(Debug)]
pub enum Target {
    /// Into a file, a series of files, or (`-`) standard output.
    File {
        /// Its name.
        path: PathBuf,
        /// How it is written.
        options: WriterOptions,
    },
    /// To another thread, which gives the channel a bound: when it is full, the reader waits, and the
    /// ring overwrites what is not read in time.
    Batches(SyncSender<PacketBatch>),
}

/// A target that is open, with nothing written to it yet.
pub enum OpenTarget {
    /// See [`Target::File`].
    File(Box<Destination>, WriterOptions),
    /// See [`Target::Batches`].
    Batches(SyncSender<PacketBatch>),
}

impl Target {
    /// Opens it. What exists stays as it is; a FIFO is waited for until it has a reader, or `is_stopping` returns true.
    pub fn open(self, is_stopping: &mut dyn FnMut() -> bool) -> Result<OpenTarget, TraceError> {
        Ok(match self {
            Self::File { path, options } => {
                let destination = Destination::open(&path, &options, is_stopping)?;
                OpenTarget::File(Box::new(destination), options)
            }
            Self::Batches(sender) => OpenTarget::Batches(sender),
        })
    }
}

/// How a sink ended.
pub struct Ended {
    /// What became of the packets of each interface.
    pub written: Vec<Written>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether all could be written.
    pub result: Result<(), TraceError>,
}

/// Where packets can be written to.
pub enum Sink {
    /// See [`Target::File`].
    File(Box<Writer>),
    /// See [`Target::Batches`].
    Batches(BatchBuilder),
}

impl Sink {
    /// Writes the head of a file, which has its name from [`Sink::commit`] on.
    pub fn begin(
        target: OpenTarget,
        section: &Section,
        interfaces: &[Interface],
    ) -> Result<Self, TraceError> {
        Ok(match target {
            OpenTarget::File(destination, options) => {
                let writer = Writer::create_at(*destination, &options, section, interfaces)?;
                Self::File(Box::new(writer))
            }
            OpenTarget::Batches(sender) => {
                Self::Batches(BatchBuilder::new(sender, interfaces.len()))
            }
        })
    }

    /// Gives a file its name, in place of an existing file.
    pub fn commit(&mut self) -> Result<(), TraceError> {
        match self {
            Self::File(writer) => writer.commit(),
            Self::Batches(_) => Ok(()),
        }
    }

    /// Takes a packet. [`Sink::finish`] counts it, also when it could not be written.
    ///
    /// # Errors
    /// The first failure of the target.
    #[inline]
    pub fn write(&mut self, packet: &Packet<'_>) -> Result<(), TraceError> {
        match self {
            Self::File(writer) => writer.write(packet),
            Self::Batches(builder) => {
                builder.push(packet);
                Ok(())
            }
        }
    }

    /// Called when nothing waits to be written.
    pub fn caught_up(&mut self) -> Result<(), TraceError> {
        match self {
            Self::File(writer) => writer.caught_up(),
            Self::Batches(builder) => {
                builder.send();
                Ok(())
            }
        }
    }

    /// Once a second, with the account of every interface.
    pub fn tick(&mut self, now_ns: u64, statistics: &[Statistics]) -> Result<(), TraceError> {
        match self {
            Self::File(writer) => writer.tick(now_ns, statistics),
            Self::Batches(builder) => {
                builder.send();
                Ok(())
            }
        }
    }

    /// Ends it with the final accounts.
    pub fn finish(self, statistics: &[Statistics]) -> Ended {
        match self {
            Self::File(writer) => {
                let finished = writer.finish(statistics);
                let accounts = finished.accounts.iter();
                Ended {
                    written: accounts.map(|account| account.written).collect(),
                    bytes: finished.bytes,
                    result: finished.result,
                }
            }
            Self::Batches(mut builder) => {
                builder.send();
                Ended {
                    written: builder.written().to_vec(),
                    bytes: 0,
                    result: Ok(()),
                }
            }
        }
    }

    /// What became of the packets of each interface so far.
    pub fn written(&self) -> &[Written] {
        match self {
            Self::File(writer) => writer.written(),
            Self::Batches(builder) => builder.written(),
        }
    }

    /// Bytes of its files so far.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::File(writer) => writer.bytes(),
            Self::Batches(_) => 0,
        }
    }

    /// Whether the target accepts no more packets, which is not a failure.
    pub fn is_over(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Batches(builder) => builder.is_over(),
        }
    }
}
