//! What needs `parshall-kernel`: the instruments, and what this host can do.

pub mod capability;
pub mod capture;
pub mod generate;
pub mod hook_time;
pub mod interface;
pub mod session;
pub mod tcp;
