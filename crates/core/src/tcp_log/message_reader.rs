//! Splits a stream into messages, and distinguishes a truncated log from a damaged one.

use super::error::{LogError, plain};
use super::message::{CONTINUATION, KEY_CRC32, checksum};
use arrow::ipc::{Message, MessageHeader, MetadataVersion, root_as_message};
use std::io::{self, BufReader, Read, Seek, SeekFrom};

/// Maximum bytes of the head and of the body of a message: more are damage.
const METADATA_BYTES_MAX: usize = 256 << 20;
const BODY_BYTES_MAX: i64 = 1 << 30;
/// Bytes of the head of a message: marker and length.
const HEAD_BYTES: usize = 8;

/// Where and why a log ends early. Everything before it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// First byte of the file that could not be used.
    pub at_byte: u64,
    /// The missing part.
    pub reason: String,
}

impl std::fmt::Display for Truncation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "ends early at byte {}: {}",
            self.at_byte, self.reason
        )
    }
}

/// One message; the flatbuffer in it has been verified.
pub struct RawMessage {
    pub at_byte: u64,
    metadata: Vec<u8>,
    /// Its body, empty when it was skipped.
    pub body: Vec<u8>,
}

/// The error of a head that the library refuses: the first of its lines, which describes the fault.
fn no_arrow_message(error: &str) -> String {
    let reason = error.lines().next().unwrap_or_default();
    format!("its head is no Arrow message ({reason})")
}

impl RawMessage {
    /// The flatbuffer; an error only if it was not verified.
    pub fn message(&self) -> Result<Message<'_>, String> {
        root_as_message(&self.metadata).map_err(|error| no_arrow_message(&error.to_string()))
    }

    /// The custom metadata, without the checksum.
    pub fn values(&self) -> Result<Vec<(&str, &str)>, String> {
        let message = self.message()?;
        let pairs = message.custom_metadata().into_iter().flatten();
        Ok(pairs
            .filter_map(|pair| Some((pair.key()?, pair.value()?)))
            .filter(|(key, _)| *key != KEY_CRC32)
            .collect())
    }

    /// Compares the checksum with the message.
    pub fn verify(&self, rows: u64) -> Result<(), String> {
        let message = self.message()?;
        let stored = message
            .custom_metadata()
            .into_iter()
            .flatten()
            .find(|pair| pair.key() == Some(KEY_CRC32))
            .and_then(|pair| pair.value())
            .ok_or("it has no checksum")?;
        let computed = checksum(rows, &self.values()?, &self.body);
        if stored == computed {
            Ok(())
        } else {
            Err(format!("its checksum is {computed}, not {stored}"))
        }
    }
}

pub enum Step {
    Message(RawMessage),
    EndOfStream,
    /// The file stops between two messages.
    EndOfFile,
    /// The file stops within a message.
    Cut(Truncation),
}

pub struct MessageReader<R: Read> {
    path: String,
    inner: BufReader<R>,
    at_byte: u64,
}

impl<R: Read> MessageReader<R> {
    /// From the start of a stream; `path` is for errors.
    pub fn new(inner: R, path: String) -> Self {
        Self {
            path,
            inner: BufReader::with_capacity(1 << 16, inner),
            at_byte: 0,
        }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Position behind the last message.
    pub fn at_byte(&self) -> u64 {
        self.at_byte
    }

    pub fn next_message(&mut self) -> Result<Step, LogError> {
        self.step(|reader, metadata, bytes| {
            let body = reader.take_bytes(bytes)?;
            if body.len() as u64 == bytes {
                Ok(Ok(body))
            } else {
                Ok(Err([metadata, &body].concat()))
            }
        })
    }

    fn step(
        &mut self,
        mut take_body: impl FnMut(&mut Self, &[u8], u64) -> Result<Result<Vec<u8>, Vec<u8>>, LogError>,
    ) -> Result<Step, LogError> {
        let at_byte = self.at_byte;
        let head = self.take_bytes(HEAD_BYTES as u64)?;
        if head.is_empty() {
            return Ok(Step::EndOfFile);
        }
        if head.len() < HEAD_BYTES {
            return Ok(cut(at_byte, "the head of a message is incomplete"));
        }
        if head[..4] != CONTINUATION {
            let rest = self.take_bytes(METADATA_BYTES_MAX as u64)?;
            if head.iter().chain(&rest).all(|byte| *byte == 0) {
                return Ok(cut(at_byte, "only zeros follow"));
            }
            return Err(self.corrupt(at_byte, "no message starts here"));
        }
        let metadata_bytes = length_at(&head, 0);
        if metadata_bytes == 0 {
            return Ok(Step::EndOfStream);
        }
        if metadata_bytes < 0 || metadata_bytes as usize > METADATA_BYTES_MAX {
            return self.damaged(at_byte, format!("its head claims {metadata_bytes} bytes"));
        }
        let metadata = self.take_bytes(metadata_bytes as u64)?;
        if metadata.len() < metadata_bytes as usize {
            return self.cut_or_corrupt(at_byte, &metadata);
        }
        let body_bytes = match root_as_message(&metadata) {
            Ok(message) => message.bodyLength(),
            Err(error) => {
                return self.damaged(at_byte, no_arrow_message(&error.to_string()));
            }
        };
        if !(0..=BODY_BYTES_MAX).contains(&body_bytes) {
            return self.damaged(
                at_byte,
                format!("its head claims a body of {body_bytes} bytes"),
            );
        }
        match take_body(self, &metadata, body_bytes as u64)? {
            Ok(body) => Ok(Step::Message(RawMessage {
                at_byte,
                metadata,
                body,
            })),
            Err(tail) => self.cut_or_corrupt(at_byte, &tail),
        }
    }

    /// For a damaged message: a cut when nothing follows, an error otherwise.
    pub fn damaged(&mut self, at_byte: u64, reason: String) -> Result<Step, LogError> {
        if self.take_bytes(1)?.is_empty() {
            return Ok(cut(
                at_byte,
                &format!("the last message is damaged: {reason}"),
            ));
        }
        Err(self.corrupt(at_byte, &reason))
    }

    /// For a message that reaches beyond the end: when another message lies within it, its length is
    /// damaged, and the file was not cut.
    fn cut_or_corrupt(&self, at_byte: u64, tail: &[u8]) -> Result<Step, LogError> {
        let another = (0..tail.len().saturating_sub(HEAD_BYTES))
            .step_by(8)
            .find(|&at| {
                tail[at..].starts_with(&CONTINUATION) && {
                    let bytes = length_at(tail, at);
                    let start = at + HEAD_BYTES;
                    bytes > 0
                        && start
                            .checked_add(bytes as usize)
                            .is_some_and(|end| end <= tail.len() && is_message(&tail[start..end]))
                }
            });
        match another {
            Some(_) => Err(self.corrupt(at_byte, "its length reaches beyond the end of the file")),
            None => Ok(cut(at_byte, "the last message is incomplete")),
        }
    }

    /// The error for damage at a byte.
    pub fn corrupt(&self, at_byte: u64, reason: &str) -> LogError {
        LogError::Corrupt {
            path: self.path.clone(),
            at_byte,
            reason: plain(reason),
        }
    }

    /// Up to `bytes` bytes; fewer at the end of the file. Allocates for bytes that are present, not for a
    /// claimed length.
    fn take_bytes(&mut self, bytes: u64) -> Result<Vec<u8>, LogError> {
        let mut taken = Vec::with_capacity(bytes.min(1 << 22) as usize);
        (&mut self.inner)
            .take(bytes)
            .read_to_end(&mut taken)
            .map_err(|source| self.read_error(source))?;
        self.at_byte += taken.len() as u64;
        Ok(taken)
    }

    fn read_error(&self, source: io::Error) -> LogError {
        LogError::Read {
            path: self.path.clone(),
            source,
        }
    }
}

impl<R: Read + Seek> MessageReader<R> {
    /// The next message, its body skipped.
    pub fn next_head(&mut self, file_bytes: u64) -> Result<Step, LogError> {
        self.step(|reader, _, bytes| {
            if reader.at_byte + bytes > file_bytes {
                return Ok(Err(Vec::new()));
            }
            reader
                .inner
                .seek_relative(bytes as i64)
                .map_err(|source| reader.read_error(source))?;
            reader.at_byte += bytes;
            Ok(Ok(Vec::new()))
        })
    }

    /// Length of the file; the position stays.
    pub fn file_bytes(&mut self) -> Result<u64, LogError> {
        let end = self
            .inner
            .seek(SeekFrom::End(0))
            .map_err(|source| self.read_error(source))?;
        self.go_to(self.at_byte)?;
        Ok(end)
    }

    pub fn go_to(&mut self, at_byte: u64) -> Result<(), LogError> {
        self.inner
            .seek(SeekFrom::Start(at_byte))
            .map_err(|source| self.read_error(source))?;
        self.at_byte = at_byte;
        Ok(())
    }
}

/// Whether bytes are the metadata of a message. Numbers in columns pass for a message without fields.
fn is_message(metadata: &[u8]) -> bool {
    root_as_message(metadata).is_ok_and(|message| {
        message.version() == MetadataVersion::V5
            && message.header_type() != MessageHeader::NONE
            && (0..=BODY_BYTES_MAX).contains(&message.bodyLength())
    })
}

/// The length of the message at `at`, from its head.
fn length_at(bytes: &[u8], at: usize) -> i32 {
    let length = bytes[at + CONTINUATION.len()..].first_chunk();
    length.map_or(0, |length| i32::from_le_bytes(*length))
}

fn cut(at_byte: u64, reason: &str) -> Step {
    Step::Cut(Truncation {
        at_byte,
        reason: plain(reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of a batch may have these bytes: -1, then small numbers, which are a table without fields.
    #[test]
    fn numbers_that_look_like_a_message_make_no_damage_of_a_cut() {
        let empty_table = [8, 0, 0, 0, 4, 0, 4, 0, 4, 0, 0, 0];
        assert!(root_as_message(&empty_table).is_ok());
        let mut tail = vec![0; 64];
        tail.extend(CONTINUATION);
        tail.extend((empty_table.len() as i32).to_le_bytes());
        tail.extend(empty_table);
        tail.extend([0; 64]);
        let reader = MessageReader::new(io::empty(), "log".into());
        assert!(matches!(reader.cut_or_corrupt(0, &tail), Ok(Step::Cut(_))));
    }
}
