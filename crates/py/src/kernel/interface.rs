//! The interfaces and queue disciplines of the caller's network namespace.

use parshall_kernel::net::interface::{links, qdiscs};
use pyo3::prelude::*;

/// Name, kind, MTU in bytes and operational state.
type Interface = (String, Option<String>, Option<u32>, String);

/// All interfaces.
#[pyfunction]
pub fn list_interfaces() -> PyResult<Vec<Interface>> {
    let links = links()?.into_iter();
    Ok(links
        .map(|link| (link.name, link.kind, link.mtu_bytes, link.state))
        .collect())
}

/// Interface index, kind and parent's handle of each queue discipline.
#[pyfunction]
pub fn list_qdiscs() -> PyResult<Vec<(u32, String, u32)>> {
    let qdiscs = qdiscs()?.into_iter();
    Ok(qdiscs
        .map(|qdisc| (qdisc.interface_index, qdisc.kind, qdisc.parent))
        .collect())
}
