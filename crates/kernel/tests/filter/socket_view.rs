//! Filters with the view of a packet socket, on which the outer VLAN tag stands beside the frame, beside filters that see
//! the whole frame.

use parshall_core::filter::emit::{Hook, LinkLayer, TagsBeside};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use crate::expressions::{Compiled, all, expected, merge};
use crate::kernel::{Loaded, Surroundings, available, is_tagged};
use crate::traffic::{compare_where, frames, in_namespace, ip, large_frames};
use crate::witness::Handle;

/// Beside those of the data file: what stands near the tag, or depends on its place.
const EXPRESSIONS: [&str; 24] = [
    "vlan",
    "vlan 100",
    "not vlan",
    "vlan 100 and tcp port 80",
    "ip and vlan",
    "udp or vlan",
    "vlan and vlan",
    "vlan and vlan and ip",
    "vlan or greater 90",
    "not ip",
    "ether[12:2] = 0x8100",
    "ether[12:2] = 0x88a8",
    "ether[10:4] = 0x00010800",
    "ether[11:2] & 0xff = 8",
    "ether[9:4] != 0",
    "ip and ether[14] = 0x45",
    "ether[13:1] = 0",
    "ether[ip[0] & 1] = 2",
    "ether[(ether[3] & 15) + 12] = 0",
    "len <= 60",
    "len - 14 > ip[2:2]",
    "greater 60 and udp",
    "tcp[tcpflags] & tcp-syn != 0",
    "udp[ip[8] & 3] = 0",
];

/// All of them, and those that see the whole frame.
fn compiled() -> Vec<Compiled> {
    let live = Handle::live();
    let mut compiled = all(LinkLayer::Ethernet);
    let texts: Vec<String> = compiled.iter().map(|whole| whole.text.clone()).collect();
    let texts = texts.iter().map(String::as_str).chain(EXPRESSIONS);
    let on_socket = texts.filter_map(|text| Compiled::on_socket(text, &live));
    compiled.extend(on_socket.filter(Compiled::can_be_merged));
    compiled
}

/// The same, in sets in which both views are mixed.
fn sets(seed: u64) -> Vec<Vec<Compiled>> {
    let mut compiled = compiled();
    compiled.shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
    compiled.chunks(40).map(<[Compiled]>::to_vec).collect()
}

/// Holds a loaded set against libpcap on frames in their linear part, or with so many bytes in the first buffer.
fn check(loaded: &Loaded<'_>, set: &[Compiled], frame: &[u8], linear_bytes: Option<u32>) {
    let wanted = expected(set, frame, loaded.has_tag_beside(frame));
    let found = loaded.verdict_when_linear(frame, linear_bytes);
    let set: Vec<&Compiled> = set.iter().collect();
    let wrong = crate::traffic::wrong(&set, found.0 ^ wanted.0);
    assert_eq!(found, wanted, "{wrong:#?}: {frame:02x?}");
}

#[test]
fn both_views_of_a_frame_in_the_driver() {
    in_the_driver(2);
}

#[test]
#[ignore = "all filters: make test-long"]
fn long_both_views_of_a_frame_in_the_driver() {
    in_the_driver(1);
}

/// Of the sets, which are shuffled, every `step`-th.
fn in_the_driver(step: usize) {
    if !available() {
        return;
    }
    let frames = frames(300, 11);
    for frags in [false, true] {
        let around = Surroundings::new(Hook::Xdp { frags });
        for set in sets(12).into_iter().step_by(step) {
            let loaded = around.load(&merge(&set), LinkLayer::Ethernet);
            for (number, frame) in frames.iter().enumerate() {
                check(&loaded, &set, frame, None);
                if frags {
                    let linear_bytes = 14 + number as u32 % (frame.len() as u32 - 13);
                    check(&loaded, &set, frame, Some(linear_bytes.min(100)));
                }
            }
        }
    }
}

/// Sends frames, whole ones and ones in pieces, to sets of filters at a hook where a packet socket shows these tags
/// beside the frame. Both go to the same programs: the kernel takes seconds to verify them. Of the sets, which are
/// shuffled, every `step`-th.
fn over_a_cable(tags_beside: TagsBeside, seed: u64, step: usize) {
    if !available() {
        return;
    }
    let (mut sent, firsts) = large_frames(200, seed);
    sent.extend(frames(300, seed + 2));
    let tagged = sent.iter().filter(|frame| is_tagged(frame)).count();
    assert!(tagged > 120, "{tagged} frames with a tag are no test");
    let sets = sets(seed + 3).into_iter().step_by(step);
    in_namespace(move || {
        for set in sets {
            let set: Vec<&Compiled> = set.iter().collect();
            let first = |number| firsts.get(number).copied().unwrap_or(0);
            compare_where(&set, &sent, first, tags_beside);
            ip("link del near");
        }
    });
}

#[test]
fn both_views_of_a_tag_in_the_metadata() {
    over_a_cable(TagsBeside::ALL, 13, 2);
}

#[test]
#[ignore = "all filters: make test-long"]
fn long_both_views_of_a_tag_in_the_metadata() {
    over_a_cable(TagsBeside::ALL, 13, 1);
}

/// Where the stack writes some tags into the frame before a packet socket sees it.
#[test]
fn a_tag_that_the_stack_writes_into_the_frame_is_in_both_views() {
    let (customer, service) = (true, false);
    over_a_cable(TagsBeside { customer, service }, 17, 2);
}

#[test]
#[ignore = "hooks where a service tag alone, or no tag, is beside, and all filters: make test-long"]
fn long_tags_that_the_stack_writes_into_the_frame_are_in_both_views() {
    for (customer, service) in [(true, false), (false, true), (false, false)] {
        over_a_cable(TagsBeside { customer, service }, 17, 1);
    }
}
