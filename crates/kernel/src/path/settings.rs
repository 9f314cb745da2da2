//! What the programs are given of a request.

use parshall_core::abi::{PATH_FILTER_MAX, PathOptions};
use parshall_core::filter::classic::ClassicInstruction;
use parshall_core::filter::emit::LinkLayer;

use super::drop_reasons::DropReasons;
use super::request::{Group, PathRequest};
use super::selection::Selection;
use crate::cgroup;
use crate::filter::Expression;
use crate::measurement_error::MeasurementError;
use crate::net::interface;
use crate::ring::{self, Preference};

/// Constants of the programs, which the verifier sees.
pub(super) struct Settings {
    pub options: PathOptions,
    pub filter: Vec<ClassicInstruction>,
    /// Indices of the interfaces whose packets are followed; none: those of all.
    pub interfaces: Vec<u32>,
}

impl Settings {
    /// Those of a request, in whose network namespace the calling thread is.
    pub fn of(request: &PathRequest, selection: &Selection) -> Result<Self, MeasurementError> {
        let filter = compile(request.filter.as_deref())?;
        let interfaces = indices(&request.interfaces)?;
        let reasons = DropReasons::of_this_kernel();
        let group = cgroup::resolve(request.cgroup.as_deref())?;
        let has_groups = request.group != Group::None;
        let mut options = PathOptions {
            layout: ring::layout(request.ring_bytes, Preference::FastReader)?,
            cgroup_id: group.id,
            interface_count: interfaces.len() as u32,
            // Other namespaces have interfaces with the same numbers.
            netns_inode: match request.netns.is_some() || !interfaces.is_empty() {
                true => interface::namespace_number() as u32,
                false => 0,
            },
            every: request.every,
            filter_length: filter.len() as u32,
            stages: selection.stages(),
            table_bits: request.packets_max.trailing_zeros(),
            writes_records: u32::from(request.path.is_some()),
            group: request.group as u32,
            groups_max: if has_groups { request.groups_max } else { 0 },
            reads_headers: u32::from(request.path.is_some() || has_groups || group.id != 0),
            follows_readers: u32::from(selection.others.contains(&"path_read")),
            delivered_reasons: reasons.delivered(),
            refused_reason: reasons.refused(),
            queue_reasons: reasons.of_queues(),
            ..PathOptions::default()
        };
        options.interfaces[..interfaces.len()].copy_from_slice(&interfaces);
        Ok(Self {
            options,
            filter,
            interfaces,
        })
    }
}

fn indices(interfaces: &[String]) -> Result<Vec<u32>, MeasurementError> {
    let index = |name: &String| {
        interface::index(name).map_err(|_| MeasurementError::Option {
            option: "interface",
            value: name.clone(),
            expected: "an interface of this network namespace (ip link lists them)".into(),
        })
    };
    interfaces.iter().map(index).collect()
}

fn compile(filter: Option<&str>) -> Result<Vec<ClassicInstruction>, MeasurementError> {
    let Some(text) = filter else {
        return Ok(Vec::new());
    };
    let expression = Expression::compile(text, LinkLayer::RawIp, None)?;
    if expression.program().asks_for_origin() {
        return Err(MeasurementError::Option {
            option: "filter",
            value: text.into(),
            expected: "no inbound, outbound or ifindex, as packets pass several interfaces; use --interface".into(),
        });
    }
    let instructions = expression.instructions().to_vec();
    if instructions.len() > PATH_FILTER_MAX {
        return Err(MeasurementError::Option {
            option: "filter",
            value: format!("{} instructions", instructions.len()),
            expected: format!("at most {PATH_FILTER_MAX}; give a shorter expression"),
        });
    }
    Ok(instructions)
}
