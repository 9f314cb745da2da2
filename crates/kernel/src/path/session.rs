//! A measurement of paths: its start, its status, its end. The thread behind it is `run`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use parshall_core::ledger::Ledger;
use parshall_core::output_file::{self, OutputError, Place};
use parshall_core::path_log::PathLogWriter;
use serde::Serialize;
use std::collections::BTreeMap;

use super::account::{Drops, Noise, StageTimes, reason_names};
use super::hooks::{PathHooks, Unavailable, check, enter};
use super::request::PathRequest;
use super::run::{ProbeCost, Run};
use super::PathError;
use crate::clock::realtime_offset_ns;
use crate::session::{self, Beginning, Instrument, Progress, Session, Status};

const THREAD: &str = "parshall-path";

/// Numbers of a measurement that runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PathProgress {
    /// Packets that began.
    pub packets: u64,
    /// Of these, ended and counted in histograms.
    pub ended: u64,
    /// Packets and reads that are lost to the log.
    pub lost: u64,
    /// Rows in the log.
    pub rows: u64,
    /// Bytes in the log.
    pub log_bytes: u64,
    /// Times of the stages so far, without their buckets.
    pub stages: Vec<StageTimes>,
}

impl Progress for PathProgress {
    fn read(&mut self) -> Self {
        self.clone()
    }
}

/// How a measurement ended.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The final account; the hooks are `packets` and `reads`.
    pub ledger: Ledger,
    /// What stopped it before it was asked to end.
    #[serde(serialize_with = "session::as_text")]
    pub failure: Option<PathError>,
    /// Stages that were measured.
    pub stages: Vec<&'static str>,
    /// What was asked for and is not there.
    pub unavailable: Vec<Unavailable>,
    /// Packets by code path.
    pub paths: BTreeMap<&'static str, u64>,
    /// Times of the stages.
    pub times: Vec<StageTimes>,
    /// Packets whose group found no histograms of its own.
    pub ungrouped: u64,
    /// Drops by reason.
    pub drops: Vec<Drops>,
    /// Interrupts and softirqs.
    pub noise: Vec<Noise>,
    /// Times of reads.
    pub reads: Vec<Noise>,
    /// Runs that the kernel skipped, because the program was running already, by program.
    pub missed: Vec<(String, u64)>,
    /// What the probes between first and last stage cost, by code path.
    pub probe_cost: Vec<ProbeCost>,
    /// Seconds during which the programs were attached.
    pub attached_s: f64,
    /// Windows in which they were.
    pub windows: u64,
}

/// A measurement that runs.
pub struct PathProfile {
    session: Session<PathProgress, Result<Summary, PathError>>,
}

impl PathProfile {
    /// Loads and attaches the programs, and starts to read.
    ///
    /// # Errors
    /// [`PathError`], before anything is left attached.
    pub fn start(request: PathRequest, beginning: &Beginning) -> Result<Self, PathError> {
        check(&request)?;
        // A thread of its own: the caller stays in its network namespace.
        let loaded = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                enter(request.netns.as_deref())?;
                PathHooks::load(&request)
            });
            load.join().map_err(|_| session::SessionError::Died { name: THREAD.into() })?
        });
        let hooks = loaded?;
        let offset_ns = realtime_offset_ns();
        let opened = beginning.open(|is_given_up| -> Result<_, PathError> {
            let Some(path) = &request.path else {
                return Ok(None);
            };
            let (file, place) = create(path, is_given_up)?;
            let reasons = serde_json::to_string(&reason_names()).unwrap_or_else(|_| "{}".into());
            let metadata = [
                ("environment", request.environment.clone()),
                ("options", request.options_text.clone()),
                ("clock", format!("{{\"clock\":\"CLOCK_REALTIME\",\"monotonic_offset_ns\":{offset_ns}}}")),
                ("drop_reasons", reasons),
            ];
            let writer = PathLogWriter::create(file, &metadata, offset_ns)
                .map_err(|error| super::run::cut(path, error))?;
            Ok(Some((writer, place)))
        })?;
        let mut run = Run::new(request, hooks)?;
        let mut place = None;
        if let Some((writer, its_place)) = opened {
            run.writer = Some(writer);
            place = its_place;
        }
        std::thread::scope(|scope| {
            let attach = scope.spawn(|| {
                enter(run.hooks.netns.as_deref())?;
                run.open_window()
            });
            attach.join().map_err(|_| session::SessionError::Died { name: THREAD.into() })?
        })?;
        if let Some(place) = &mut place {
            place.take()?;
        }
        run.started = Instant::now();
        let read = |control: &session::Control<PathProgress>| run.read(control);
        Ok(Self {
            session: Session::start(THREAD, Default::default(), [read])?,
        })
    }
}

impl Instrument for PathProfile {
    type Progress = PathProgress;
    type Summary = Summary;
    type Error = PathError;

    fn status(&self) -> Status<PathProgress> {
        self.session.status()
    }

    fn request_stop(&self) {
        self.session.request_stop();
    }

    fn stop(&self) -> Result<Summary, PathError> {
        self.session.stop_one()?
    }
}

/// The log is a stream, so a pipe will do. Standard output has its place already.
fn create(path: &Path, is_given_up: &mut dyn FnMut() -> bool) -> Result<(File, Option<Place>), PathError> {
    if path != Path::new("-") {
        let (file, place) = output_file::create(path, is_given_up)?;
        return Ok((file, Some(place)));
    }
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let stdout = stdout.map_err(|source| OutputError::Create {
        path: path.into(),
        source,
    })?;
    Ok((File::from(stdout), None))
}
