//! Interfaces and the sockets below IP, one wrapper around each: safe to the rest of the crate.
//!
//! [`interface`] looks interfaces up, [`netlink`] asks route netlink about them and watches them, [`ethtool`] asks for
//! their offloads. [`packet_socket`] is
//! `AF_PACKET`, with what it receives in [`packet_receive`]; [`af_xdp`] is `AF_XDP`. [`mapping`] is memory shared with
//! the kernel, [`socket`] what all sockets have.

pub(crate) mod af_xdp;
pub mod ethtool;
pub mod interface;
pub mod mapping;
pub(crate) mod netlink;
pub(crate) mod packet_receive;
pub mod packet_socket;
pub mod socket;
