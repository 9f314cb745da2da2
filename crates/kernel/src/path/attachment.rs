//! Programs at their hooks. What is attached goes with the process, too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{Link, NFPROTO_IPV4, NFPROTO_IPV6, NetfilterOpts, Object};
use libbpf_sys as sys;

use super::load::find_program;
use super::stages::{Hook, StageProgram};
use crate::measurement_error::MeasurementError;
use crate::{bpf, cgroup};

/// Where programs are attached, and the links of those that are.
pub(super) struct Attachment {
    root_cgroup: Option<OwnedFd>,
    interfaces: Vec<(String, u32)>,
    links: Vec<Link>,
    tcx_links: Vec<OwnedFd>,
    /// Stay until the end: some drivers restart their rings when an XDP program comes or goes.
    xdp_links: Vec<OwnedFd>,
}

impl Attachment {
    /// Of nothing yet; opens what `programs` are to be attached to.
    pub fn new(
        programs: &[StageProgram],
        interfaces: Vec<(String, u32)>,
    ) -> Result<Self, MeasurementError> {
        let root_cgroup = programs
            .iter()
            .any(|one| matches!(one.hook, Hook::SocketIn | Hook::SocketOut))
            .then(open_root_cgroup)
            .transpose()?;
        Ok(Self {
            root_cgroup,
            interfaces,
            links: Vec::new(),
            tcx_links: Vec::new(),
            xdp_links: Vec::new(),
        })
    }

    /// Attaches the program of a stage.
    pub fn attach_stage(
        &mut self,
        object: &Object,
        stage: &StageProgram,
    ) -> Result<(), MeasurementError> {
        let cgroup = self.root_cgroup.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        match stage.hook {
            Hook::Tracepoint(_) => self.attach_tracepoint(object, stage.program),
            Hook::SocketIn | Hook::SocketOut => self.link(object, stage.program, |program| {
                program.attach_cgroup(cgroup)
            }),
            Hook::Netfilter { number, is_first } => {
                for family in [NFPROTO_IPV4, NFPROTO_IPV6] {
                    self.link(object, stage.program, |program| {
                        attach_to_netfilter(program, family, number, is_first)
                    })?;
                }
                Ok(())
            }
            Hook::TcxIngress => {
                for (_, index) in &self.interfaces {
                    let link = bpf::create_link(
                        find_program(object, stage.program)?.as_fd(),
                        *index as i32,
                        sys::BPF_TCX_INGRESS,
                        sys::bpf_link_create_opts::default(),
                    )
                    .map_err(|error| MeasurementError::attach(stage.program, error))?;
                    self.tcx_links.push(link);
                }
                Ok(())
            }
            Hook::NativeXdp => self.attach_xdp(object, stage.program),
        }
    }

    fn attach_xdp(&mut self, object: &Object, program: &str) -> Result<(), MeasurementError> {
        if !self.xdp_links.is_empty() {
            return Ok(());
        }
        for (name, index) in &self.interfaces {
            let options = sys::bpf_link_create_opts {
                flags: bpf::XDP_FLAGS_DRV_MODE,
                ..Default::default()
            };
            let program = find_program(object, program)?;
            let link = bpf::create_link(program.as_fd(), *index as i32, sys::BPF_XDP, options)
                .map_err(|error| refused_xdp(name, &error))?;
            self.xdp_links.push(link);
        }
        Ok(())
    }

    /// Attaches a program to the tracepoint that it names.
    pub fn attach_tracepoint(
        &mut self,
        object: &Object,
        program: &str,
    ) -> Result<(), MeasurementError> {
        self.link(object, program, |program| program.attach())
    }

    fn link(
        &mut self,
        object: &Object,
        name: &str,
        attach: impl FnOnce(&libbpf_rs::ProgramMut<'_>) -> libbpf_rs::Result<Link>,
    ) -> Result<(), MeasurementError> {
        let program = find_program(object, name)?;
        let link = attach(&program).map_err(|error| MeasurementError::attach(name, error))?;
        self.links.push(link);
        Ok(())
    }

    /// Detaches everything but XDP; programs that run at this moment still finish. Beginnings go first.
    pub fn detach(&mut self) {
        while self.links.pop().is_some() {}
        self.tcx_links.clear();
    }
}

fn refused_xdp(interface: &str, error: &io::Error) -> MeasurementError {
    let reason = match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => "another XDP program is attached to it",
        Some(libc::EOPNOTSUPP) => "its driver has no native XDP",
        _ => "its driver refused the program",
    };
    MeasurementError::Option {
        option: "stages",
        value: "xdp".into(),
        expected: format!("stages that {interface} has: {reason} ({error}); leave out xdp"),
    }
}

/// Attaches to a netfilter hook, before or behind all others. The kernel gives each priority to one program, so a second
/// measurement takes the next one.
fn attach_to_netfilter(
    program: &libbpf_rs::ProgramMut<'_>,
    protocol_family: i32,
    hooknum: i32,
    is_first: bool,
) -> libbpf_rs::Result<Link> {
    const PRIORITIES: i32 = 16;
    let attach = |step: i32| {
        program.attach_netfilter_with_opts(NetfilterOpts {
            protocol_family,
            hooknum,
            // The ends of the range are refused.
            priority: if is_first {
                i32::MIN + step
            } else {
                i32::MAX - step
            },
            ..NetfilterOpts::default()
        })
    };
    (2..=PRIORITIES).fold(attach(1), |attached, step| {
        attached.or_else(|_| attach(step))
    })
}

fn open_root_cgroup() -> Result<OwnedFd, MeasurementError> {
    let root = cgroup::resolve(None)?;
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(
        &root.path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| MeasurementError::Cgroup {
        path: root.path,
        reason: error.to_string(),
    })
}
