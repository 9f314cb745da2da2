//! Packet filters: expressions become classic programs by libpcap, `parshall_core::filter` merges
//! them, and what comes out is loaded here.

mod expression;
mod libpcap;
mod live_words;
mod load;
mod mistake;
mod pieces;
mod trial;
mod words;

pub use expression::{Expression, ExpressionError};

pub(crate) use libpcap::version as libpcap_version;
pub use live_words::WithoutLiveWords;
pub use load::{LoadError, Maps, load};
pub use trial::{Trial, try_out};
