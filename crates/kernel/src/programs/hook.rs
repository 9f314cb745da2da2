//! The places where programs run. What is attached goes with the process, too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::{NFPROTO_IPV4, NFPROTO_IPV6, NetfilterOpts, ProgramMut};
use libbpf_sys as sys;

use super::calls;

/// A place of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hook<'a> {
    /// What the program's own section names: a tracepoint.
    OfItsSection,
    /// The sockets below a control group, in the direction that the section names.
    Cgroup(BorrowedFd<'a>),
    /// A netfilter hook of the calling thread's network namespace, for IPv4 and IPv6.
    Netfilter { number: i32, is_first: bool },
    /// An interface, by its number in the calling thread's network namespace.
    Interface(u32, InterfaceHook),
}

/// A place at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterfaceHook {
    /// XDP in the driver, or behind it, as it can.
    Xdp,
    /// XDP in the driver.
    NativeXdp,
    /// XDP behind the driver.
    GenericXdp,
    /// Traffic control, before all other programs or behind them.
    Tcx { is_egress: bool, is_first: bool },
}

impl InterfaceHook {
    /// Its attach type and flags.
    fn of_kernel(self) -> (sys::bpf_attach_type, u32) {
        const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
        const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
        const BPF_F_BEFORE: u32 = 1 << 3;
        match self {
            Self::Xdp => (sys::BPF_XDP, 0),
            Self::NativeXdp => (sys::BPF_XDP, XDP_FLAGS_DRV_MODE),
            Self::GenericXdp => (sys::BPF_XDP, XDP_FLAGS_SKB_MODE),
            Self::Tcx {
                is_egress,
                is_first,
            } => (
                match is_egress {
                    true => sys::BPF_TCX_EGRESS,
                    false => sys::BPF_TCX_INGRESS,
                },
                if is_first { BPF_F_BEFORE } else { 0 },
            ),
        }
    }

    /// Attaches a program.
    pub fn attach(self, program: BorrowedFd<'_>, interface: u32) -> io::Result<OwnedFd> {
        let (attachment, flags) = self.of_kernel();
        let options = sys::bpf_link_create_opts {
            flags,
            ..Default::default()
        };
        calls::create_link(program, interface as i32, attachment, options)
    }
}

/// A program at its hook, until this is dropped. One that runs at that moment still finishes.
pub(crate) struct Link {
    /// Those of netfilter, one for each version of IP.
    _of_libbpf: Vec<libbpf_rs::Link>,
    _descriptor: Option<OwnedFd>,
}

impl Hook<'_> {
    pub(super) fn attach(self, program: &ProgramMut<'_>) -> io::Result<Link> {
        let of_libbpf = match self {
            Self::OfItsSection => vec![program.attach()],
            Self::Cgroup(group) => vec![program.attach_cgroup(group.as_raw_fd())],
            Self::Netfilter { number, is_first } => [NFPROTO_IPV4, NFPROTO_IPV6]
                .map(|family| attach_to_netfilter(program, family, number, is_first))
                .into(),
            Self::Interface(index, hook) => {
                let link = hook.attach(program.as_fd(), index)?;
                return Ok(Link {
                    _of_libbpf: Vec::new(),
                    _descriptor: Some(link),
                });
            }
        };
        let of_libbpf: libbpf_rs::Result<_> = of_libbpf.into_iter().collect();
        Ok(Link {
            _of_libbpf: of_libbpf.map_err(io::Error::other)?,
            _descriptor: None,
        })
    }
}

/// Attaches before or behind all others. The kernel gives each priority to one program, so a second measurement takes
/// the next one.
fn attach_to_netfilter(
    program: &ProgramMut<'_>,
    protocol_family: i32,
    hooknum: i32,
    is_first: bool,
) -> libbpf_rs::Result<libbpf_rs::Link> {
    const PRIORITIES: i32 = 16;
    let attach = |step: i32| {
        program.attach_netfilter_with_opts(NetfilterOpts {
            protocol_family,
            hooknum,
            // The ends of the range are refused.
            priority: match is_first {
                true => i32::MIN + step,
                false => i32::MAX - step,
            },
            ..NetfilterOpts::default()
        })
    };
    (2..=PRIORITIES).fold(attach(1), |attached, step| {
        attached.or_else(|_| attach(step))
    })
}
