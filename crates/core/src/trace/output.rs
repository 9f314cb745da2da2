//! Outputs of capture files, which stay readable when the disk is full.

use super::error::TraceError;
use crate::output_file::{self, OutputError, Place};
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

/// Something that takes bytes at its end.
pub trait Sink: Send {
    /// As [`io::Write::write`].
    ///
    /// # Errors
    /// As [`io::Write::write`].
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Cuts it to `length_bytes`, and continues there. False when it cannot be cut (a pipe).
    ///
    /// # Errors
    /// When it could be cut, but that failed.
    fn cut(&mut self, length_bytes: u64) -> io::Result<bool>;

    /// Makes the next write begin at `position_bytes`, over the bytes there. False when it cannot (a pipe).
    ///
    /// # Errors
    /// When it could, but that failed.
    fn overwrite_from(&mut self, position_bytes: u64) -> io::Result<bool>;

    /// Whether a reader may follow live, so that packets should not stay in a buffer.
    fn is_live(&self) -> bool;
}

/// A file, a pipe or a device.
struct FileSink {
    file: File,
    /// The position of our first byte, if it is a file that can be cut.
    start: Option<u64>,
    /// We opened it, and not for appending.
    is_own: bool,
}

impl FileSink {
    fn new(mut file: File, is_own: bool) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let start = if metadata.is_file() {
            let position = file.stream_position()?;
            // Opened to append (`>> all.pcapng`), the position is 0 until the first write.
            Some(if position == 0 {
                metadata.len()
            } else {
                position
            })
        } else {
            None
        };
        Ok(Self {
            file,
            start,
            is_own,
        })
    }
}

impl Sink for FileSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn cut(&mut self, length_bytes: u64) -> io::Result<bool> {
        if let Some(start) = self.start {
            self.file.set_len(start + length_bytes)?;
            self.file.seek(SeekFrom::Start(start + length_bytes))?;
        }
        Ok(self.start.is_some())
    }

    fn overwrite_from(&mut self, position_bytes: u64) -> io::Result<bool> {
        match self.start {
            Some(start) if self.is_own => {
                self.file.seek(SeekFrom::Start(start + position_bytes))?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn is_live(&self) -> bool {
        self.start.is_none()
    }
}

/// An output and its position.
pub(super) struct Output {
    sink: Box<dyn Sink>,
    name: String,
    position_bytes: u64,
    /// It contains a part of a block that cannot be removed, and takes no more.
    is_broken: bool,
    /// The last piece needs an ending behind it.
    is_open: bool,
    /// It has that ending.
    is_ended: bool,
    /// The previous piece needs its ending first.
    owes_ending: bool,
}

impl Output {
    /// Opens a file for writing, see [`output_file::create`].
    pub(super) fn file(
        path: &Path,
        is_stopping: &mut dyn FnMut() -> bool,
    ) -> Result<(Self, Place), TraceError> {
        let (file, place) = output_file::create(path, is_stopping)?;
        let is_appended = rustix::fs::fcntl_getfl(&file)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::APPEND));
        Ok((Self::of(path, FileSink::new(file, !is_appended))?, place))
    }

    /// Standard output: a pipe, a terminal or a file.
    pub(super) fn stdout() -> Result<Self, TraceError> {
        let stdout = io::stdout().as_fd().try_clone_to_owned();
        let sink = stdout.and_then(|stdout| FileSink::new(File::from(stdout), false));
        Self::of(Path::new("standard output"), sink)
    }

    fn of(path: &Path, sink: io::Result<FileSink>) -> Result<Self, TraceError> {
        let sink = sink.map_err(|source| OutputError::Create {
            path: path.into(),
            source,
        })?;
        Ok(Self::new(Box::new(sink), path.display().to_string()))
    }

    pub(super) fn new(sink: Box<dyn Sink>, name: String) -> Self {
        Self {
            sink,
            name,
            position_bytes: 0,
            is_broken: false,
            is_open: false,
            is_ended: false,
            owes_ending: false,
        }
    }

    pub(super) fn position_bytes(&self) -> u64 {
        self.position_bytes
    }

    pub(super) fn is_live(&self) -> bool {
        self.sink.is_live()
    }

    /// Writes all of `piece`, and behind it `ending`, which the next piece overwrites: the file is whole in
    /// between. If the output cannot be overwritten, [`Output::end`] writes the ending.
    ///
    /// # Errors
    /// As [`Output::put`]. The file has none of the piece then, and the ending of the previous one: the next
    /// piece must be independent.
    pub(super) fn put_piece(&mut self, piece: &[u8], ending: &[u8]) -> Result<(), TraceError> {
        let overwrites = matches!(self.sink.overwrite_from(self.position_bytes), Ok(true));
        let before = if self.owes_ending { ending } else { &[] };
        let behind = if overwrites { ending } else { &[] };
        let whole = [before, piece, behind].concat();
        let (_, result) = self.put(&whole, |_| 0);
        if result.is_err() {
            if self.is_open || self.owes_ending {
                self.owes_ending = self.put(ending, |_| 0).1.is_err();
            }
            self.is_open = false;
            return result;
        }
        self.owes_ending = false;
        self.is_open = !ending.is_empty();
        self.position_bytes -= behind.len() as u64;
        self.is_ended = overwrites;
        if !matches!(self.sink.overwrite_from(self.position_bytes), Ok(true)) && overwrites {
            self.is_broken = true;
        }
        Ok(())
    }

    /// Ends a file whose last piece has no ending behind it.
    ///
    /// # Errors
    /// As [`Output::put`].
    pub(super) fn end(&mut self, ending: &[u8]) -> Result<(), TraceError> {
        match self.owes_ending || self.is_open && !self.is_ended {
            true => self.put(ending, |_| 0).1,
            false => {
                // It is behind the last piece already.
                self.position_bytes += if self.is_open { ending.len() as u64 } else { 0 };
                Ok(())
            }
        }
    }

    /// Writes all of `bytes`, or a part after a failure: `boundary` maps the number of bytes written before
    /// it to the number that may stay. Returns that number and the failure.
    pub(super) fn put(
        &mut self,
        bytes: &[u8],
        boundary: impl FnOnce(usize) -> usize,
    ) -> (usize, Result<(), TraceError>) {
        let mut done = 0;
        let source = loop {
            if self.is_broken {
                break io::ErrorKind::BrokenPipe.into();
            }
            if done == bytes.len() {
                self.position_bytes += done as u64;
                return (done, Ok(()));
            }
            match self.sink.write(&bytes[done..]) {
                Ok(0) => break io::ErrorKind::WriteZero.into(),
                Ok(taken) => done += taken,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        let stays = boundary(done).min(done);
        let kept = match self.sink.cut(self.position_bytes + stays as u64) {
            Ok(true) => stays,
            Ok(false) | Err(_) => {
                self.is_broken = true;
                done
            }
        };
        self.position_bytes += kept as u64;
        (kept, Err(self.error(source)))
    }

    fn error(&self, source: io::Error) -> TraceError {
        let (path, written_bytes) = (self.name.clone(), self.position_bytes);
        if source.kind() == io::ErrorKind::BrokenPipe {
            TraceError::ReaderGone {
                path,
                written_bytes,
            }
        } else {
            TraceError::Write {
                path,
                written_bytes,
                source,
            }
        }
    }
}
