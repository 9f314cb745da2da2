//! The edges as their user sees them: start, status, end.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::program::{Edge, EdgeAccounts};
use super::{EdgeError, EdgesRequest};
use crate::session::{Instrument, SessionError, Startup, Status};

/// Edges that record. Dropped, they are detached.
pub struct Edges(Mutex<Option<Vec<Edge>>>);

/// The accounts of all edges, in the order of the request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EdgesSummary {
    /// One for each edge.
    pub edges: Vec<EdgeAccounts>,
}

impl Edges {
    /// Attaches all programs.
    ///
    /// # Errors
    /// What is wrong with an interface, or what the kernel refuses. Programs that were attached are detached.
    pub fn start(request: &EdgesRequest, startup: &Startup) -> Result<Self, EdgeError> {
        startup.open(|_| Ok::<_, EdgeError>(()))?;
        let edges: Result<_, _> = request.edges.iter().map(Edge::start).collect();
        Ok(Self(Mutex::new(Some(edges?))))
    }
}

impl Instrument for Edges {
    type Progress = EdgesSummary;
    type Summary = EdgesSummary;
    type Error = EdgeError;

    fn status(&self) -> Status<EdgesSummary> {
        let edges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let accounts = edges.iter().flatten().map(Edge::accounts).collect();
        Status {
            has_ended: edges.is_none(),
            progress: EdgesSummary { edges: accounts },
        }
    }

    /// Edges have no thread that could end: [`Edges::stop`] detaches them.
    fn request_stop(&self) {}

    fn stop(&self) -> Result<EdgesSummary, EdgeError> {
        let edges = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let edges = edges.ok_or(SessionError::Stopped)?;
        let accounts: Result<_, _> = edges.into_iter().map(Edge::finish).collect();
        Ok(EdgesSummary { edges: accounts? })
    }
}
