//! Where the packets of one subscriber go.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;

use parshall_core::trace::{
    Interface, Packet, Section, Statistics, TraceError, Writer, WriterOptions, Written,
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

/// An open target.
pub enum Sink {
    /// See [`Target::File`].
    File(Box<Writer>),
    /// See [`Target::Batches`].
    Batches(BatchBuilder),
}

impl Sink {
    /// Opens a target.
    ///
    /// # Errors
    /// [`TraceError`] when a file cannot be made.
    pub fn open(
        target: Target,
        section: &Section,
        interfaces: &[Interface],
    ) -> Result<Self, TraceError> {
        Ok(match target {
            Target::File { path, options } => Self::File(Box::new(Writer::create(
                &path, &options, section, interfaces,
            )?)),
            Target::Batches(sender) => Self::Batches(BatchBuilder::new(sender, interfaces.len())),
        })
    }

    /// Takes a packet. It is counted in [`Sink::written`], also when it could not be written.
    ///
    /// # Errors
    /// What the target says for the first time.
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

    /// There is nothing more to write at the moment.
    ///
    /// # Errors
    /// As [`Sink::write`].
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
    ///
    /// # Errors
    /// As [`Sink::write`].
    pub fn tick(&mut self, now_ns: u64, statistics: &[Statistics]) -> Result<(), TraceError> {
        match self {
            Self::File(writer) => writer.tick(now_ns, statistics),
            Self::Batches(builder) => {
                builder.send();
                Ok(())
            }
        }
    }

    /// Ends it with the final accounts; returns what became of the packets of each interface.
    pub fn finish(self, statistics: &[Statistics]) -> (Vec<Written>, Result<(), TraceError>) {
        match self {
            Self::File(writer) => {
                let (accounts, result) = writer.finish(statistics);
                (
                    accounts.iter().map(|account| account.written).collect(),
                    result,
                )
            }
            Self::Batches(mut builder) => {
                builder.send();
                (builder.written().to_vec(), Ok(()))
            }
        }
    }

    /// What became of the packets of each interface.
    pub fn written(&self) -> &[Written] {
        match self {
            Self::File(writer) => writer.written(),
            Self::Batches(builder) => builder.written(),
        }
    }

    /// Whether nobody takes packets any more: not a fault.
    pub fn is_over(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Batches(builder) => builder.is_over(),
        }
    }
}
