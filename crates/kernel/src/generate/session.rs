//! A run of the generator from start to account.

use super::link::LinkWatch;
use super::report::{Progress, Report};
use super::run::{Board, Run};
use super::team::Team;
use super::{BackendKind, GenerateError, Request};
use parshall_core::workload::Packets;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A run. Dropped, it stops.
pub struct Session {
    board: Arc<Board>,
    feeder: Mutex<Option<JoinHandle<Result<Report, GenerateError>>>>,
}

impl Session {
    /// Starts to send.
    ///
    /// # Errors
    /// What is wrong with the request, the interface, or the kernel's side.
    pub fn start(request: &Request) -> Result<Self, GenerateError> {
        let workload = request.workload()?;
        if request.count == Some(0) {
            return Err(GenerateError::Option {
                option: "--count",
                found: "0".into(),
                expected: "1 packet or more".into(),
            });
        }
        let packets = Arc::new(Packets::of(&workload));
        let workload = Arc::new(workload);
        let team = Team::start(request, &workload, &packets)?;
        let link = LinkWatch::of(&request.interface, request.namespace.as_deref())?;
        let board = Arc::new(Board::default());
        let feeder = {
            let board = Arc::clone(&board);
            let (count, backend) = (request.count, request.backend);
            let duration_ns = request.duration_ns;
            std::thread::Builder::new()
                .name("parshall-plan".into())
                .spawn(move || {
                    let run = Run {
                        workload: &workload,
                        packets: &packets,
                        team,
                        link,
                        board: &board,
                        asked: count,
                        duration_ns,
                    };
                    let result = match backend {
                        BackendKind::Pktgen => run.wait(),
                        _ => run.feed(),
                    };
                    board.has_ended.store(true, Ordering::Release);
                    result
                })
                .map_err(|error| GenerateError::Thread {
                    reason: format!("{error}; the host has too many threads"),
                })?
        };
        Ok(Self {
            board,
            feeder: Mutex::new(Some(feeder)),
        })
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress {
            packets: self.board.packets.load(Ordering::Acquire),
            bytes: self.board.bytes.load(Ordering::Acquire),
            has_ended: self.board.has_ended.load(Ordering::Acquire),
        }
    }

    /// No packet more, but for those that one of several senders has still to send before what another has sent.
    pub fn stop(&self) {
        self.board.should_stop.store(true, Ordering::Release);
    }

    /// The account; waits for the end.
    ///
    /// # Errors
    /// What went wrong on the way.
    pub fn finish(&self) -> Result<Report, GenerateError> {
        let gone = |reason: &str| GenerateError::Thread {
            reason: reason.into(),
        };
        let feeder = self
            .feeder
            .lock()
            .map_err(|_| gone("died; please report this"))?
            .take()
            .ok_or_else(|| gone("its account was already taken"))?;
        feeder
            .join()
            .unwrap_or_else(|_| Err(gone("died; please report this")))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
        if let Ok(mut feeder) = self.feeder.lock()
            && let Some(feeder) = feeder.take()
        {
            let _ = feeder.join();
        }
    }
}
