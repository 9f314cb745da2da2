//! A measurement of paths: its start, its status, its end. The thread behind it is `run`.

use std::sync::Arc;
use std::time::Instant;

use parshall_core::path_log::PathLogWriter;

use super::drop_reasons::DropReasons;
use super::hooks::PathHooks;
use super::request::{PathRequest, enter};
use super::run::Run;
use super::status::{PathProgress, Summary};
use crate::clock::realtime_offset_ns;
use crate::log_file;
use crate::measurement_error::MeasurementError;
use crate::session::{Control, Session, SessionError, Startup};

const THREAD: &str = "parshall-path";

/// A measurement that runs.
pub type PathProfile = Session<PathProgress, Result<Summary, MeasurementError>>;

/// Loads and attaches the programs, and starts to read.
///
/// # Errors
/// [`MeasurementError`], before anything is left attached.
pub fn start(request: PathRequest, startup: &Startup) -> Result<PathProfile, MeasurementError> {
    request.check()?;
    // A thread of its own: the caller stays in its network namespace.
    let loaded = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            enter(request.netns.as_deref())?;
            PathHooks::load(&request)
        });
        load.join().map_err(|_| SessionError::Died {
            name: THREAD.into(),
        })?
    });
    let hooks = loaded?;
    let offset_ns = realtime_offset_ns();
    let opened = startup.open(|is_given_up| -> Result<_, MeasurementError> {
        let Some(path) = &request.path else {
            return Ok(None);
        };
        let (file, place) = log_file::create(path, is_given_up)?;
        let reasons = DropReasons::of_this_kernel();
        let json = |names| serde_json::to_string(names).unwrap_or_else(|_| "{}".into());
        let metadata = [
            ("environment", request.environment.clone()),
            ("options", request.options_text.clone()),
            (
                "clock",
                format!("{{\"clock\":\"CLOCK_REALTIME\",\"monotonic_offset_ns\":{offset_ns}}}"),
            ),
            ("drop_reasons", json(&reasons.names)),
            ("drop_subsystems", json(&reasons.subsystems)),
        ];
        let writer = PathLogWriter::create(file, &metadata, offset_ns)
            .map_err(|error| MeasurementError::log(path, error))?;
        Ok(Some((writer, place)))
    })?;
    let mut run = Run::new(request, hooks);
    let mut place = None;
    if let Some((writer, its_place)) = opened {
        run.writer = Some(writer);
        place = its_place;
    }
    std::thread::scope(|scope| {
        let attach = scope.spawn(|| {
            enter(run.hooks.netns.as_deref())?;
            run.begin()
        });
        attach.join().map_err(|_| SessionError::Died {
            name: THREAD.into(),
        })?
    })?;
    if let Some(place) = &mut place {
        place.take()?;
    }
    run.started = Instant::now();
    let read = |control: &Control<PathProgress>| run.read(control);
    Ok(Session::start(THREAD, Arc::default(), [read])?)
}
