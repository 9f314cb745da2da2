//! The kernel side of Parshall: what this host can do, the hooks, the ring and its readers, the
//! ledger's counters, the generator, and the relay that plays a link.

#[cfg(test)]
mod abi_layout;
mod btf_enums;
pub mod build_info;
pub mod capability;
pub mod capture;
mod cgroup;
pub mod clock;
pub mod confinement;
mod cost;
mod cpus;
pub mod edge;
pub mod filter;
mod free_memory;
pub mod gateway;
pub mod generate;
mod grace;
mod heap;
pub mod hook_time;
mod log_file;
pub mod measurement_error;
pub mod net;
pub mod os_text;
pub mod path;
mod programs;
pub mod relay;
pub mod ring;
pub mod session;
pub mod tcp;

use std::sync::Arc;

use session::{AnyInstrument, Failure, Instrument, Startup};

/// Starts an instrument by its name and its request, a JSON object. The TCP log and the capture, which can do more than
/// every session, have classes of their own in `crates/py`.
///
/// # Errors
/// What is wrong with the request, or kept the instrument from starting.
pub fn start(
    name: &str,
    request: &str,
    startup: &Startup,
) -> Result<Arc<dyn AnyInstrument>, Failure> {
    fn any<T: Instrument>(started: Result<T, T::Error>) -> Result<Arc<dyn AnyInstrument>, Failure> {
        Ok(Arc::new(started?))
    }
    match name {
        "edge" => any(edge::Edges::start(&serde_json::from_str(request)?, startup)),
        "gateway" => any(gateway::start(serde_json::from_str(request)?, startup)),
        "generate" => any(generate::start(&serde_json::from_str(request)?, startup)),
        "path" => any(path::session::start(
            serde_json::from_str(request)?,
            startup,
        )),
        "relay" => any(relay::Relay::start(serde_json::from_str(request)?, startup)),
        // A mistake of the caller, not of a user.
        _ => Err(serde::de::Error::custom(format!("no instrument {name}")))
            .map_err(|error: serde_json::Error| error.into()),
    }
}
