//! The program that is attached: it counts the packet, decides who wants it, and goes on to the copy.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use parshall_core::abi::CAPTURE_SNAPLEN_MAX;
use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram, FrameView, Origin};
use parshall_core::filter::emit::{
    EmittedProgram, Hook as ProgramKind, LinkLayer, TagsBeside, Target,
};
use parshall_core::filter::{MergedFilter, Subscription as FilterSubscription};
use serde::{Deserialize, Serialize};

use super::CaptureError;
use super::attachment::Direction;
use super::generation::Hook;
use super::request::Subscription;
use crate::filter::{Expression, LoadError, Maps};
use crate::net::ethtool::tags_sent_beside;
use crate::net::interface::Interface;

/// An expression, compiled by its subscriber for the link layers of a ring. Compiling takes time,
/// privileges and name look-ups, so the keeper, which serves all, gets no text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledFilter {
    /// Link types, and the classic program for each, one word an instruction.
    by_link_type: Vec<(u16, Vec<u64>)>,
    /// How they see a frame with a VLAN tag.
    view: FrameView,
}

impl CompiledFilter {
    /// No program yet, of a view.
    pub fn of_view(view: FrameView) -> Self {
        Self {
            by_link_type: Vec::new(),
            view,
        }
    }

    /// Accepts every packet of these interfaces.
    pub(super) fn everything<'ring>(
        interfaces: impl IntoIterator<Item = &'ring Interface>,
    ) -> Self {
        let accept = ClassicInstruction {
            code: RETURN_CONSTANT,
            jt: 0,
            jf: 0,
            k: CAPTURE_SNAPLEN_MAX,
        };
        let link_types: BTreeSet<u16> = interfaces.into_iter().map(|one| one.link_type).collect();
        Self {
            by_link_type: link_types
                .into_iter()
                .map(|link_type| (link_type, vec![to_word(&accept)]))
                .collect(),
            view: FrameView::Whole,
        }
    }

    /// Compiles an expression for all of these interfaces.
    ///
    /// # Errors
    /// [`CaptureError::Filter`] with libpcap's message and the place.
    pub fn compile<'ring>(
        expression: &str,
        interfaces: impl IntoIterator<Item = &'ring Interface>,
    ) -> Result<Self, CaptureError> {
        let mut by_link_type: Vec<(u16, Vec<u64>)> = Vec::new();
        for interface in interfaces {
            let link_type = interface.link_type;
            if by_link_type.iter().any(|(known, _)| *known == link_type) {
                continue;
            }
            let compiled = Expression::compile(expression, interface.link_layer(), NETMASK)
                .map_err(|error| CaptureError::Filter {
                    reason: error.to_string(),
                })?;
            let words = compiled.instructions().iter().map(to_word).collect();
            by_link_type.push((link_type, words));
        }
        Ok(Self {
            by_link_type,
            view: FrameView::Whole,
        })
    }

    /// Adds a classic program for the packets of a link type; the first one stays.
    ///
    /// # Errors
    /// [`CaptureError::Filter`] when it cannot be merged.
    pub fn add(
        &mut self,
        link_type: u16,
        instructions: &[ClassicInstruction],
    ) -> Result<(), CaptureError> {
        if self
            .by_link_type
            .iter()
            .any(|(known, _)| *known == link_type)
        {
            return Ok(());
        }
        ClassicProgram::of_view(instructions, self.view).map_err(|error| CaptureError::Filter {
            reason: error.to_string(),
        })?;
        let words = instructions.iter().map(to_word).collect();
        self.by_link_type.push((link_type, words));
        Ok(())
    }

    /// The program for an interface.
    ///
    /// # Errors
    /// [`CaptureError::Filter`] when there is none, or what there is cannot be merged.
    pub(super) fn program(&self, interface: &Interface) -> Result<ClassicProgram, CaptureError> {
        let (_, words) = self
            .by_link_type
            .iter()
            .find(|(known, _)| *known == interface.link_type)
            .ok_or_else(|| CaptureError::Filter {
                reason: format!(
                    "no filter was given for packets like those of {}",
                    interface.name
                ),
            })?;
        let instructions: Vec<ClassicInstruction> = words.iter().map(from_word).collect();
        ClassicProgram::of_view(&instructions, self.view).map_err(|error| CaptureError::Filter {
            reason: format!("the filter for {} is no program: {error}", interface.name),
        })
    }
}

fn to_word(instruction: &ClassicInstruction) -> u64 {
    u64::from(instruction.code) << 48
        | u64::from(instruction.jt) << 40
        | u64::from(instruction.jf) << 32
        | u64::from(instruction.k)
}

fn from_word(word: &u64) -> ClassicInstruction {
    ClassicInstruction {
        code: (word >> 48) as u16,
        jt: (word >> 40) as u8,
        jf: (word >> 32) as u8,
        k: *word as u32,
    }
}

/// `BPF_RET | BPF_K`.
const RETURN_CONSTANT: u16 = 0x06;

/// A ring has several interfaces, with several networks: `ip broadcast` has libpcap's own meaning then.
const NETMASK: Option<Ipv4Addr> = None;

/// The filters of all subscribers, merged for each link layer of a ring.
pub(super) struct Dispatchers {
    layers: Vec<Layer>,
}

struct Layer {
    link_layer: LinkLayer,
    filters: Vec<FilterSubscription>,
    merged: MergedFilter,
}

impl Dispatchers {
    /// Merges the filters of these subscribers, each with its bit, for these interfaces.
    pub fn merge<'ring>(
        subscribers: &[(usize, &Subscription, &CompiledFilter)],
        interfaces: impl IntoIterator<Item = &'ring Interface>,
    ) -> Result<Self, CaptureError> {
        let mut layers: Vec<Layer> = Vec::new();
        for interface in interfaces {
            let link_layer = interface.link_layer();
            let is_known = layers.iter().any(|layer| layer.link_layer == link_layer);
            if is_known {
                continue;
            }
            let filters = subscribers
                .iter()
                .map(|(bit, subscription, filter)| {
                    Ok(FilterSubscription {
                        subscriber: *bit as u32,
                        program: filter.program(interface)?,
                        snaplen_bytes: subscription.snaplen,
                    })
                })
                .collect::<Result<Vec<_>, CaptureError>>()?;
            let merged = match &filters[..] {
                [] => MergedFilter::none(),
                some => MergedFilter::new(some).map_err(CaptureError::load)?,
            };
            layers.push(Layer {
                link_layer,
                merged,
                filters,
            });
        }
        Ok(Self { layers })
    }

    /// Loads the program for a hook. When the verifier does not take it merged, the filters run one
    /// behind the other.
    ///
    /// # Errors
    /// [`CaptureError::Merged`] when it does not take that either, [`CaptureError::Load`].
    pub fn load(
        &self,
        hook: &Hook,
        discard: bool,
        maps: Maps<'_>,
    ) -> Result<OwnedFd, CaptureError> {
        self.load_by(hook, discard, |program| crate::filter::load(program, maps))
    }

    /// As [`Dispatchers::load`], by something that takes programs as the kernel does.
    fn load_by(
        &self,
        hook: &Hook,
        discard: bool,
        load: impl Fn(&EmittedProgram) -> Result<OwnedFd, LoadError>,
    ) -> Result<OwnedFd, CaptureError> {
        let target = Target {
            hook: match hook.kind.is_xdp() {
                true => ProgramKind::Xdp { frags: true },
                false => ProgramKind::SchedCls,
            },
            link_layer: hook.interface.link_layer(),
            discard,
            origin: Origin {
                is_outbound: hook.direction == Direction::Out,
                interface_index: hook.interface.index,
            },
            tags_beside: match hook.direction {
                Direction::In => TagsBeside::ALL,
                Direction::Out => tags_sent_beside(hook.interface.index),
            },
        };
        let Some(layer) = self
            .layers
            .iter()
            .find(|layer| layer.link_layer == target.link_layer)
        else {
            return Err(CaptureError::load("no filters were merged for this hook"));
        };
        let program = layer.merged.emit(target).map_err(CaptureError::load)?;
        load(&program).or_else(|refusal| {
            if layer.filters.is_empty() {
                return Err(CaptureError::load(refusal));
            }
            let apart = MergedFilter::apart(&layer.filters).map_err(CaptureError::load)?;
            let program = apart.emit(target).map_err(CaptureError::load)?;
            load(&program).map_err(|refusal| CaptureError::Merged {
                filters: layer.filters.len(),
                instructions: refusal.instructions,
                reason: refusal.reason(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::attachment::HookKind;
    use super::*;
    use parshall_core::trace::{LINK_TYPE_ETHERNET, LINK_TYPE_RAW};

    fn interface(link_type: u16) -> Interface {
        Interface {
            name: "eth0".into(),
            index: 1,
            link_type,
            is_loopback: false,
            is_up: true,
            mtu_bytes: 1500,
        }
    }

    #[test]
    fn a_filter_is_the_same_at_both_ends_of_a_message() {
        let interfaces = [interface(LINK_TYPE_ETHERNET), interface(LINK_TYPE_RAW)];
        let expression = "tcp port 80 and ip[6:2] & 0x3fff = 0 or host 255.254.253.252";
        let sent = CompiledFilter::compile(expression, &interfaces).unwrap();
        let text = serde_json::to_string(&sent).unwrap();
        let received: CompiledFilter = serde_json::from_str(&text).unwrap();
        for interface in &interfaces {
            let own = Expression::compile(expression, interface.link_layer(), None).unwrap();
            assert_eq!(&received.program(interface).unwrap(), own.program());
        }
    }

    /// A kernel that accepts programs up to so many instructions; it records what it was given.
    fn kernel_up_to(
        limit: usize,
        asked: &RefCell<Vec<EmittedProgram>>,
        program: &EmittedProgram,
    ) -> Result<OwnedFd, LoadError> {
        asked.borrow_mut().push(program.clone());
        if program.instructions.len() <= limit {
            return Ok(std::fs::File::open("/dev/null").unwrap().into());
        }
        Err(LoadError {
            instructions: program.instructions.len(),
            source: std::io::ErrorKind::ArgumentListTooLong.into(),
            log: "BPF program is too large.\nprocessed 1000001 insns\n".into(),
        })
    }

    #[test]
    fn filters_that_the_kernel_refuses_merged_run_one_after_another() {
        let interfaces = [interface(LINK_TYPE_ETHERNET)];
        let subscribers: Vec<(Subscription, CompiledFilter)> = (1..=16)
            .map(|host| {
                let filter = format!("host 10.9.0.{host} and port {}", 1000 + host);
                let compiled = CompiledFilter::compile(&filter, &interfaces).unwrap();
                (
                    Subscription {
                        filter,
                        snaplen: 96,
                    },
                    compiled,
                )
            })
            .collect();
        let bits: Vec<(usize, &Subscription, &CompiledFilter)> = subscribers
            .iter()
            .enumerate()
            .map(|(bit, (subscription, filter))| (bit, subscription, filter))
            .collect();
        let dispatchers = Dispatchers::merge(&bits, &interfaces).unwrap();
        let hook = Hook {
            interface: interfaces[0].clone(),
            interface_number: 0,
            direction: Direction::In,
            kind: HookKind::Tcx,
        };
        let load = |limit| {
            let asked = RefCell::new(Vec::new());
            let loaded =
                dispatchers.load_by(&hook, false, |program| kernel_up_to(limit, &asked, program));
            (loaded, asked.into_inner())
        };
        let (loaded, asked) = load(usize::MAX);
        loaded.unwrap();
        let [merged] = &asked[..] else {
            panic!("{} programs for a kernel that takes all", asked.len())
        };
        let apart = MergedFilter::apart(&dispatchers.layers[0].filters).unwrap();
        let apart = apart.emit(merged.target).unwrap();
        let least = apart.instructions.len();
        assert!(least < merged.instructions.len(), "shorter one by one");
        let (loaded, asked) = load(least);
        loaded.unwrap();
        assert_eq!(asked, [merged.clone(), apart]);
        let (refused, _) = load(least - 1);
        assert_eq!(
            refused.unwrap_err().to_string(),
            CaptureError::Merged {
                filters: 16,
                instructions: least,
                reason: "BPF program is too large.".into(),
            }
            .to_string()
        );
    }

    #[test]
    fn invalid_programs_are_refused_by_name() {
        let nonsense = CompiledFilter {
            by_link_type: vec![(LINK_TYPE_ETHERNET, vec![u64::MAX])],
            view: FrameView::Whole,
        };
        let refusal = nonsense
            .program(&interface(LINK_TYPE_ETHERNET))
            .unwrap_err();
        assert!(
            refusal.to_string().contains("eth0 is no program"),
            "{refusal}"
        );
        let refusal = nonsense.program(&interface(LINK_TYPE_RAW)).unwrap_err();
        assert!(
            refusal.to_string().starts_with("no filter was given"),
            "{refusal}"
        );
    }
}
