//! Probes of the kinds of programs: each loads a program of two instructions, and some attach it
//! for an instant.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::Path;
use std::ptr;

use libbpf_rs::ProgramType;
use libbpf_rs::btf::{Btf, BtfKind, BtfType};
use libbpf_sys as sys;

use super::{Cause, Privileges, Probe, cgroup};
use crate::capture::generation;
use crate::programs::calls;
use crate::tcp::hooks;

/// The tracepoints that the instruments use.
const TRACEPOINTS: [&str; 12] = [
    "tcp_retransmit_skb",
    "tcp_probe",
    "tcp_cong_state_set",
    "tcp_destroy_sock",
    "inet_sock_set_state",
    "netif_receive_skb",
    "net_dev_queue",
    "net_dev_start_xmit",
    "net_dev_xmit",
    "napi_poll",
    "softirq_entry",
    "softirq_exit",
];

const NETWORK: [&str; 2] = ["CAP_BPF", "CAP_NET_ADMIN"];
const TRACING: [&str; 2] = ["CAP_BPF", "CAP_PERFMON"];
const NEWER: &str = "a newer kernel, or one configured with this kind of program";

/// What the loader must know of a program before it can be loaded.
pub(super) struct Kind {
    program: sys::bpf_prog_type,
    attach: sys::bpf_attach_type,
    flags: u32,
    btf_id: u32,
    /// What the program returns.
    verdict: i32,
}

impl Kind {
    pub(super) const CGROUP_INGRESS: Self = Self::plain(
        sys::BPF_PROG_TYPE_CGROUP_SKB,
        sys::BPF_CGROUP_INET_INGRESS,
        1,
    );
    pub(super) const CGROUP_EGRESS: Self = Self::plain(
        sys::BPF_PROG_TYPE_CGROUP_SKB,
        sys::BPF_CGROUP_INET_EGRESS,
        1,
    );
    pub(super) const XDP: Self = Self::plain(sys::BPF_PROG_TYPE_XDP, sys::BPF_XDP, 2);
    /// An XDP program that drops, for test runs whose packets must not go anywhere.
    pub(super) const XDP_DROP: Self = Self::plain(sys::BPF_PROG_TYPE_XDP, sys::BPF_XDP, 1);
    pub(super) const TCX: Self =
        Self::plain(sys::BPF_PROG_TYPE_SCHED_CLS, sys::BPF_TCX_INGRESS, -1);
    pub(super) const NETFILTER: Self =
        Self::plain(sys::BPF_PROG_TYPE_NETFILTER, sys::BPF_NETFILTER, 1);
    const SCHED_CLS: Self = Self::plain(sys::BPF_PROG_TYPE_SCHED_CLS, 0, -1);
    const SOCKET_FILTER: Self = Self::plain(sys::BPF_PROG_TYPE_SOCKET_FILTER, 0, 0);
    const KPROBE: Self = Self::plain(sys::BPF_PROG_TYPE_KPROBE, 0, 0);
    const SYSCALL: Self = Self {
        flags: sys::BPF_F_SLEEPABLE,
        ..Self::plain(sys::BPF_PROG_TYPE_SYSCALL, 0, 0)
    };

    const fn plain(
        program: sys::bpf_prog_type,
        attach: sys::bpf_attach_type,
        verdict: i32,
    ) -> Self {
        Self {
            program,
            attach,
            flags: 0,
            btf_id: 0,
            verdict,
        }
    }

    const fn tracing(attach: sys::bpf_attach_type, btf_id: u32) -> Self {
        Self {
            btf_id,
            ..Self::plain(sys::BPF_PROG_TYPE_TRACING, attach, 0)
        }
    }

    /// Loads a program that does nothing but return its verdict.
    pub(super) fn load(&self) -> io::Result<OwnedFd> {
        let instructions = calls::return_constant(self.verdict);
        let options = sys::bpf_prog_load_opts {
            expected_attach_type: self.attach,
            prog_flags: self.flags,
            attach_btf_id: self.btf_id,
            ..Default::default()
        };
        calls::load_program(self.program, c"parshall_probe", &instructions, options)
    }

    /// Attaches a loaded program of this kind to the cgroup or interface `target` by a link,
    /// which detaches it when the descriptor is closed.
    pub(super) fn link(
        &self,
        program: &OwnedFd,
        target: i32,
        options: sys::bpf_link_create_opts,
    ) -> io::Result<OwnedFd> {
        calls::create_link(program.as_fd(), target, self.attach, options)
    }
}

/// One probe for each kind of program, for the helpers, the tracepoints and our own programs.
pub(super) fn probes(privileges: &Privileges) -> Vec<Probe> {
    crate::programs::log::listen();
    // The kernel can verify programs in parallel, and our own take most of the time.
    std::thread::scope(|scope| {
        let ours =
            [of_tcp, of_capture, of_path].map(|probe| scope.spawn(move || probe(privileges)));
        let small = small_programs(privileges);
        let ours = ours.map(|probe| probe.join().unwrap_or_else(|panic| resume_unwind(panic)));
        small.into_iter().chain(ours).collect()
    })
}

/// Programs of two instructions.
fn small_programs(privileges: &Privileges) -> Vec<Probe> {
    let btf = Btf::from_vmlinux().ok();
    let btf = btf.as_ref();
    let attempt = |name, outcome, needed, remedy| {
        Probe::of_attempt(name, outcome, privileges, needed, remedy)
    };
    let loaded = |kind: Kind| kind.load().map(|_| "loaded".to_owned());
    let slower = "tracepoints do the same here; Parshall uses them automatically";
    vec![
        on_cgroup(
            "program.cgroup_skb_ingress",
            &Kind::CGROUP_INGRESS,
            privileges,
        ),
        on_cgroup(
            "program.cgroup_skb_egress",
            &Kind::CGROUP_EGRESS,
            privileges,
        ),
        attempt(
            "program.tp_btf",
            tp_btf(btf),
            &TRACING,
            "a kernel with BTF (CONFIG_DEBUG_INFO_BTF=y)",
        ),
        tracepoints(btf),
        attempt(
            "program.iter",
            iterator(btf),
            &TRACING,
            "Linux 5.9 or newer with BTF",
        ),
        attempt("program.xdp", loaded(Kind::XDP), &NETWORK, NEWER),
        attempt(
            "program.xdp_live_frames",
            live_frames(),
            &NETWORK,
            "Linux 5.18 or newer",
        ),
        attempt(
            "program.sched_cls",
            loaded(Kind::SCHED_CLS),
            &NETWORK,
            NEWER,
        ),
        attempt(
            "program.netfilter",
            loaded(Kind::NETFILTER),
            &NETWORK,
            "Linux 6.4 or newer with CONFIG_NETFILTER_BPF_LINK=y",
        ),
        attempt(
            "program.socket_filter",
            loaded(Kind::SOCKET_FILTER),
            &["CAP_BPF"],
            NEWER,
        ),
        attempt(
            "program.syscall",
            loaded(Kind::SYSCALL),
            &["CAP_BPF"],
            "Linux 5.14 or newer",
        ),
        attempt("program.kprobe", kprobe(), &TRACING, slower),
        attempt("program.fentry", fentry(btf), &TRACING, slower),
        helpers(privileges),
    ]
}

fn of_tcp(privileges: &Privileges) -> Probe {
    ours(
        "program.of_tcp",
        privileges,
        &["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"],
        || hooks::try_programs().map_err(|error| error.to_string()),
    )
}

fn of_capture(privileges: &Privileges) -> Probe {
    ours(
        "program.of_capture",
        privileges,
        // Without the last, the verifier follows other paths, and finds the program too complex.
        &["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"],
        || generation::try_programs().map_err(|error| error.to_string()),
    )
}

/// The programs of the path; stages that this kernel lacks are named.
fn of_path(privileges: &Privileges) -> Probe {
    const NAME: &str = "program.of_path";
    const NEEDED: [&str; 3] = ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"];
    let mut missing = Vec::new();
    let probe = ours(NAME, privileges, &NEEDED, || {
        let unavailable = crate::path::hooks::try_programs().map_err(|error| error.to_string())?;
        missing.extend(unavailable.into_iter().map(|one| one.stage));
        Ok(())
    });
    if missing.is_empty() {
        return probe;
    }
    Probe::degraded(
        NAME,
        Cause::Unsupported,
        format!("loaded, without {}", missing.join(", ")),
        "Linux 6.6 or newer has all stages; the others are measured here",
    )
}

/// Loads our own programs whole: a verifier may reject a program although it accepts each of its
/// parts.
fn ours(
    name: &'static str,
    privileges: &Privileges,
    needed: &[&str],
    load: impl FnOnce() -> Result<(), String>,
) -> Probe {
    if !privileges.missing(needed).is_empty() {
        let refused = Err(io::Error::from_raw_os_error(libc::EPERM));
        return Probe::of_attempt(name, refused, privileges, needed, "");
    }
    match load() {
        Ok(()) => Probe::works(name, "loaded, with a small ring"),
        Err(message) => Probe::cannot(
            name,
            Cause::Unsupported,
            message
                .split("; `parshall doctor`")
                .next()
                .unwrap_or(&message),
            "Linux 6.1 or newer; if this kernel is one, please report this line",
        ),
    }
}

fn on_cgroup(name: &str, kind: &Kind, privileges: &Privileges) -> Probe {
    let tried = match (kind.load(), cgroup::cgroup2_mount()) {
        (Ok(_), None) => {
            return Probe::cannot(
                name,
                Cause::Unsupported,
                "loaded, but there is no control group to attach it to",
                cgroup::MOUNT_REMEDY,
            );
        }
        // What attaches to the root of the hierarchy needs no permission to write there.
        (Ok(_), Some(mount)) if is_closed(&mount) => {
            return Probe::degraded(
                name,
                Cause::Forbidden,
                "loaded; not attached, since this process may make no cgroup, which `-- CMD` needs",
                "run as root to follow a command; the whole host can be followed without",
            );
        }
        (Ok(program), Some(mount)) => attach_to_cgroup(kind, &program, &mount),
        (Err(error), _) => Err(error),
    };
    Probe::of_attempt(name, tried, privileges, &NETWORK, NEWER)
}

/// Whether this process may not make a cgroup.
fn is_closed(mount: &Path) -> bool {
    let refused = cgroup::Throwaway::new(mount)
        .err()
        .and_then(|error| error.raw_os_error());
    matches!(refused, Some(libc::EACCES | libc::EPERM | libc::EROFS))
}

fn attach_to_cgroup(kind: &Kind, program: &OwnedFd, mount: &Path) -> io::Result<String> {
    let group = cgroup::Throwaway::new(mount)?;
    let directory = std::fs::File::open(group.path())?;
    let link = kind.link(program, directory.as_raw_fd(), Default::default())?;
    drop(link);
    Ok("loaded, and attached to a cgroup of its own".into())
}

/// Attaches a tracing program to what it was loaded for.
fn attach_tracing(program: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: for programs that were loaded with a BTF identifier the name must be null.
    calls::owned(unsafe { sys::bpf_raw_tracepoint_open(ptr::null(), program.as_raw_fd()) })
}

/// The identifier of a function, or of a tracepoint's `typedef`.
fn id_of(btf: Option<&Btf<'_>>, name: &str, kind: BtfKind) -> io::Result<u32> {
    btf.and_then(|btf| btf.type_by_name::<BtfType>(name))
        .filter(|found| found.kind() == kind)
        .map(|found| found.type_id().into())
        .ok_or(io::Error::from_raw_os_error(libc::ENOENT))
}

fn tp_btf(btf: Option<&Btf<'_>>) -> io::Result<String> {
    let id = id_of(btf, "btf_trace_tcp_retransmit_skb", BtfKind::Typedef)?;
    let program = Kind::tracing(sys::BPF_TRACE_RAW_TP, id).load()?;
    drop(attach_tracing(&program)?);
    Ok("loaded, and attached to tcp_retransmit_skb".into())
}

fn fentry(btf: Option<&Btf<'_>>) -> io::Result<String> {
    let id = id_of(btf, "tcp_rcv_established", BtfKind::Func)?;
    let program = Kind::tracing(sys::BPF_TRACE_FENTRY, id).load()?;
    drop(attach_tracing(&program)?);
    Ok("loaded, and attached to tcp_rcv_established".into())
}

fn iterator(btf: Option<&Btf<'_>>) -> io::Result<String> {
    let id = id_of(btf, "bpf_iter_tcp", BtfKind::Func)?;
    let kind = Kind::tracing(sys::BPF_TRACE_ITER, id);
    let program = kind.load()?;
    drop(kind.link(&program, 0, Default::default())?);
    Ok("loaded, and attached to the TCP sockets".into())
}

fn kprobe() -> io::Result<String> {
    Kind::KPROBE.load()?;
    if !Path::new("/sys/bus/event_source/devices/kprobe/type").exists() {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    Ok("loaded, and the kernel can set such probes".into())
}

fn live_frames() -> io::Result<String> {
    let program = Kind::XDP_DROP.load()?;
    let options = sys::bpf_test_run_opts {
        repeat: 1,
        flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: 1,
        ..Default::default()
    };
    calls::test_run(program.as_fd(), &[0; 64], options)?;
    Ok("one frame was sent through a program that drops it".into())
}

fn tracepoints(btf: Option<&Btf<'_>>) -> Probe {
    const NAME: &str = "program.tracepoints";
    let absent: Vec<&str> = TRACEPOINTS
        .into_iter()
        .filter(|name| id_of(btf, &format!("btf_trace_{name}"), BtfKind::Typedef).is_err())
        .collect();
    let present = TRACEPOINTS.len() - absent.len();
    let detail = format!("{present} of {} are present", TRACEPOINTS.len());
    match (present, absent.is_empty()) {
        (_, true) => Probe::works(NAME, detail),
        (0, _) => Probe::cannot(
            NAME,
            Cause::Unsupported,
            detail,
            "a kernel with tracepoints and BTF",
        ),
        _ => Probe::degraded(
            NAME,
            Cause::Unsupported,
            format!("{detail}; missing: {}", absent.join(", ")),
            "a newer kernel; events of missing tracepoints are not recorded",
        ),
    }
}

/// The helpers that our programs call: without them, the verifier rejects a program.
fn helpers(privileges: &Privileges) -> Probe {
    const NAME: &str = "program.helpers";
    let of_cgroup = [
        (sys::BPF_FUNC_sk_fullsock, "bpf_sk_fullsock"),
        (sys::BPF_FUNC_skc_to_tcp_sock, "bpf_skc_to_tcp_sock"),
        (sys::BPF_FUNC_sk_storage_get, "bpf_sk_storage_get"),
        (sys::BPF_FUNC_ktime_get_ns, "bpf_ktime_get_ns"),
    ];
    let of_xdp = [
        (sys::BPF_FUNC_xdp_load_bytes, "bpf_xdp_load_bytes"),
        (sys::BPF_FUNC_xdp_adjust_tail, "bpf_xdp_adjust_tail"),
        (sys::BPF_FUNC_redirect, "bpf_redirect"),
    ];
    let of_classifier = [(sys::BPF_FUNC_skb_load_bytes, "bpf_skb_load_bytes")];
    let needed = [
        (ProgramType::CgroupSkb, &of_cgroup[..]),
        (ProgramType::Xdp, &of_xdp),
        (ProgramType::SchedCls, &of_classifier),
    ];
    let missing_privileges = privileges.missing(&["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"]);
    if !missing_privileges.is_empty() {
        let refused = Err(io::Error::from_raw_os_error(libc::EPERM));
        return Probe::of_attempt(NAME, refused, privileges, &missing_privileges, "");
    }
    let helpers = needed
        .iter()
        .flat_map(|(program, helpers)| helpers.iter().map(move |helper| (program, helper)));
    let absent: Vec<&str> = helpers
        .clone()
        .filter(|(program, (helper, _))| !program.is_helper_supported(*helper).unwrap_or(false))
        .map(|(_, (_, name))| *name)
        .collect();
    if absent.is_empty() {
        return Probe::works(
            NAME,
            format!("all {} that are needed are present", helpers.count()),
        );
    }
    Probe::cannot(
        NAME,
        Cause::Unsupported,
        format!("missing: {}", absent.join(", ")),
        "Linux 5.18 or newer",
    )
}
