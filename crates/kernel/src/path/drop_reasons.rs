//! Names of drop reasons: those of the core and, from 1 << 16 on, those of subsystems. The modules of these describe
//! them in type information of their own.

use std::collections::BTreeMap;
use std::path::Path;

use crate::btf_enums::{Enumeration, enumerations};

const BTF: &str = "/sys/kernel/btf";
const CORE: &str = "skb_drop_reason";
const SUBSYSTEMS: &str = "skb_drop_reason_subsys";
/// What the kernel calls the number of its subsystems, in the same enumeration.
const SUBSYSTEM_COUNT: &str = "NUM";
const SUBSYSTEM_SHIFT: u32 = 16;

/// Reasons with which the kernel frees what it has delivered, too: see `is_delivered` of the programs.
const DELIVERED: [&str; 3] = ["SOCKET_CLOSE", "QUEUE_PURGE", "NOT_SPECIFIED"];

/// The reason of what a full accept queue refuses.
const REFUSED: &str = "TCP_LISTEN_OVERFLOW";
/// Its number where the kernel does not have it. It is not [`NO_REASON`], which may stand among those of deliveries.
const REFUSED_NUMBER: u16 = u16::MAX - 1;
/// The first reason of a queue discipline, and the one that follows the last.
const OF_QUEUES: [&str; 2] = ["QDISC_DROP", "CPU_BACKLOG"];
/// A number that no reason of the core has.
const NO_REASON: u16 = u16::MAX;

/// The names that a kernel and its modules have.
#[derive(Debug, Default)]
pub struct DropReasons {
    /// Name by reason: without `SKB_DROP_REASON_` for the core, in full for subsystems.
    pub names: BTreeMap<u32, String>,
    /// Name of a subsystem, without `SKB_DROP_REASON_SUBSYS_`, by the high 16 bits of its reasons.
    pub subsystems: BTreeMap<u32, String>,
}

impl DropReasons {
    /// Those of the running kernel and the modules that are loaded; none where it has no type information.
    pub fn of_this_kernel() -> Self {
        Self::read(Path::new(BTF))
    }

    /// Those of a directory with the type information of `vmlinux` and of modules.
    fn read(directory: &Path) -> Self {
        let mut found = Self::default();
        let Ok(kernel) = std::fs::read(directory.join("vmlinux")) else {
            return found;
        };
        enumerations(&kernel, None, |one| found.take(one));
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name() == "vmlinux" {
                continue;
            }
            // A module that is removed meanwhile has no names.
            if let Ok(module) = std::fs::read(entry.path()) {
                enumerations(&module, Some(&kernel), |one| found.take(one));
            }
        }
        if found.number(REFUSED) == NO_REASON {
            found.names.insert(REFUSED_NUMBER.into(), REFUSED.into());
        }
        found
    }

    fn take(&mut self, one: &Enumeration<'_>) {
        let is_core = one.name == CORE;
        if one.name == SUBSYSTEMS {
            for (name, value) in one.members() {
                let name = name.trim_start_matches("SKB_DROP_REASON_SUBSYS_");
                if name != SUBSYSTEM_COUNT {
                    self.subsystems.insert(value, name.into());
                }
            }
        } else if one.name.contains("drop_reason") {
            for (name, value) in one.members() {
                if (value >> SUBSYSTEM_SHIFT == 0) == is_core {
                    let name = name.trim_start_matches("SKB_DROP_REASON_");
                    let name = name.trim_start_matches('_');
                    self.names.insert(value, name.into());
                }
            }
        }
    }

    /// The name of a reason; a number, and its subsystem, where none is known.
    pub fn name(&self, reason: u32) -> String {
        if let Some(name) = self.names.get(&reason) {
            return name.clone();
        }
        let number = reason & ((1 << SUBSYSTEM_SHIFT) - 1);
        match reason >> SUBSYSTEM_SHIFT {
            0 => format!("reason {number}"),
            subsystem => match self.subsystems.get(&subsystem) {
                Some(name) => format!("{name} reason {number}"),
                None => format!("subsystem {subsystem} reason {number}"),
            },
        }
    }

    /// The numbers of the reasons that may stand for a delivery.
    pub fn delivered(&self) -> [u16; 3] {
        DELIVERED.map(|name| self.number(name))
    }

    /// The number of the reason of what a full accept queue refuses.
    pub fn refused(&self) -> u16 {
        self.number(REFUSED)
    }

    /// The first of the reasons with which queue disciplines drop, and the one behind the last; equal: none is known.
    pub fn of_queues(&self) -> [u16; 2] {
        let [first, end] = OF_QUEUES.map(|name| self.number(name));
        if first < end && end != NO_REASON {
            [first, end]
        } else {
            [0, 0]
        }
    }

    /// The number of a reason of the core; [`NO_REASON`] where the kernel does not have it.
    fn number(&self, wanted: &str) -> u16 {
        let found = self.names.iter().find(|(_, name)| *name == wanted);
        found
            .and_then(|(reason, _)| u16::try_from(*reason).ok())
            .unwrap_or(NO_REASON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type information of one enumeration, as of a module whose kernel has so many bytes of strings.
    fn module(kernel_strings: u32, name: &str, members: &[(&str, u32)]) -> Vec<u8> {
        let mut strings = vec![0];
        let mut offset_of = |text: &str| {
            let offset = kernel_strings + strings.len() as u32;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            offset
        };
        // A structure with one member stands before it, so that what is skipped counts.
        let structure = [offset_of("before"), 4 << 24 | 1, 4, offset_of("x"), 1, 0];
        let mut types: Vec<u32> = structure.to_vec();
        types.extend([offset_of(name), 6 << 24 | members.len() as u32, 4]);
        for (name, value) in members {
            types.extend([offset_of(name), *value]);
        }
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let lengths = [24, 0, types.len(), types.len(), strings.len()];
        bytes.extend(lengths.iter().flat_map(|&one| (one as u32).to_ne_bytes()));
        [bytes, types, strings].concat()
    }

    fn strings_of(kernel: &[u8]) -> u32 {
        u32::from_ne_bytes(kernel[20..24].try_into().unwrap())
    }

    #[test]
    fn names_of_modules_stand_beside_those_of_the_core() {
        let directory = tempfile::tempdir().unwrap();
        let vmlinux = Path::new(BTF).join("vmlinux");
        let kernel = std::fs::read(&vmlinux).unwrap();
        std::os::unix::fs::symlink(vmlinux, directory.path().join("vmlinux")).unwrap();
        let core = DropReasons::read(directory.path());
        let (&openvswitch, _) = core
            .subsystems
            .iter()
            .find(|(_, name)| *name == "OPENVSWITCH")
            .expect("Linux has it since 6.7");
        let first = openvswitch << 16;
        let members = [
            ("__OVS_DROP_REASON", first),
            ("OVS_DROP_LAST_ACTION", first + 1),
            ("OVS_DROP_ACTION_ERROR", first + 2),
        ];
        let bytes = module(strings_of(&kernel), "ovs_drop_reason", &members);
        std::fs::write(directory.path().join("openvswitch"), &bytes).unwrap();
        let other = module(strings_of(&kernel), "other", &[("OTHER", first + 3)]);
        std::fs::write(directory.path().join("other"), other).unwrap();
        std::fs::write(directory.path().join("damaged"), &bytes[..60]).unwrap();

        let names = DropReasons::read(directory.path());
        assert_eq!(names.name(first + 1), "OVS_DROP_LAST_ACTION");
        assert_eq!(names.name(first + 2), "OVS_DROP_ACTION_ERROR");
        assert_eq!(names.name(first + 3), "OPENVSWITCH reason 3");
        assert_eq!(names.name(77 << 16 | 5), "subsystem 77 reason 5");
        assert_eq!(names.name(60_000), "reason 60000");
        assert_eq!(names.delivered(), core.delivered());
        assert_eq!(names.name(names.refused().into()), REFUSED);
        assert!(!names.delivered().contains(&names.refused()));
        assert!(
            core.names
                .iter()
                .all(|(reason, name)| names.name(*reason) == *name)
        );
        assert!(core.names.values().any(|name| name == "NETFILTER_DROP"));
        assert!(
            !names
                .subsystems
                .values()
                .any(|name| name == SUBSYSTEM_COUNT)
        );
    }
}
