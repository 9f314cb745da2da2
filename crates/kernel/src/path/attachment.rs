//! Programs at their hooks.

use std::os::fd::{AsFd, OwnedFd};

use super::stages::{StageHook, StageProgram};
use crate::cgroup;
use crate::measurement_error::MeasurementError;
use crate::programs::{Hook, InterfaceHook, Link, Loaded, ProgramError};

/// Where programs are attached, and the links of those that are.
pub(super) struct Attachment {
    root_cgroup: Option<OwnedFd>,
    interfaces: Vec<(String, u32)>,
    links: Vec<Link>,
    /// Stay until the end: some drivers restart their rings when an XDP program comes or goes.
    xdp_links: Vec<Link>,
}

impl Attachment {
    /// Of nothing yet; opens what `programs` are to be attached to.
    pub fn new(
        programs: &[StageProgram],
        interfaces: Vec<(String, u32)>,
    ) -> Result<Self, MeasurementError> {
        let root_cgroup = programs
            .iter()
            .any(|one| one.hook == StageHook::Sockets)
            .then(|| cgroup::open(&cgroup::resolve(None)?.path))
            .transpose()?;
        Ok(Self {
            root_cgroup,
            interfaces,
            links: Vec::new(),
            xdp_links: Vec::new(),
        })
    }

    /// Attaches the program of a stage.
    pub fn attach_stage(
        &mut self,
        object: &Loaded,
        stage: &StageProgram,
    ) -> Result<(), MeasurementError> {
        let hook = match (stage.hook, &self.root_cgroup) {
            (StageHook::Sockets, Some(group)) => Hook::Cgroup(group.as_fd()),
            (StageHook::Netfilter { number, is_first }, _) => Hook::Netfilter { number, is_first },
            (StageHook::TcxIngress, _) => {
                let tcx = InterfaceHook::Tcx {
                    is_egress: false,
                    is_first: false,
                };
                for (_, index) in &self.interfaces {
                    let hook = Hook::Interface(*index, tcx);
                    self.links.push(object.attach(stage.program, hook)?);
                }
                return Ok(());
            }
            (StageHook::NativeXdp, _) => return self.attach_xdp(object, stage.program),
            (StageHook::Tracepoint(_) | StageHook::Sockets, _) => Hook::OfItsSection,
        };
        self.links.push(object.attach(stage.program, hook)?);
        Ok(())
    }

    fn attach_xdp(&mut self, object: &Loaded, program: &str) -> Result<(), MeasurementError> {
        if !self.xdp_links.is_empty() {
            return Ok(());
        }
        for (name, index) in &self.interfaces {
            let hook = Hook::Interface(*index, InterfaceHook::NativeXdp);
            let link = object
                .attach(program, hook)
                .map_err(|error| refused_xdp(name, &error))?;
            self.xdp_links.push(link);
        }
        Ok(())
    }

    /// Attaches a program to the tracepoint that it names.
    pub fn attach_tracepoint(
        &mut self,
        object: &Loaded,
        program: &str,
    ) -> Result<(), MeasurementError> {
        self.links.push(object.attach(program, Hook::OfItsSection)?);
        Ok(())
    }

    /// Detaches everything but XDP; programs that run at this moment still finish. Beginnings go first.
    pub fn detach(&mut self) {
        while self.links.pop().is_some() {}
    }
}

fn refused_xdp(interface: &str, error: &ProgramError) -> MeasurementError {
    let errno = match error {
        ProgramError::Attach { source, .. } => source.raw_os_error(),
        ProgramError::Load(_) => None,
    };
    let reason = match errno {
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
