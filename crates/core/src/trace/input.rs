//! Buffered input of a capture file, with the position of each byte.

use super::decompressor::{Source, decompress, looks_like};
use super::error::TraceError;
use std::io;

/// Bytes of the buffer; it grows to the largest block, which is bounded by its reader.
const BUFFER_BYTES: usize = 512 << 10;

/// A file that is read from its start to its end in constant memory.
pub(super) struct Input {
    source: Source,
    name: String,
    buffer: Vec<u8>,
    /// The bytes `at..end` of the buffer are read and not consumed.
    at: usize,
    end: usize,
    /// Position of `buffer[0]` in the uncompressed file.
    base_bytes: u64,
    has_ended: bool,
    /// Why reading ended before the end of the file.
    failure: Option<io::Error>,
    /// Packets delivered, for messages.
    pub packets: u64,
}

impl Input {
    /// Reads the start of the file, and returns its first bytes, too.
    pub(super) fn new(source: Source, name: String) -> Result<(Self, Vec<u8>), TraceError> {
        let (source, first) = match decompress(source) {
            Ok(opened) => opened,
            Err(error) if is_damage(&error) => {
                let found = format!("looks compressed, but {error}");
                return Err(TraceError::NotATrace { path: name, found });
            }
            Err(source) => return Err(TraceError::Read { path: name, source }),
        };
        let input = Self {
            source,
            name,
            buffer: vec![0; BUFFER_BYTES],
            at: 0,
            end: 0,
            base_bytes: 0,
            has_ended: false,
            failure: None,
            packets: 0,
        };
        Ok((input, first))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes `count` bytes ready, or as many as the file still has.
    #[inline]
    pub(super) fn ready(&mut self, count: usize) -> usize {
        if self.end - self.at < count {
            self.fill(count);
        }
        self.end - self.at
    }

    /// Makes `count` bytes ready; false at the end of the file.
    ///
    /// # Errors
    /// When the file ends inside them, `what` they are, or cannot be read.
    #[inline]
    pub(super) fn has(&mut self, count: usize, what: &'static str) -> Result<bool, TraceError> {
        match self.ready(count) {
            0 => self.end().map(|()| false),
            ready_bytes if ready_bytes < count => Err(self.truncated(what)),
            _ => Ok(true),
        }
    }

    #[cold]
    fn fill(&mut self, count: usize) {
        if self.has_ended {
            return;
        }
        self.buffer.copy_within(self.at..self.end, 0);
        self.base_bytes += self.at as u64;
        self.end -= self.at;
        self.at = 0;
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        while self.end < count {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.has_ended = true;
                    return;
                }
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.has_ended = true;
                    self.failure = Some(error);
                    return;
                }
            }
        }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Consumes bytes that are ready. The bytes of the last [`Input::bytes`] stay in place until more are
    /// made ready: see [`Input::passed`].
    #[inline]
    pub(super) fn pass(&mut self, bytes: usize) {
        self.at += bytes.min(self.end - self.at);
    }

    /// The last `bytes` that were consumed.
    #[inline]
    pub(super) fn passed(&self, bytes: usize) -> &[u8] {
        &self.buffer[self.at - bytes..self.at]
    }

    /// Position of the next byte in the uncompressed file.
    pub(super) fn offset_bytes(&self) -> u64 {
        self.base_bytes + self.at as u64
    }

    /// The error for `what` starting at the next byte and not being whole.
    pub(super) fn truncated(&mut self, what: &'static str) -> TraceError {
        let at_byte = self.offset_bytes();
        let end_byte = self.base_bytes + self.end as u64;
        let path = self.name.clone();
        match self.failure.take() {
            Some(error) if is_damage(&error) && error.kind() != io::ErrorKind::UnexpectedEof => {
                TraceError::Corrupt {
                    path,
                    at_byte: end_byte,
                    found: format!("cannot be decompressed ({error})"),
                    expected: "intact compressed data".into(),
                    packets: self.packets,
                }
            }
            Some(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                TraceError::Read { path, source }
            }
            _ => TraceError::Truncated {
                path,
                what,
                at_byte,
                end_byte,
                packets: self.packets,
            },
        }
    }

    /// The error of an end between two pieces; none if the file ends there.
    pub(super) fn end(&mut self) -> Result<(), TraceError> {
        match self.failure {
            Some(_) => Err(self.truncated("the compressed data")),
            None => Ok(()),
        }
    }

    /// The error for something wrong at the next byte.
    #[cold]
    pub(super) fn corrupt(
        &self,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> TraceError {
        TraceError::Corrupt {
            path: self.name.clone(),
            at_byte: self.offset_bytes(),
            found: found.into(),
            expected: expected.into(),
            packets: self.packets,
        }
    }

    pub(super) fn not_a_trace(&self, first: &[u8]) -> TraceError {
        TraceError::NotATrace {
            path: self.name.clone(),
            found: looks_like(first),
        }
    }
}

/// Whether the data cause a read error, as decompressors report it, and not the system.
fn is_damage(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
}
