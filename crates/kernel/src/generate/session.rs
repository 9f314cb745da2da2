//! A run of the generator: its start, its status, its end. The thread behind it is `run`.

use std::sync::Arc;

use parshall_core::workload::Packets;

use super::link::LinkWatch;
use super::report::{GeneratorProgress, Report};
use super::run::Run;
use super::team::Team;
use super::{BackendKind, GenerateError, Request};
use crate::session::{Control, Session, Startup};

/// A run of the generator. Dropped, it stops. Once it is asked to stop it sends no packet more, but for those that one of
/// several senders has still to send before what another has sent.
pub type Generator = Session<GeneratorProgress, Result<Report, GenerateError>>;

/// Starts to send.
///
/// # Errors
/// What is wrong with the request, the interface, or the kernel's side.
pub fn start(request: &Request, startup: &Startup) -> Result<Generator, GenerateError> {
    let workload = request.workload()?;
    if request.count == Some(0) {
        return Err(GenerateError::option("--count", "0", "1 packet or more"));
    }
    if request.departure_log.is_some() && workload.gaps.is_none() {
        let expected = "gaps or a rate beside it: without, no times are taken";
        return Err(GenerateError::option(
            "departure log",
            "of a run without gaps",
            expected,
        ));
    }
    let packets = Arc::new(Packets::of(&workload));
    let workload = Arc::new(workload);
    // From here on packets are sent.
    startup.open(|_| Ok::<_, GenerateError>(()))?;
    let team = Team::start(request, &workload, &packets)?;
    let link = LinkWatch::of(&request.interface, request.namespace.as_deref())?;
    let (count, backend) = (request.count, request.backend);
    let duration_ns = request.duration_ns;
    let departure_log = request.departure_log.clone();
    let send = move |control: &Control<GeneratorProgress>| {
        let run = Run {
            workload: &workload,
            packets: &packets,
            team,
            link,
            control,
            requested: count,
            duration_ns,
            departure_log,
        };
        match backend {
            BackendKind::Pktgen => run.wait(),
            _ => run.feed(),
        }
    };
    Ok(Session::start("parshall-plan", Arc::default(), [send])?)
}
