//! What variants of the capture program cost: nanoseconds a packet, by `BPF_PROG_TEST_RUN`.
//!
//! `hook_parts ROUNDS BYTES[,BYTES...] RING_BYTES NAME=OBJECT...`, as root; `benches/hook_parts.py` makes the objects.
//! Every variant runs once in each round, one behind the other, so that a change of the machine's speed meets all
//! alike. The one named `alone` runs without a filter before it. A line for each size and variant: bytes, name, and
//! the nanoseconds of each round.

use std::error::Error;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use parshall_core::abi::{CAPTURE_SLACK_BYTES, CaptureOptions, plain_bytes};
use parshall_core::filter::classic::Origin;
use parshall_core::filter::emit::{Hook, LinkLayer, TagsBeside, Target};
use parshall_core::filter::{MergedFilter, Subscription};
use parshall_kernel::filter::{Expression, Maps, load, try_out};
use parshall_kernel::net::mapping::mappable_array;
use parshall_kernel::ring::{Preference, bottom_halves_run_alone, lane_bytes, layout_with_slack};

const REPEAT: u32 = 200_000;
const PROGRAM: &str = "capture_xdp";

/// A variant that is loaded.
struct Variant {
    name: String,
    /// What is run.
    start: OwnedFd,
    /// Holds the maps and the program behind the filter.
    _object: Object,
}

impl Variant {
    fn load(
        name: &str,
        path: &str,
        ring: &MapHandle,
        options: &CaptureOptions,
    ) -> Result<Self, Box<dyn Error>> {
        let mut open = ObjectBuilder::default().open_file(path)?;
        for mut map in open.maps_mut() {
            let map_name = map.name().to_string_lossy().into_owned();
            if map_name == "ring" {
                map.reuse_fd(ring.as_fd())?;
            } else if map_name.ends_with("rodata.options") {
                map.set_initial_value(plain_bytes(options))?;
            }
        }
        for mut program in open.progs_mut() {
            let is_wanted = program.name() == PROGRAM;
            program.set_autoload(is_wanted);
        }
        let object = open.load()?;
        let copy = object
            .progs()
            .find(|program| program.name() == PROGRAM)
            .ok_or("the object has no such program")?
            .as_fd()
            .try_clone_to_owned()?;
        let start = match name {
            "alone" => copy,
            _ => filter_before(&copy, &find(&object, "jumps")?, &find(&object, "verdict")?)?,
        };
        Ok(Self {
            name: name.into(),
            start,
            _object: object,
        })
    }
}

fn find<'object>(object: &'object Object, name: &str) -> Result<Map<'object>, String> {
    object
        .maps()
        .find(|map| map.name() == name)
        .ok_or_else(|| format!("the object has no map {name}"))
}

/// A filter that takes everything and goes on to `copy`.
fn filter_before(
    copy: &OwnedFd,
    jumps: &Map<'_>,
    verdict: &Map<'_>,
) -> Result<OwnedFd, Box<dyn Error>> {
    jumps.update(
        &0_u32.to_ne_bytes(),
        &copy.as_raw_fd().to_ne_bytes(),
        MapFlags::ANY,
    )?;
    let everything = Subscription {
        subscriber: 0,
        program: Expression::compile("", LinkLayer::Ethernet, None)?
            .program()
            .clone(),
        snaplen_bytes: 262_144,
    };
    let program = MergedFilter::new(&[everything])?.emit(Target {
        hook: Hook::Xdp { frags: true },
        link_layer: LinkLayer::Ethernet,
        discard: true,
        origin: Origin::default(),
        tags_beside: TagsBeside::ALL,
    })?;
    let unfiltered = mappable_array("hook_parts", size_of::<u64>(), 1)?;
    let maps = Maps {
        verdict: verdict.as_fd(),
        jumps: jumps.as_fd(),
        unfiltered: unfiltered.as_fd(),
    };
    Ok(load(&program, maps)?)
}

/// The ring of a capture, and the options of its programs.
fn ring(ring_bytes: u64) -> Result<(MapHandle, CaptureOptions), Box<dyn Error>> {
    let mut layout = layout_with_slack(ring_bytes, Preference::FastReader, CAPTURE_SLACK_BYTES)?;
    layout.writers_alone = u64::from(bottom_halves_run_alone());
    let map = mappable_array(
        "hook_parts",
        lane_bytes(&layout),
        libbpf_rs::num_possible_cpus()?,
    )?;
    let options = CaptureOptions {
        layout,
        discard: 1,
        ..CaptureOptions::default()
    };
    Ok((map, options))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || {
        arguments
            .next()
            .ok_or("see the first lines of this example")
    };
    let rounds: usize = next()?.parse()?;
    let sizes = next()?;
    let (ring, options) = ring(next()?.parse()?)?;
    let variants = arguments
        .map(|argument| {
            let (name, path) = argument.split_once('=').ok_or("expected NAME=OBJECT")?;
            Variant::load(name, path, &ring, &options)
        })
        .collect::<Result<Vec<_>, _>>()?;
    for bytes in sizes.split(',') {
        let frame = vec![0x55; bytes.parse()?];
        let mut runs_ns = vec![Vec::new(); variants.len()];
        for round in 0..rounds {
            for number in 0..variants.len() {
                let number = (number + round) % variants.len();
                let trial = try_out(variants[number].start.as_fd(), &frame, None, REPEAT)?;
                runs_ns[number].push(trial.duration_ns);
            }
        }
        for (variant, runs_ns) in variants.iter().zip(&runs_ns) {
            println!("{bytes}\t{}\t{runs_ns:?}", variant.name);
        }
    }
    Ok(())
}
