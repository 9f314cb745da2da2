//! Real packets on a veth in a network namespace of the test's own: VLAN tags that the kernel took
//! out of the frame, and frames that lie in pieces.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use libbpf_sys as sys;
use parshall_core::filter::emit::{Hook, LinkLayer, TagsBeside};
use parshall_kernel::net::interface::index;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::expressions::{Compiled, all, expected, merge};
use crate::frames;
use crate::kernel::{Loaded, Surroundings, available, is_tagged};

const MTU_BYTES: &str = "9000";
/// The kernel takes pieces only for frames that do not fit into a page.
const LARGE_BYTES: usize = 4_400;
/// `struct virtio_net_hdr`: flags, kind, bytes in the first piece, and three that stay 0.
const OFFLOAD_HEADER_BYTES: usize = 10;
const PACKET_VNET_HDR: i32 = 15;

/// Runs a test, if the kernel can be asked, in a thread with a network namespace of its own, which goes with the thread.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if !available() {
        return;
    }
    let thread = std::thread::spawn(move || {
        // SAFETY: the call takes a number, and concerns this thread only.
        let status = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(status, 0, "{}", io::Error::last_os_error());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip {arguments}"
    );
}

/// A cable, and a socket at one end of it.
struct Cable {
    socket: OwnedFd,
    far_index: u32,
}

impl Cable {
    fn new() -> Self {
        // So that the kernel sends nothing of its own.
        let ipv6 = Path::new("/proc/sys/net/ipv6/conf/default/disable_ipv6");
        if ipv6.exists() {
            std::fs::write(ipv6, "1").unwrap();
        }
        ip(&format!(
            "link add near mtu {MTU_BYTES} type veth peer name far mtu {MTU_BYTES}"
        ));
        // In this order: the near end starts to send when it is set up only if the far end is there.
        ip("link set far up");
        ip("link set near up");
        // SAFETY: the call takes numbers and returns a descriptor or -1.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
        assert!(socket >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor was just opened, and nobody else holds it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let on = 1_i32;
        // SAFETY: the option's value outlives the call and has the size that is said.
        let status = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_VNET_HDR,
                std::ptr::from_ref(&on).cast(),
                size_of_val(&on) as u32,
            )
        };
        assert_eq!(status, 0, "{}", io::Error::last_os_error());
        Self {
            socket,
            far_index: index("far").unwrap(),
        }
    }

    /// Sends a frame, of which so many bytes lie in the first piece if it is a large one.
    fn send(&self, frame: &[u8], first_bytes: u16) {
        let mut message = vec![0_u8; OFFLOAD_HEADER_BYTES];
        message[2..4].copy_from_slice(&first_bytes.to_le_bytes());
        message.extend(frame);
        let to = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: index("near").unwrap() as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [0; 8],
        };
        // SAFETY: message and address outlive the call and have the sizes that are said.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
                std::ptr::from_ref(&to).cast(),
                size_of_val(&to) as u32,
            )
        };
        assert_eq!(
            sent,
            message.len() as isize,
            "{}",
            io::Error::last_os_error()
        );
    }

    fn attach(&self, loaded: &Loaded<'_>) -> OwnedFd {
        let options = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        // SAFETY: the options outlive the call.
        let link = unsafe {
            sys::bpf_link_create(
                loaded.program().as_raw_fd(),
                self.far_index as i32,
                sys::BPF_TCX_INGRESS,
                &options,
            )
        };
        assert!(link >= 0, "{}", io::Error::from_raw_os_error(-link));
        // SAFETY: libbpf has just opened the descriptor for us, and nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(link) }
    }
}

/// Holds filters against libpcap's verdict on frames that come over the cable.
fn compare(chosen: &[&Compiled], frames: &[Vec<u8>], first_bytes: impl Fn(usize) -> u16) {
    compare_where(chosen, frames, first_bytes, TagsBeside::ALL);
}

/// The same, as if a packet socket there showed only these tags beside the frame.
pub fn compare_where(
    chosen: &[&Compiled],
    frames: &[Vec<u8>],
    first_bytes: impl Fn(usize) -> u16,
    tags_beside: TagsBeside,
) {
    let around = Surroundings::new(Hook::SchedCls);
    let filter = merge(chosen.iter().copied());
    let loaded = around.load_where(&filter, LinkLayer::Ethernet, tags_beside);
    let cable = Cable::new();
    let _link = cable.attach(&loaded);
    for (number, frame) in frames.iter().enumerate() {
        around.clear();
        cable.send(frame, first_bytes(number));
        let verdict = around.wait_for_verdict();
        let protocol = u16::from_be_bytes([frame[12], frame[13]]);
        let tag_is_beside = is_tagged(frame) && tags_beside.contains(protocol);
        let (subscribers, snaplen) = expected(chosen.iter().copied(), frame, tag_is_beside);
        assert_eq!(
            verdict.subscribers,
            subscribers,
            "frame {number}, {:#?}: {frame:02x?}",
            wrong(chosen, verdict.subscribers ^ subscribers)
        );
        if subscribers != 0 {
            assert_eq!(verdict.snaplen, snaplen, "frame {number}");
        }
    }
}

/// The filters with these bits.
pub fn wrong<'a>(chosen: &[&'a Compiled], bits: u64) -> Vec<&'a str> {
    let wrong = chosen.iter().zip(0..).filter(|(_, at)| bits >> at & 1 != 0);
    wrong.map(|(compiled, _)| compiled.text.as_str()).collect()
}

/// Frames that reach the hook: the kernel drops what ends within a tag.
pub fn frames(count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    std::iter::repeat_with(|| frames::ethernet(&mut random))
        .filter(|frame| frame.len() >= 20)
        .take(count)
        .collect()
}

#[test]
fn a_tag_beside_the_frame_counts_as_part_of_it() {
    in_namespace(|| {
        let frames = frames(400, 7);
        let tagged = frames.iter().filter(|frame| is_tagged(frame)).count();
        assert!(tagged > 100, "{tagged} frames with a tag are no test");
        let compiled = all(LinkLayer::Ethernet);
        for chosen in compiled.chunks(48) {
            let chosen: Vec<&Compiled> = chosen.iter().collect();
            compare(&chosen, &frames, |_| 0);
            ip("link del near");
        }
    });
}

#[test]
fn one_filter_for_tags() {
    in_namespace(|| {
        let frames = frames(200, 8);
        for text in [
            "vlan",
            "vlan 100 and tcp port 80",
            "vlan and vlan and ip",
            "ether[12:4] = 0x81000064",
            "ether[13:1] = 0",
            "ether[ether[3] & 15] = 0",
            "len = 64 or vlan and greater 90",
        ] {
            let compiled = Compiled::new(text, LinkLayer::Ethernet);
            compare(&[&compiled], &frames, |_| 0);
            ip("link del near");
        }
    });
}

/// Frames that lie in pieces, and how many bytes are in the first one.
pub fn large_frames(count: usize, seed: u64) -> (Vec<Vec<u8>>, Vec<u16>) {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let frames = frames(count, seed + 1).into_iter().map(|mut frame| {
        frame.extend((frame.len()..LARGE_BYTES).map(|_| random.random::<u8>()));
        (frame, random.random_range(14..120))
    });
    frames.unzip()
}

#[test]
fn filters_match_frames_in_several_buffers() {
    in_namespace(|| {
        let (frames, firsts) = large_frames(200, 9);
        let compiled = all(LinkLayer::Ethernet);
        for chosen in compiled.chunks(48) {
            let chosen: Vec<&Compiled> = chosen.iter().collect();
            compare(&chosen, &frames, |number| firsts[number]);
            ip("link del near");
        }
    });
}
