//! Edges: places at interfaces where the time of every stamped packet is recorded, such as the two edges of a router.
//!
//! The programs store times in arrays by sequence number, which are read at the end. No thread reads while packets pass.

mod error;
mod program;
mod request;
mod session;

pub use error::EdgeError;
pub use program::EdgeAccounts;
pub use request::{EdgeHook, EdgeRequest, EdgesRequest};
pub use session::Edges;
