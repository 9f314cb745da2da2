//! A TCP state log: how it begins, where it stands, how it is switched off and ends. The thread behind it
//! is `run`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use parshall_core::abi::TCP_LANES_PER_CPU;
use parshall_core::ledger::Ledger;
use parshall_core::output_file::{self, OutputError, Place};
use parshall_core::tcp_log::{LogHeader, LogWriter};

use super::TcpError;
use super::collector::Collector;
use super::flows::FlowTable;
use super::hooks::TcpHooks;
use super::options::TcpLogOptions;
use super::run::{Run, cut};
use crate::cgroup;
use crate::clock::{kernel_hz, realtime_offset_ns};
use crate::ring::Preference;

/// Where a log stands.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// State records taken so far.
    pub records: u64,
    /// Flows seen so far.
    pub flows: u64,
    /// Records overwritten so far, by the lanes' sequence numbers.
    pub overwritten: u64,
    /// Bytes in the file.
    pub log_bytes: u64,
    /// Whether the reader has stopped, by request or by an error.
    pub has_ended: bool,
}

/// How a log ended.
#[derive(Debug)]
pub struct Summary {
    /// The final account.
    pub ledger: Ledger,
    /// Flows in the log.
    pub flows: u64,
    /// What stopped the log before it was asked to end.
    pub failure: Option<TcpError>,
}

/// A log that is being made.
pub struct TcpLog {
    thread: Option<JoinHandle<Result<Summary, TcpError>>>,
    stop: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    /// `None` once stopped: then nothing of ours is in the kernel any more.
    control: Option<Arc<Mutex<TcpHooks>>>,
}

impl TcpLog {
    /// Loads and attaches the hooks and starts to write to `path`.
    ///
    /// A `path` of `-` is standard output. What is there stays until all has begun. A FIFO is waited for until somebody
    /// reads it, or `is_stopping` says yes. `environment` and `options_text` are JSON objects for the head of the log.
    ///
    /// # Errors
    /// [`TcpError`], before anything is left attached.
    pub fn start(
        options: &TcpLogOptions,
        path: &Path,
        environment: String,
        options_text: String,
        is_stopping: &mut dyn FnMut() -> bool,
    ) -> Result<Self, TcpError> {
        let cgroup = cgroup::resolve(options.cgroup.as_deref())?;
        let mut hooks = TcpHooks::load(options, cgroup.id)?;
        let offset_ns = realtime_offset_ns();
        let header = LogHeader {
            environment,
            clock: format!("{{\"clock\":\"CLOCK_REALTIME\",\"monotonic_offset_ns\":{offset_ns}}}"),
            options: options_text,
            hz: kernel_hz(),
        };
        let (file, mut place) = create(path, is_stopping)?;
        let writer = LogWriter::create(file, &header)
            .map_err(|error| cut(path, error))?
            .with_compression(options.compression);
        let waits = options.preference == Preference::SlowReader;
        let packet_lanes = hooks.packet_lanes.iter().cloned().zip(
            hooks
                .packet_readers
                .iter()
                .cloned()
                .map(|readers| waits.then_some(readers)),
        );
        let flow_lanes = hooks.flow_lanes.iter().cloned().map(|lane| (lane, None));
        let collector = Collector::new(packet_lanes.chain(flow_lanes), FlowTable::new(offset_ns))?;
        hooks.attach(&cgroup.path, options.directions)?;
        if let Some(place) = &mut place {
            place.take()?;
        }

        let stop = Arc::new(AtomicBool::new(false));
        let status = Arc::new(Mutex::new(Status::default()));
        let control = Arc::new(Mutex::new(hooks));
        let run = Run {
            path: path.into(),
            started: Instant::now(),
            collector,
            writer,
            hooks: Arc::clone(&control),
            status: Arc::clone(&status),
            cgroup_paths: cgroup::Paths::new(),
            lane_bytes: options.ring_bytes / TCP_LANES_PER_CPU as u64,
            thins: options.packets_per_log > 1 || options.on_change,
            unseen_closes: 0,
        };
        let stop_seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("parshall-tcp".into())
            .spawn(move || run.read(&stop_seen))
            .map_err(|error| TcpError::Thread {
                reason: error.to_string(),
            })?;
        Ok(Self {
            thread: Some(thread),
            stop,
            status,
            control: Some(control),
        })
    }

    /// Where the log stands.
    pub fn status(&self) -> Status {
        let mut status = self
            .status
            .lock()
            .map(|status| status.clone())
            .unwrap_or_default();
        status.has_ended |= self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        status
    }

    /// Lets the hooks observe, or not; switched off, no packet meets a program of ours.
    ///
    /// # Errors
    /// [`TcpError::Load`] or [`TcpError::Attach`] when the kernel refuses.
    pub fn switch(&self, on: bool) -> Result<(), TcpError> {
        match self.control.as_ref().map(|hooks| hooks.lock()) {
            Some(Ok(mut hooks)) => hooks.switch(on),
            _ => Err(TcpError::Thread {
                reason: "the log has been stopped, or its reader has died".into(),
            }),
        }
    }

    /// Detaches, writes what is left, and gives the account.
    ///
    /// # Errors
    /// [`TcpError`] when the log could not be ended; its file is whole up to the last tick.
    pub fn stop(&mut self) -> Result<Summary, TcpError> {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take().ok_or_else(|| TcpError::Thread {
            reason: "the log has been stopped already".into(),
        })?;
        self.control = None;
        thread.join().map_err(|_| TcpError::Thread {
            reason: "it died; the file is whole up to its last tick".into(),
        })?
    }
}

impl Drop for TcpLog {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // The caller went away without asking for the account; the file still gets it.
            let _ = self.stop();
        }
    }
}

/// The log: never anything but a stream, so a pipe will do. Standard output has its place already.
fn create(
    path: &Path,
    is_stopping: &mut dyn FnMut() -> bool,
) -> Result<(File, Option<Place>), TcpError> {
    if path != Path::new("-") {
        let (file, place) = output_file::create(path, is_stopping)?;
        return Ok((file, Some(place)));
    }
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let stdout = stdout.map_err(|source| OutputError::Create {
        path: path.into(),
        source,
    })?;
    Ok((File::from(stdout), None))
}
