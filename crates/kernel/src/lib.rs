//! The kernel side of Parshall: what this host can do, the hooks, the ring and its readers, the
//! ledger's counters, the generator, and the relay that plays a link.

#[cfg(test)]
mod abi_layout;
mod bpf;
pub mod capability;
pub mod capture;
pub mod cgroup;
pub mod clock;
pub mod cost;
mod cpus;
pub mod filter;
mod free_memory;
pub mod generate;
mod heap;
pub mod hook_time;
mod libbpf_log;
pub mod net;
mod objects;
pub mod relay;
pub mod ring;
pub mod tcp;
