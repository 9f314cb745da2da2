//! The gateway as its user sees it: start, status, end.

use std::sync::Arc;
use std::sync::mpsc::channel;

use super::worker::Worker;
use super::{GatewayError, GatewayLedger, GatewayRequest};
use crate::session::{Beginning, Control, Instrument, Session, SessionError, Status};

const THREAD: &str = "parshall-gate";

/// A running gateway. Dropped, it stops, and its TUN device is removed.
pub struct Gateway(Session<GatewayLedger, Result<GatewayLedger, GatewayError>>);

impl Gateway {
    /// Starts the thread, and returns when the TUN device is there.
    ///
    /// # Errors
    /// What is wrong with the request, or what the kernel refuses.
    pub fn start(request: GatewayRequest, beginning: &Beginning) -> Result<Self, GatewayError> {
        request.addresses()?;
        beginning.open(|_| Ok::<_, GatewayError>(()))?;
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
        let gateway = Self(Session::start(THREAD, Arc::default(), [work])?);
        let died = |_| SessionError::Died {
            name: THREAD.into(),
        };
        started.recv().map_err(died)??;
        Ok(gateway)
    }
}

impl Instrument for Gateway {
    type Progress = GatewayLedger;
    type Summary = GatewayLedger;
    type Error = GatewayError;

    fn status(&self) -> Status<GatewayLedger> {
        self.0.status()
    }

    fn request_stop(&self) {
        self.0.request_stop();
    }

    fn stop(&self) -> Result<GatewayLedger, GatewayError> {
        self.0.stop_one()?
    }
}
