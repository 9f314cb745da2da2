//! `_native.router_passages`: see `parshall_core::router`. Times are in nanoseconds.

use parshall_core::router::{Drawn, Router};
use pyo3::prelude::*;

/// What is the same for all packets, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Same {
    link_ns: f64,
    transfer_ns: f64,
    sender_batch: usize,
    list_packets: usize,
    between_ns: f64,
    look_ns: f64,
    poll_packets: usize,
    visit_ns: f64,
    queue_packets: usize,
}

/// What was drawn for each packet gives when it is sent, and when it leaves; NaN: it is lost.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one for each column")]
pub fn router_passages(
    py: Python<'_>,
    same: Same,
    due: Vec<f64>,
    service: Vec<f64>,
    wake: Vec<f64>,
    pause: Vec<f64>,
    stalls: Vec<(f64, f64)>,
    after_idle: Vec<(f64, f64)>,
) -> (Vec<f64>, Vec<f64>) {
    let router = Router {
        link: same.link_ns,
        transfer: same.transfer_ns,
        sender_batch: same.sender_batch,
        list: same.list_packets,
        between: same.between_ns,
        look: same.look_ns,
        poll: same.poll_packets,
        visit: same.visit_ns,
        places: same.queue_packets,
    };
    let drawn = Drawn {
        due: &due,
        service: &service,
        wake: &wake,
        pause: &pause,
        stalls: &stalls,
        after_idle: &after_idle,
    };
    let found = py.detach(|| router.passages(&drawn));
    (found.sent, found.left)
}
