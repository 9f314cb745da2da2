//! The programs of what is requested and there, and what is not there.

use libbpf_rs::Btf;
use libbpf_rs::btf::types::{Func, Typedef};
use parshall_core::stage::{STAGE_NAMES, Stage};
use serde::Serialize;

use super::request::{Group, PathRequest};
use super::stages::{
    BEGINNINGS, COMMAND_PROGRAMS, NOISE_PROGRAMS, READER_PROGRAMS, STAGE_PROGRAMS, StageHook,
    StageProgram, is_between,
};
use crate::measurement_error::MeasurementError;

/// A stage or a group of programs that cannot be had here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// Its name.
    pub stage: String,
    /// Why.
    pub reason: String,
}

/// A kernel, by the types that it exposes.
pub(super) trait Kernel {
    /// Whether it has a tracepoint of this name with type information.
    fn has_tracepoint(&self, name: &str) -> bool;
    /// Whether it has a function of this name.
    fn has_function(&self, name: &str) -> bool;
}

impl Kernel for Btf<'_> {
    fn has_tracepoint(&self, name: &str) -> bool {
        self.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))
            .is_some()
    }

    fn has_function(&self, name: &str) -> bool {
        self.type_by_name::<Func<'_>>(name).is_some()
    }
}

/// Programs to be loaded.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// Those of the stages; ends come first.
    pub programs: Vec<StageProgram>,
    /// Names of those that belong to no stage.
    pub others: Vec<&'static str>,
    /// What was requested and is not there.
    pub unavailable: Vec<Unavailable>,
}

impl Selection {
    /// Selects what a kernel offers of a request.
    ///
    /// # Errors
    /// [`MeasurementError::Option`] for names of no stage, and for stages at which no packet begins or ends.
    pub fn of(request: &PathRequest, kernel: &impl Kernel) -> Result<Self, MeasurementError> {
        check_names(&request.stages)?;
        let mut selection = Self::default();
        for &program in STAGE_PROGRAMS {
            let name = program.stage.name();
            if !request.stages.iter().any(|wanted| wanted == name)
                || is_absent_twin(&program, kernel)
            {
                continue;
            }
            match reason_against(program.hook, request, kernel) {
                Some(reason) => selection.lack(name, reason),
                None => selection.programs.push(program),
            }
        }
        if request.reads {
            // They need the socket of this stage.
            match selection.has_stage(Stage::data_ready) {
                true => selection.add("reads", READER_PROGRAMS, kernel),
                false => {
                    let name = Stage::data_ready.name();
                    let remedy = match request.stages.iter().any(|stage| stage == name) {
                        true => "",
                        false => ": add it to --stages",
                    };
                    selection.lack("reads", format!("they begin at the stage {name}{remedy}"));
                }
            }
        }
        if request.group == Group::Command {
            selection.add("command", COMMAND_PROGRAMS, kernel);
        }
        if request.noise {
            selection.add("noise", NOISE_PROGRAMS, kernel);
        } else if request.path.is_some() {
            // Numbers polls, and packets within them.
            selection.add("poll", &NOISE_PROGRAMS[..1], kernel);
        }
        selection.leave_out_xmit_alone();
        selection.check_ends(&request.stages)?;
        if request.probe_cost {
            selection.check_between(&request.stages)?;
        }
        // Stages in the order in which packets pass them, then the rest.
        let place = |name: &str| STAGE_NAMES.iter().position(|stage| *stage == name);
        selection
            .unavailable
            .sort_by_key(|one| place(&one.stage).unwrap_or(STAGE_NAMES.len()));
        Ok(selection)
    }

    /// The stages that are selected, bit by number.
    pub fn stages(&self) -> u32 {
        self.programs
            .iter()
            .fold(0, |bits, program| bits | 1 << program.stage.number())
    }

    fn has_stage(&self, stage: Stage) -> bool {
        stage.is_in(self.stages())
    }

    fn lack(&mut self, name: &str, reason: String) {
        let one = Unavailable {
            stage: name.into(),
            reason,
        };
        if !self.unavailable.contains(&one) {
            self.unavailable.push(one);
        }
    }

    fn add(&mut self, name: &str, table: &[(&'static str, &'static str)], kernel: &impl Kernel) {
        for (program, tracepoint) in table {
            match kernel.has_tracepoint(tracepoint) {
                true => self.others.push(program),
                false => self.lack(name, no_tracepoint(tracepoint)),
            }
        }
    }

    /// Without `start_xmit`, which this kernel lacks, packets would not end at `xmit`.
    fn leave_out_xmit_alone(&mut self) {
        let start = Stage::start_xmit.name();
        if self.has_stage(Stage::xmit) && self.unavailable.iter().any(|one| one.stage == start) {
            self.programs.retain(|program| program.stage != Stage::xmit);
            self.lack(Stage::xmit.name(), format!("it needs the stage {start}"));
        }
    }

    /// The cost of probes is that of those between the first and the last.
    fn check_between(&self, requested: &[String]) -> Result<(), MeasurementError> {
        let stages = self.stages();
        if (self.programs.iter()).any(|program| is_between(program.stage, stages)) {
            return Ok(());
        }
        Err(MeasurementError::Option {
            option: "stages",
            value: requested.join(","),
            expected: "with --probe-cost, one between the first and the last of a packet: pre_routing for those that are \
                       delivered, with forward and post_routing for those of a router"
                .into(),
        })
    }

    fn check_ends(&self, requested: &[String]) -> Result<(), MeasurementError> {
        let fail = |expected: &str| {
            Err(MeasurementError::Option {
                option: "stages",
                value: requested.join(","),
                expected: expected.into(),
            })
        };
        if !BEGINNINGS.iter().any(|&stage| self.has_stage(stage)) {
            let names: Vec<_> = BEGINNINGS.iter().map(|stage| stage.name()).collect();
            return fail(&format!("one at which packets begin: {}", names.join(", ")));
        }
        // What leaves ends when the driver has taken it; without both ends it would stay in the table.
        if self.has_stage(Stage::xmit) && !self.has_stage(Stage::start_xmit) {
            return fail("start_xmit with xmit");
        }
        Ok(())
    }
}

fn check_names(requested: &[String]) -> Result<(), MeasurementError> {
    let is_stage = |name: &String| {
        STAGE_PROGRAMS
            .iter()
            .any(|program| program.stage.name() == name)
    };
    match requested.iter().find(|name| !is_stage(name)) {
        Some(name) => Err(MeasurementError::Option {
            option: "stages",
            value: name.clone(),
            expected: "names that `parshall path --list-stages` shows".into(),
        }),
        None => Ok(()),
    }
}

/// Whether it is the second tracepoint of a stage, which a kernel need not have.
fn is_absent_twin(program: &StageProgram, kernel: &impl Kernel) -> bool {
    const TWIN: &str = "napi_gro_frags_entry";
    program.hook == StageHook::Tracepoint(TWIN) && !kernel.has_tracepoint(TWIN)
}

fn no_tracepoint(name: &str) -> String {
    format!("this kernel has no tracepoint {name}")
}

/// Why a hook cannot be had.
fn reason_against(hook: StageHook, request: &PathRequest, kernel: &impl Kernel) -> Option<String> {
    let reason = match hook {
        StageHook::Tracepoint(name) => {
            return (!kernel.has_tracepoint(name)).then(|| no_tracepoint(name));
        }
        StageHook::Netfilter { .. } if !kernel.has_function("bpf_nf_link_attach") => {
            "this kernel attaches no programs to netfilter (Linux 6.4, CONFIG_NETFILTER_BPF_LINK)"
        }
        StageHook::Sockets | StageHook::TcxIngress
            if !kernel.has_function("bpf_cast_to_kern_ctx") =>
        {
            "this kernel has no bpf_cast_to_kern_ctx (Linux 6.2)"
        }
        StageHook::TcxIngress | StageHook::NativeXdp if request.interfaces.is_empty() => {
            "it is attached to interfaces; name them with -i"
        }
        StageHook::TcxIngress if !kernel.has_function("tcx_link_attach") => {
            "this kernel has no tcx (Linux 6.6)"
        }
        _ => return None,
    };
    Some(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that has all but what is named.
    struct Lacking<'a>(&'a [&'a str]);

    impl Kernel for Lacking<'_> {
        fn has_tracepoint(&self, name: &str) -> bool {
            !self.0.contains(&name)
        }

        fn has_function(&self, name: &str) -> bool {
            !self.0.contains(&name)
        }
    }

    const LINUX_6_1: Lacking<'_> = Lacking(&[
        "sk_data_ready",
        "bpf_nf_link_attach",
        "bpf_cast_to_kern_ctx",
        "tcx_link_attach",
    ]);

    fn request() -> PathRequest {
        PathRequest {
            interfaces: vec!["lo".into()],
            ..PathRequest::of_everything()
        }
    }

    fn names(selection: &Selection) -> Vec<&str> {
        selection
            .unavailable
            .iter()
            .map(|one| one.stage.as_str())
            .collect()
    }

    #[test]
    fn a_kernel_that_has_all_lacks_nothing() {
        let selection = Selection::of(&request(), &Lacking(&[])).unwrap();
        assert_eq!(selection.unavailable, []);
        assert_eq!(selection.stages(), (1 << (STAGE_NAMES.len() - 1)) - 1);
    }

    #[test]
    fn a_tracepoint_that_a_kernel_lacks_is_named_and_costs_no_other_stage() {
        for program in STAGE_PROGRAMS {
            let StageHook::Tracepoint(name) = program.hook else {
                continue;
            };
            let selection = Selection::of(&request(), &Lacking(&[name])).unwrap();
            let named = selection
                .unavailable
                .iter()
                .find(|one| one.reason.ends_with(name));
            let others = STAGE_PROGRAMS.iter().filter(|one| {
                // Packets that leave end at both stages or at neither.
                let is_its_end = program.stage == Stage::start_xmit && one.stage == Stage::xmit;
                // Two programs may share a tracepoint.
                one.hook != program.hook && !is_its_end
            });
            assert_eq!(named.is_none(), name == "napi_gro_frags_entry", "{name}");
            assert!(
                others.clone().all(|other| selection
                    .programs
                    .iter()
                    .any(|one| one.program == other.program)),
                "{name}"
            );
        }
    }

    #[test]
    fn what_an_old_kernel_lacks_is_named_in_the_order_of_the_path() {
        let selection = Selection::of(&request(), &LINUX_6_1).unwrap();
        let lacking = [
            "tcx_ingress",
            "pre_routing",
            "local_in",
            "socket_in",
            "data_ready",
            "forward",
            "local_out",
            "post_routing",
            "socket_out",
            "reads",
        ];
        assert_eq!(names(&selection), lacking);
    }

    #[test]
    fn a_program_of_the_noise_that_a_kernel_lacks_is_named() {
        let selection = Selection::of(&request(), &Lacking(&["local_timer_entry"])).unwrap();
        assert_eq!(names(&selection), ["noise"]);
        assert!(selection.others.contains(&"path_irq_entry"));
    }

    #[test]
    fn packets_must_be_able_to_begin() {
        let request = PathRequest {
            stages: vec!["local_out".into(), "drop".into()],
            ..request()
        };
        assert!(Selection::of(&request, &Lacking(&[])).is_ok());
        assert!(Selection::of(&request, &LINUX_6_1).is_err());
    }
}
