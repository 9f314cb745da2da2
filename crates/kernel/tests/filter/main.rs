//! Merged filters against libpcap's own interpreter, in user space and in the kernel.

mod classic_programs;
mod expressions;
mod frames;
mod fuzz;
mod kernel;
mod long_lists;
mod memory;
mod same_verdict;
mod socket_view;
mod traffic;
mod unfiltered;
mod witness;
