//! Merged filters against libpcap's own interpreter, in user space and in the kernel.

mod expressions;
mod frames;
mod kernel;
mod same_verdict;
