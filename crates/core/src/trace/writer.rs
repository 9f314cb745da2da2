//! Writes packets into capture files. If the process or the disk fails, the file still opens.

use super::destination::Destination;
use super::encoder::Encoder;
use super::error::TraceError;
use super::format::{Compression, Compressor};
use super::interface::Interface;
use super::options::WriterOptions;
use super::output::{Output, Sink};
use super::packet::Packet;
use super::section::Section;
use super::statistics::{Account, Statistics, Written};
use crate::output_file::Place;
use crate::output_file::series::{FileSeries, Rotation};
use std::path::Path;

/// Bytes of a buffer for one write: large enough to make the cost of the system call negligible, small enough
/// for the L2 cache.
const BUFFER_BYTES: usize = 256 << 10;
/// The same with compression, which is better for longer pieces.
const BUFFER_COMPRESSED_BYTES: usize = 1 << 20;
/// Readers (Wireshark, libpcap) regard longer packets as damage.
const CAPTURED_MAX_BYTES: u32 = 262_144;
/// Bytes freed on a full disk, in addition to those of the last statistics: two pages.
const RESERVE_BYTES: usize = 8192;
/// Interval between ledgers in a growing file, in case the process is killed.
const LEDGER_INTERVAL_NS: u64 = 10_000_000_000;

/// The result of a capture.
#[derive(Debug)]
pub struct Finished {
    /// By interface.
    pub accounts: Vec<Account>,
    /// Bytes of all files, including those that rotation removed.
    pub bytes: u64,
    /// Whether everything could be written.
    pub result: Result<(), TraceError>,
}

/// Writes one capture into a file, a series of files or a pipe.
///
/// ```no_run
/// # use parshall_core::trace::*;
/// # fn main() -> Result<(), TraceError> {
/// let eth0 = Interface { name: "eth0".into(), ..Default::default() };
/// let mut writer = Writer::create("day.pcapng".as_ref(), &WriterOptions::default(), &Section::default(), &[eth0])?;
/// writer.write(&Packet { time_ns: 1_700_000_000_000_000_000, wire_bytes: 60, captured: &[0; 60], ..Default::default() })?;
/// writer.caught_up()?; // whenever there is nothing more to write at the moment
/// writer.tick(1_700_000_000_500_000_000, &[Statistics { seen: 1, ..Default::default() }])?; // once a second
/// let finished = writer.finish(&[Statistics { seen: 1, complete: true, ..Default::default() }]);
/// finished.result?;
/// assert_eq!(finished.accounts[0].difference(), 0);
/// # Ok(())
/// # }
/// ```
///
/// After an error, every packet is in the buffer or counted in [`Written::unwritten`]. A full disk gives one
/// error; then packets are counted as unwritten until [`Writer::tick`] finds room again. The file always ends
/// at a whole packet.
pub struct Writer {
    encoder: Encoder,
    compressor: Option<Compressor>,
    snaplen_bytes: usize,
    rotation: Rotation,
    series: Option<FileSeries>,
    output: Option<Output>,
    /// The place of the first file, until the file is moved there.
    place: Option<Place>,
    /// Bytes of the files before this one.
    ended_bytes: u64,
    /// Encoded, not compressed, not written.
    buffer: Vec<u8>,
    buffer_bytes: usize,
    /// The interfaces of the packets in the buffer.
    waiting: Vec<u32>,
    frame: Vec<u8>,
    written: Vec<Written>,
    /// The accounts at the last tick.
    accounts: Vec<Account>,
    /// The last write failed; the next attempt is at the next tick.
    is_stalled: bool,
    /// The time of the file's first packet.
    began_ns: Option<u64>,
    /// Packets so far, and the time, when the ledger was written last.
    ledger_at: (u64, u64),
}

impl Writer {
    /// Creates the file at `path`, or the first of a series. `-` is standard output; `path` may be a FIFO.
    ///
    /// # Errors
    /// Those of [`Destination::open`], [`Writer::create_at`] and [`Writer::commit`].
    pub fn create(
        path: &Path,
        options: &WriterOptions,
        section: &Section,
        interfaces: &[Interface],
    ) -> Result<Self, TraceError> {
        let destination = Destination::open(path, options, &mut || false)?;
        let mut writer = Self::create_at(destination, options, section, interfaces)?;
        writer.commit()?;
        Ok(writer)
    }

    /// Writes the head of a capture to an open destination. [`Writer::commit`] gives the file its name;
    /// until then, an older file stays.
    ///
    /// # Errors
    /// [`TraceError::Option`] when options contradict each other, [`TraceError::Write`].
    pub fn create_at(
        destination: Destination,
        options: &WriterOptions,
        section: &Section,
        interfaces: &[Interface],
    ) -> Result<Self, TraceError> {
        let mut writer = Self::new(options, section, interfaces, destination.series)?;
        writer.output = Some(destination.output);
        writer.place = destination.place;
        writer.write_buffer()?;
        Ok(writer)
    }

    /// Gives the file its name, and replaces or removes older files.
    ///
    /// # Errors
    /// [`TraceError::Create`].
    pub fn commit(&mut self) -> Result<(), TraceError> {
        let Some(place) = &mut self.place else {
            return Ok(());
        };
        match &mut self.series {
            Some(series) => {
                series.make_room()?;
                series.take(place)?;
            }
            None => place.take()?,
        }
        self.place = None;
        Ok(())
    }

    /// Writes to a sink, without rotation; `name` is for messages.
    ///
    /// # Errors
    /// As [`Writer::create`].
    pub fn to_sink(
        sink: Box<dyn Sink>,
        name: &str,
        options: &WriterOptions,
        section: &Section,
        interfaces: &[Interface],
    ) -> Result<Self, TraceError> {
        let mut writer = Self::new(options, section, interfaces, None)?;
        writer.output = Some(Output::new(sink, name.to_owned()));
        writer.write_buffer()?;
        Ok(writer)
    }

    fn new(
        options: &WriterOptions,
        section: &Section,
        interfaces: &[Interface],
        series: Option<FileSeries>,
    ) -> Result<Self, TraceError> {
        let encoder = Encoder::new(options.format, section, interfaces, options.snaplen_bytes)?;
        let buffer_bytes = match (options.compression, options.rotation.size_bytes) {
            (Compression::None, None) => BUFFER_BYTES,
            // Packets that are buffered while no file can be created must fit into one.
            (Compression::None, Some(size_bytes)) => {
                let most = usize::try_from(size_bytes).unwrap_or(usize::MAX);
                BUFFER_BYTES.min(most.saturating_sub(2 * encoder.statistics_bytes()))
            }
            // The size of a file is known only after compression, so pieces must be small parts of it.
            (_, Some(size_bytes)) => {
                BUFFER_COMPRESSED_BYTES.min((size_bytes / 16).max(4096) as usize)
            }
            (_, None) => BUFFER_COMPRESSED_BYTES,
        };
        let mut buffer = Vec::with_capacity(buffer_bytes + encoder.head().len());
        buffer.extend_from_slice(encoder.head());
        let snaplen_bytes = match options.snaplen_bytes {
            0 => CAPTURED_MAX_BYTES,
            bytes => bytes.min(CAPTURED_MAX_BYTES),
        };
        Ok(Self {
            encoder,
            compressor: Compressor::new(options.compression)?,
            snaplen_bytes: snaplen_bytes as usize,
            rotation: options.rotation,
            series,
            output: None,
            place: None,
            ended_bytes: 0,
            buffer,
            buffer_bytes,
            waiting: Vec::new(),
            frame: Vec::new(),
            written: vec![Written::default(); interfaces.len()],
            accounts: vec![Account::default(); interfaces.len()],
            is_stalled: false,
            began_ns: None,
            ledger_at: (0, 0),
        })
    }

    /// Writes or buffers a packet.
    ///
    /// # Errors
    /// [`TraceError::UnknownInterface`], and those of [`Writer::flush`] when the buffer was full.
    #[inline]
    pub fn write(&mut self, packet: &Packet<'_>) -> Result<(), TraceError> {
        let captured = &packet.captured[..packet.captured.len().min(self.snaplen_bytes)];
        let needed_bytes = self.encoder.overhead_bytes(packet) + captured.len();
        let fits = self.buffer.len() + needed_bytes <= self.buffer_bytes;
        if fits
            && self.series.is_none()
            && let Some(written) = self.written.get_mut(packet.interface as usize)
        {
            written.handed += 1;
            written.in_file += 1;
            self.waiting.push(packet.interface);
            self.encoder.packet(&mut self.buffer, packet, captured);
            return Ok(());
        }
        self.write_and_flush(packet, captured, needed_bytes)
    }

    /// As [`Writer::write`], when the buffer may have to be written first.
    #[inline(never)]
    fn write_and_flush(
        &mut self,
        packet: &Packet<'_>,
        captured: &[u8],
        needed_bytes: usize,
    ) -> Result<(), TraceError> {
        let interface = packet.interface as usize;
        if interface >= self.written.len() {
            return Err(TraceError::UnknownInterface {
                interface: packet.interface,
                known: self.written.len(),
            });
        }
        self.written[interface].handed += 1;
        let mut result = Ok(());
        if self.series.is_some() {
            result = self.rotate_if_due(packet.time_ns, needed_bytes);
        }
        if self.buffer.len() + needed_bytes > self.buffer_bytes && !self.buffer.is_empty() {
            if !self.is_stalled {
                result = result.and(self.write_buffer());
            }
            if self.is_stalled && self.buffer.len() + needed_bytes > self.buffer_bytes {
                self.written[interface].unwritten += 1;
                return result;
            }
        }
        self.written[interface].in_file += 1;
        self.waiting.push(packet.interface);
        self.encoder.packet(&mut self.buffer, packet, captured);
        result
    }

    /// Writes the buffer if the output is a pipe. Call it when no packet is waiting, so that the pipe's
    /// reader has all packets so far.
    ///
    /// # Errors
    /// As [`Writer::flush`].
    pub fn caught_up(&mut self) -> Result<(), TraceError> {
        match &self.output {
            Some(output) if output.is_live() && !self.is_stalled => self.write_buffer(),
            _ => Ok(()),
        }
    }

    /// Writes the buffer.
    ///
    /// # Errors
    /// [`TraceError::Write`] when the output takes no more; the buffer is kept. [`TraceError::ReaderGone`]
    /// when the reader of a pipe closed it: nothing more can be written.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.write_buffer()
    }

    /// Call it once a second. It flushes (also after a full disk stalled the writer), ends a file whose time
    /// is over, and takes over the accounts of all interfaces as of `now_ns`.
    ///
    /// # Errors
    /// As [`Writer::flush`]; a disk that is still full gives no second error.
    pub fn tick(&mut self, now_ns: u64, statistics: &[Statistics]) -> Result<(), TraceError> {
        let rotated = match self.series {
            Some(_) => self.rotate_if_due(now_ns, 0),
            None => Ok(()),
        };
        let was_stalled = self.is_stalled;
        let flushed = match self.write_buffer() {
            Err(error) if was_stalled && !error.is_reader_gone() => Ok(()),
            flushed => flushed,
        };
        self.take_over(statistics);
        let handed: u64 = self.written.iter().map(|written| written.handed).sum();
        let (handed_before, before_ns) = self.ledger_at;
        if !self.is_stalled
            && handed != handed_before
            && now_ns >= before_ns.saturating_add(LEDGER_INTERVAL_NS)
        {
            self.ledger_at = (handed, now_ns);
            self.encoder.statistics(&mut self.buffer, &self.accounts)?;
        }
        rotated.and(flushed)
    }

    /// Writes the buffer and the final accounts. What cannot be written is dropped and counted.
    ///
    /// The accounts balance even if not everything could be written.
    pub fn finish(mut self, statistics: &[Statistics]) -> Finished {
        let result = self.end_file(Some(statistics));
        Finished {
            accounts: self.accounts,
            bytes: self.ended_bytes,
            result,
        }
    }

    /// Whether the last attempt to write failed, and packets are dropped until [`Writer::tick`] finds room.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// What was written of each interface.
    pub fn written(&self) -> &[Written] {
        &self.written
    }

    /// Bytes in the current file, without the buffer.
    pub fn file_bytes(&self) -> u64 {
        self.output.as_ref().map_or(0, Output::position_bytes)
    }

    /// Bytes of all files so far.
    pub fn bytes(&self) -> u64 {
        self.ended_bytes + self.file_bytes()
    }

    fn take_over(&mut self, statistics: &[Statistics]) {
        for ((account, statistics), written) in
            self.accounts.iter_mut().zip(statistics).zip(&self.written)
        {
            *account = Account {
                statistics: *statistics,
                written: *written,
            };
        }
    }

    fn rotate_if_due(&mut self, now_ns: u64, needed_bytes: usize) -> Result<(), TraceError> {
        if self.output.is_none() || self.written.iter().all(|written| written.in_file == 0) {
            // The file's time begins with its first packet, which may be this one.
            self.began_ns = (needed_bytes > 0).then_some(now_ns);
            return Ok(());
        }
        let began_ns = *self.began_ns.get_or_insert(now_ns);
        let is_over = self
            .rotation
            .time_ns
            .is_some_and(|time_ns| now_ns >= began_ns.saturating_add(time_ns));
        let mut result = Ok(());
        let is_full = match self.rotation.size_bytes {
            Some(size_bytes) if needed_bytes > 0 => {
                let is_full = |writer: &Self| {
                    let coming = writer.buffer.len() + needed_bytes;
                    let compressed = match writer.compressor {
                        Some(_) => coming + coming / 128 + 128,
                        None => coming,
                    };
                    // One account may be written by a tick, one at the end.
                    let closing = 2 * writer.encoder.statistics_bytes();
                    writer.file_bytes() + (compressed + closing) as u64 > size_bytes
                };
                // Compression makes room, so the size is compared again after it.
                if is_full(self) && self.compressor.is_some() && !self.is_stalled {
                    result = self.write_buffer();
                    let margin_bytes = size_bytes / 16;
                    self.file_bytes() + margin_bytes > size_bytes || is_full(self)
                } else {
                    is_full(self)
                }
            }
            _ => false,
        };
        if is_over || is_full {
            result = result.and(self.end_file(None));
            let begun = self.open_next().and_then(|()| self.write_buffer());
            self.is_stalled = begun.is_err();
            result = result.and(begun);
            self.began_ns = (needed_bytes > 0).then_some(now_ns);
        }
        result
    }

    /// Opens the next file of the series.
    fn open_next(&mut self) -> Result<(), TraceError> {
        let Some(series) = &mut self.series else {
            return Ok(());
        };
        let removed = series.make_room();
        let (output, mut place) = Output::file(&series.next_path(), &mut || true)?;
        series.take(&mut place)?;
        self.output = Some(output);
        Ok(removed?)
    }

    /// Writes the buffer and the accounts: `statistics`, or those of the last tick. What cannot be written is
    /// dropped and counted. Leaves the buffer with the head of the next file.
    fn end_file(&mut self, statistics: Option<&[Statistics]>) -> Result<(), TraceError> {
        let mut result = self.write_buffer();
        if result.is_err() {
            self.drop_buffer();
        }
        match statistics {
            Some(statistics) => self.take_over(statistics),
            None => {
                for (account, written) in self.accounts.iter_mut().zip(&self.written) {
                    account.written.in_file = written.in_file;
                }
            }
        }
        if self.file_bytes() == 0 && self.buffer.is_empty() {
            self.buffer.extend_from_slice(self.encoder.head());
        }
        result = result.and(self.encoder.statistics(&mut self.buffer, &self.accounts));
        let mut closed = self.write_buffer();
        if let (Some(compressor), Some(output)) = (&mut self.compressor, &mut self.output) {
            closed = closed.and(output.end(compressor.ending()));
            closed = closed.and(compressor.restart());
        }
        self.ended_bytes += self.file_bytes();
        self.output = None;
        self.buffer.clear();
        self.buffer.extend_from_slice(self.encoder.head());
        for written in &mut self.written {
            written.in_file = 0;
        }
        result.and(closed)
    }

    /// Writes the buffer; when that fails, keeps what is not written.
    fn write_buffer(&mut self) -> Result<(), TraceError> {
        let result = self.try_write_buffer();
        self.is_stalled = result.is_err();
        result
    }

    fn try_write_buffer(&mut self) -> Result<(), TraceError> {
        if self.output.is_none() {
            self.open_next()?;
        }
        let Some(output) = &mut self.output else {
            return Ok(());
        };
        if self.buffer.is_empty() {
            return Ok(());
        }
        match &mut self.compressor {
            None => {
                let is_file_start = output.position_bytes() == 0;
                let reserve_bytes = match output.is_live() {
                    true => 0,
                    false => self.encoder.statistics_bytes() + RESERVE_BYTES,
                };
                let (whole_bytes, result) = output.put(&self.buffer, |done| {
                    let most = done.saturating_sub(reserve_bytes);
                    self.encoder
                        .pieces(&self.buffer, is_file_start)
                        .map(|piece| piece.end)
                        .take_while(|&end| end <= most)
                        .last()
                        .unwrap_or(0)
                });
                self.buffer.drain(..whole_bytes);
                if result.is_ok() {
                    self.waiting.clear();
                } else {
                    let is_file_start = output.position_bytes() == 0;
                    let pieces = self.encoder.pieces(&self.buffer, is_file_start);
                    let packets = pieces.filter(|piece| piece.is_packet).count();
                    self.waiting.drain(..self.waiting.len() - packets);
                }
                result
            }
            Some(compressor) => {
                compressor.compress(&self.buffer, &mut self.frame)?;
                let result = output.put_piece(&self.frame, compressor.ending());
                if result.is_ok() {
                    self.buffer.clear();
                    self.waiting.clear();
                } else {
                    // The output has none of this piece, so the next attempt compresses the buffer again.
                    compressor.restart()?;
                }
                result
            }
        }
    }

    /// Drops the buffered packets, and counts them as unwritten.
    fn drop_buffer(&mut self) {
        for interface in self.waiting.drain(..) {
            let written = &mut self.written[interface as usize];
            written.unwritten += 1;
            written.in_file -= 1;
        }
        self.buffer.clear();
    }
}
