//! A security gateway in user space: takes packets from a TUN device, encrypts them, and sends them as UDP datagrams to
//! its peer, which decrypts them and writes them to its own TUN device.
//!
//! It is a workload for measurements, without key exchange: both ends get one fresh secret for each session.

mod cipher;
mod error;
mod ledger;
mod replay;
mod request;
mod session;
mod tun;
mod worker;

pub use cipher::{Cipher, OVERHEAD_BYTES};
pub use error::GatewayError;
pub use ledger::GatewayLedger;
pub use request::GatewayRequest;
pub use session::{Gateway, start};
