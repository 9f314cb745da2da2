//! The gateway as its user sees it: start, status, end.

use std::sync::Arc;
use std::sync::mpsc::channel;

use super::worker::Worker;
use super::{GatewayError, GatewayLedger, GatewayRequest};
use crate::session::{Control, Session, SessionError, Startup};

const THREAD: &str = "parshall-gate";

/// A running gateway. Dropped, it stops, and its TUN device is removed.
pub type Gateway = Session<GatewayLedger, Result<GatewayLedger, GatewayError>>;

/// Starts the thread, and returns when the TUN device is there.
///
/// # Errors
/// What is wrong with the request, or what the kernel refuses.
pub fn start(request: GatewayRequest, startup: &Startup) -> Result<Gateway, GatewayError> {
    request.addresses()?;
    startup.open(|_| Ok::<_, GatewayError>(()))?;
    let (ready, started) = channel();
    let work = move |control: &Control<GatewayLedger>| {
        // The namespace is the thread's own.
        let mut worker = match Worker::prepare(request) {
            Ok(worker) => worker,
            Err(error) => {
                let _ = ready.send(Err(error));
                return Ok(GatewayLedger::default());
            }
        };
        let _ = ready.send(Ok(()));
        worker.run(control)?;
        worker.finish()
    };
    let gateway = Session::start(THREAD, Arc::default(), [work])?;
    let died = |_| SessionError::Died {
        name: THREAD.into(),
    };
    started.recv().map_err(died)??;
    Ok(gateway)
}
