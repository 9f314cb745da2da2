//! What needs interfaces, tried in a network namespace of its own.
//!
//! A thread leaves for a namespace of its own; when it ends, the kernel removes the namespace
//! with everything in it, however the thread ended.

use std::io;
use std::os::fd::AsFd as _;
use std::thread;

use libbpf_sys as sys;

use super::program::Kind;
use super::{Cause, Privileges, Probe, privilege};
use crate::net::interface;
use crate::net::netlink::RouteSocket;
use crate::programs::InterfaceHook;

const NEEDED: [&str; 2] = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"];
const NEEDED_WITH_BPF: [&str; 3] = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_BPF"];
const NEEDED_TO_ATTACH: [&str; 2] = ["CAP_NET_ADMIN", "CAP_BPF"];
const QDISCS: [&str; 5] = ["netem", "tbf", "htb", "fq", "fq_codel"];
/// Not a name that the kernel would choose itself, which it does for the other end.
const VETH: &str = "probe-veth";
/// The loopback interface has this index in every namespace.
const LOOPBACK: u32 = 1;
const TCX: InterfaceHook = InterfaceHook::Tcx {
    is_egress: false,
    is_first: false,
};

/// Tries one thing, and returns a description of it.
type Attempt<'a> = &'a dyn Fn() -> io::Result<String>;

/// One probe for the namespace itself, and one for each thing that is tried inside.
pub(super) fn probes(privileges: &Privileges) -> Vec<Probe> {
    let privileges = *privileges;
    thread::Builder::new()
        .name("probe-namespace".into())
        .spawn(move || inside(&privileges))
        .ok()
        .and_then(|thread| thread.join().ok())
        .unwrap_or_else(|| {
            vec![Probe::cannot(
                "network.namespace",
                Cause::Broken,
                "the thread that was to try it could not be run",
                "look at the limits of processes and memory",
            )]
        })
}

/// Runs in the thread that gets a namespace of its own.
fn inside(privileges: &Privileges) -> Vec<Probe> {
    // SAFETY: only this thread's network namespace changes, and it ends with the probes.
    let left = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    let routes = left
        .map_err(io::Error::from)
        .and_then(|()| RouteSocket::open());
    // Without a namespace of its own nothing may be tried: it would be the host's interfaces.
    let refused = |error: &io::Error| match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(error.to_string()),
    };
    let tried = |attempt: &dyn Fn(&RouteSocket) -> io::Result<String>| match &routes {
        Ok(routes) => attempt(routes),
        Err(error) => Err(refused(error)),
    };
    let probe = |name: &str, needed: &[&str], remedy: &str, outcome| {
        Probe::of_attempt(name, outcome, privileges, needed, remedy)
    };

    let mut probes = vec![
        probe(
            "network.namespace",
            &NEEDED,
            "a kernel with CONFIG_NET_NS=y",
            tried(&|_| Ok("made".into())),
        ),
        // Two ends, of which the first carries the XDP probe below.
        probe(
            "link.veth",
            &NEEDED,
            "a kernel with CONFIG_VETH",
            tried(&|routes| routes.make_link(VETH, "veth").map(|()| "made".into())),
        ),
    ];
    for kind in ["bridge", "ifb"] {
        let outcome = tried(&|routes| routes.make_link(kind, kind).map(|()| "made".into()));
        let remedy = format!("load the module {kind}, or use a kernel that has it");
        probes.push(probe(&format!("link.{kind}"), &NEEDED, &remedy, outcome));
    }
    let attachments: [(&str, Attempt, &str); 4] = [
        (
            "attach.xdp_native",
            &xdp_native,
            "Linux 4.19 or newer; without it the slower generic XDP or tcx serves",
        ),
        (
            "attach.xdp_generic",
            &|| attached(&Kind::XDP, InterfaceHook::GenericXdp, LOOPBACK, "lo"),
            "Linux 5.9 or newer",
        ),
        (
            "attach.tcx",
            &|| attached(&Kind::TCX, TCX, LOOPBACK, "lo"),
            "Linux 6.6 or newer",
        ),
        (
            "attach.netfilter",
            &netfilter,
            "Linux 6.4 or newer with CONFIG_NETFILTER_BPF_LINK=y",
        ),
    ];
    // Commands attach to interfaces that are there, and need no namespace.
    let may_attach = privileges.missing(&NEEDED_TO_ATTACH).is_empty();
    for (name, attempt, remedy) in attachments {
        probes.push(match (routes.is_err(), may_attach) {
            (true, true) => untried(name, privileges),
            // What is needed to try is no need of the commands.
            (_, false) => probe(name, &NEEDED_TO_ATTACH, remedy, tried(&|_| attempt())),
            (false, true) => probe(name, &NEEDED_WITH_BPF, remedy, tried(&|_| attempt())),
        });
    }
    for kind in QDISCS {
        let outcome = tried(&|routes| qdisc(routes, kind));
        probes.push(probe(
            &format!("qdisc.{kind}"),
            &NEEDED,
            qdisc_remedy(kind),
            outcome,
        ));
    }
    probes
}

/// A hook that was not tried, although this process has the capabilities that attaching needs.
fn untried(name: &str, privileges: &Privileges) -> Probe {
    Probe::degraded(
        name,
        Cause::Forbidden,
        "not tried, which needs a network namespace of its own; this process has the capabilities to attach",
        privilege::remedy(&privileges.missing(&NEEDED)),
    )
}

fn qdisc_remedy(kind: &str) -> &'static str {
    match kind {
        "netem" => "load sch_netem; without it Parshall's own relay plays delay, jitter and loss",
        "tbf" => "load sch_tbf; without it htb shapes the rate",
        "htb" => "load sch_htb; without it tbf shapes the rate",
        _ => "load the module; only experiments with this queue need it",
    }
}

fn qdisc(routes: &RouteSocket, kind: &str) -> io::Result<String> {
    match routes.make_qdisc(LOOPBACK, kind) {
        Ok(()) => Ok("put on an interface".into()),
        // The kernel returns ENOENT for an unknown kind, and EINVAL for a known one that needs options.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok("known to the kernel, which asks for its options".into())
        }
        Err(error) => Err(error),
    }
}

fn attached(kind: &Kind, hook: InterfaceHook, index: u32, name: &str) -> io::Result<String> {
    drop(hook.attach(kind.load()?.as_fd(), index)?);
    Ok(format!("attached to {name}"))
}

fn xdp_native() -> io::Result<String> {
    attached(
        &Kind::XDP,
        InterfaceHook::NativeXdp,
        interface::index(VETH)?,
        "a veth in the driver",
    )
}

fn netfilter() -> io::Result<String> {
    let program = Kind::NETFILTER.load()?;
    let mut options = sys::bpf_link_create_opts::default();
    options.__bindgen_anon_1.netfilter = sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_5 {
        pf: libc::NFPROTO_IPV4 as u32,
        hooknum: libc::NF_INET_PRE_ROUTING as u32,
        priority: -128,
        flags: 0,
    };
    drop(Kind::NETFILTER.link(&program, 0, options)?);
    Ok("attached before routing".into())
}
