//! The kernel side of Parshall: what this host can do, the hooks, the ring and its readers, the
//! ledger's counters, the generator, and the relay that plays a link.

#[cfg(test)]
mod abi_layout;
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
mod objects;
mod os_text;
pub mod relay;
pub mod ring;
mod route_netlink;
pub mod session;
pub mod tcp;
