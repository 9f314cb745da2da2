//! A TCP state log: its request, its start, its status, its end. The thread behind it is `run`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use parshall_core::abi::TCP_LANES_PER_CPU;
use parshall_core::ledger::Ledger;
use parshall_core::output_file::series::Rotation;
use parshall_core::tcp_log::{LogHeader, LogWriter};
use serde::Deserialize;

use super::account::RunningAccount;
use super::budget::Budget;
use super::collector::Collector;
use super::files::LogFiles;
use super::flows::FlowTable;
use super::hooks::TcpHooks;
use super::listeners::ListenerTable;
use super::options::TcpLogOptions;
use super::run::{Run, TICKS_WHILE_QUIET};
use super::status::{LogProgress, Summary, THREAD};
use crate::clock::{kernel_hz, monotonic_ns, realtime_ns, realtime_offset_ns};
use crate::measurement_error::MeasurementError;
use crate::ring::Preference;
use crate::session::{Control, Failure, Instrument, Session, SessionError, Startup, Status};
use crate::{cgroup, os_text};

/// The request for a log.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpLogRequest {
    /// Its file; `-` is standard output. What is there stays until logging has begun.
    #[serde(deserialize_with = "os_text::path")]
    pub path: PathBuf,
    /// JSON object of the host, for the head of the log.
    pub environment: String,
    /// What is logged.
    pub options: TcpLogOptions,
    /// JSON object of the options, for the head of the log.
    pub options_text: String,
    /// When a new file begins, and which stay.
    pub rotation: Rotation,
}

/// A log that is being written.
pub struct TcpLog {
    session: Session<LogProgress, Result<Summary, MeasurementError>>,
    /// `None` once stopped: then nothing of ours is in the kernel any more.
    hooks: Mutex<Option<Arc<Mutex<TcpHooks>>>>,
    account: Arc<Mutex<RunningAccount>>,
}

impl TcpLog {
    /// Loads and attaches the hooks and starts to write.
    ///
    /// A FIFO is waited for until somebody reads it, or the start is given up.
    ///
    /// # Errors
    /// [`MeasurementError`], before anything is left attached.
    pub fn start(request: TcpLogRequest, startup: &Startup) -> Result<Self, MeasurementError> {
        let options = request.options;
        let cgroup = cgroup::resolve(options.cgroup.as_deref())?;
        let mut hooks = TcpHooks::load(&options, cgroup.id)?;
        let offset_ns = realtime_offset_ns();
        let header = LogHeader {
            environment: request.environment,
            clock: format!("{{\"clock\":\"CLOCK_REALTIME\",\"monotonic_offset_ns\":{offset_ns}}}"),
            options: request.options_text,
            hz: kernel_hz(),
            part: None,
        };
        let path = request.path;
        let began_ns = realtime_ns() as i64;
        let rotates = request.rotation.is_on();
        let mut files = LogFiles::new(path.clone(), header, request.rotation)?;
        let (file, mut place) = startup.open(|is_given_up| -> Result<_, MeasurementError> {
            Ok(files.create(began_ns, is_given_up)?)
        })?;
        let writer = LogWriter::create(file, files.header())
            .map_err(|error| MeasurementError::log(&path, error))?
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
            files.make_room()?;
            files.take(place)?;
        }

        let hooks = Arc::new(Mutex::new(hooks));
        let account = Arc::default();
        let run = Run {
            account: Arc::clone(&account),
            path,
            files,
            started: Instant::now(),
            started_ns: monotonic_ns(),
            file_began: rotates.then(|| Ledger {
                until_time_ns: began_ns,
                ..Ledger::default()
            }),
            rows_of_former_files: 0,
            // The first one is not left out.
            quiet_ticks: TICKS_WHILE_QUIET,
            collector,
            listeners: ListenerTable::new(offset_ns),
            writer,
            hooks: Arc::clone(&hooks),
            cgroup_paths: cgroup::Paths::new(),
            lane_bytes: options.ring_bytes / TCP_LANES_PER_CPU as u64,
            thins: options.packets_per_log > 1 || options.on_change || options.budget.is_some(),
            timed_from: None,
            budget: options
                .budget
                .map(|share| Budget::new(share, began_ns as u64)),
            unseen_closes: 0,
        };
        let read = |control: &Control<LogProgress>| run.read(control);
        Ok(Self {
            session: Session::start(THREAD, Arc::default(), [read])?,
            hooks: Mutex::new(Some(hooks)),
            account,
        })
    }

    /// Attaches the hooks, or detaches them: then no program of ours runs for any packet.
    ///
    /// # Errors
    /// [`MeasurementError::Load`] or [`MeasurementError::Attach`] when the kernel refuses; [`MeasurementError::Session`] once stopped.
    pub fn switch(&self, on: bool) -> Result<(), MeasurementError> {
        let died = |_| SessionError::Died {
            name: THREAD.into(),
        };
        let hooks = self.hooks.lock().map_err(|_| died(()))?;
        let hooks = hooks.as_ref().ok_or(SessionError::Stopped)?;
        hooks.lock().map_err(|_| died(()))?.switch(on)
    }
}

impl Instrument for TcpLog {
    type Progress = LogProgress;
    type Summary = Summary;
    type Error = MeasurementError;

    fn status(&self) -> Status<LogProgress> {
        self.session.status()
    }

    fn request_stop(&self) {
        self.session.request_stop();
    }

    fn account(&self) -> Result<String, Failure> {
        let died = |_| SessionError::Died {
            name: THREAD.into(),
        };
        let account = self.account.lock().map_err(died);
        let account = account.map_err(MeasurementError::from)?;
        Ok(serde_json::to_string(&*account)?)
    }

    /// Detaches, and writes what is left. On an error the file is whole up to the last tick.
    fn stop(&self) -> Result<Summary, MeasurementError> {
        if let Ok(mut hooks) = self.hooks.lock() {
            *hooks = None;
        }
        self.session.stop_one()?
    }
}
