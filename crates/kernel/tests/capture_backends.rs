//! Socket captures see on a real veth what tcpdump sees, and their accounts balance.
//!
//! They need root: network namespaces and packet sockets. Without it they say so and pass; under CI
//! they fail.

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use parshall_core::filter::classic::ClassicInstruction;
use parshall_core::trace::{Direction, Packet, Reader};
use parshall_kernel::capture::backend::{self, Backend, Counts, Kind, Settings};

const PATIENCE: Duration = Duration::from_secs(20);

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert!(
            std::env::var_os("CI").is_none(),
            "root is required under CI"
        );
        eprintln!("skipped: needs root");
    }
    is_root
}

/// Runs a command that must succeed.
fn run(line: &str) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().expect("a program"))
        .args(words)
        .output()
        .expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
}

/// This thread in a network namespace without a name, with a veth whose ends answer each other's
/// neighbours statically, so that nothing passes but what the test sends. All goes with the thread. False without root.
fn has_veth() -> bool {
    if !is_root() {
        return false;
    }
    // SAFETY: a plain system call without pointers; it concerns this thread and its children only.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "root may");
    for line in [
        "sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
        "ip link add near address 02:00:00:00:00:01 type veth peer name far address 02:00:00:00:00:02",
        "ip link set lo up",
        "ip link set near up",
        "ip link set far up",
        "ip address add 10.9.0.1/24 dev near",
        "ip neighbour add 10.9.0.9 lladdr 02:00:00:00:00:02 dev near nud permanent",
    ] {
        run(line);
    }
    true
}

fn settings<'a>(interface: &'a str, filter: Option<&'a [ClassicInstruction]>) -> Settings<'a> {
    Settings {
        interface,
        filter,
        snaplen_bytes: 0,
        buffer_bytes: 4 << 20,
        promiscuous: true,
    }
}

/// What is kept of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    direction: Direction,
    wire_bytes: u32,
    captured: Vec<u8>,
    time_ns: u64,
}

fn keep(seen: &mut Vec<Seen>) -> impl FnMut(&Packet<'_>) {
    |packet| {
        seen.push(Seen {
            direction: packet.direction,
            wire_bytes: packet.wire_bytes,
            captured: packet.captured.to_vec(),
            time_ns: packet.time_ns,
        });
    }
}

/// Reads until as many packets are there, stops, and reads what still waits.
fn collect(capture: &mut dyn Backend, packets: usize) -> (Vec<Seen>, Counts) {
    let mut seen = Vec::new();
    let start = Instant::now();
    while seen.len() < packets {
        assert!(start.elapsed() < PATIENCE, "{} of {packets}", seen.len());
        capture
            .next_batch(Duration::from_millis(100), &mut keep(&mut seen))
            .expect("the interface is there");
    }
    drain(capture, &mut seen);
    let counts = capture.counts().expect("open");
    assert_eq!(counts.seen, counts.dropped + counts.delivered, "{counts:?}");
    assert_eq!(counts.delivered, seen.len() as u64);
    (seen, counts)
}

/// Stops, and reads what still waits.
fn drain(capture: &mut dyn Backend, seen: &mut Vec<Seen>) {
    capture.stop().expect("open");
    let mut take = keep(seen);
    while capture
        .next_batch(Duration::from_millis(200), &mut take)
        .expect("open")
        > 0
    {}
}

/// UDP packets from `near` to a neighbour behind `far`, of 42 to 1471 bytes.
fn send(packets: usize, port: u16) {
    // Of no certain port: a program that another test starts at this moment holds the last socket for a while.
    let socket = UdpSocket::bind("10.9.0.1:0").expect("the address is there");
    for number in 0..packets {
        let payload: Vec<u8> = (0..number % 1430).map(|at| (at + number) as u8).collect();
        socket
            .send_to(&payload, ("10.9.0.9", port))
            .expect("there is a route");
    }
}

/// A tcpdump that writes so many packets and ends.
struct Tcpdump {
    child: Child,
    path: std::path::PathBuf,
}

impl Tcpdump {
    fn start(interface: &str, path: &Path, packets: usize) -> Self {
        let mut child = Command::new("tcpdump")
            .args([
                "-n",
                "--time-stamp-precision=nano",
                "-s2000",
                "-B16384",
                "-i",
                interface,
            ])
            .args(["-c", &packets.to_string(), "-w"])
            .arg(path)
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump is installed");
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert!(
                errors.read_line(&mut line).expect("text") > 0,
                "tcpdump ended"
            );
        }
        let path = path.to_owned();
        Self { child, path }
    }

    fn packets(mut self) -> Vec<Seen> {
        let start = Instant::now();
        while self.child.try_wait().expect("a child").is_none() {
            if start.elapsed() > PATIENCE {
                self.child.kill().expect("it lives");
                panic!("tcpdump waits for packets that it lost or that never came");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut reader = Reader::open(&self.path).expect("a capture file");
        let mut seen = Vec::new();
        while let Some(packet) = reader.next().expect("a good file") {
            keep(&mut seen)(&packet);
        }
        seen
    }
}

/// Without what only one of two captures knows.
fn plain(seen: &[Seen], with_times: bool) -> Vec<Seen> {
    let mut seen = seen.to_vec();
    for packet in &mut seen {
        packet.direction = Direction::Unknown;
        if !with_times {
            packet.time_ns = 0;
        }
    }
    seen
}

#[test]
fn packet_sockets_see_what_tcpdump_sees() {
    if !has_veth() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    for kind in [Kind::Receive, Kind::MappedBlocks] {
        for (interface, direction) in [("near", Direction::Out), ("far", Direction::In)] {
            let path = directory.path().join("t.pcap");
            let tcpdump = Tcpdump::start(interface, &path, 1500);
            let mut capture = backend::open(kind, &settings(interface, None)).expect("root may");
            send(1500, 5000);
            let (seen, counts) = collect(&mut *capture, 1500);
            assert_eq!(
                (counts.seen, counts.dropped),
                (1500, 0),
                "{kind:?} {interface}"
            );
            assert!(seen.iter().all(|packet| packet.direction == direction));
            // One packet has one stamp when it comes in; on the way out each capture looks at the clock.
            let with_times = interface == "far";
            let expected = plain(&tcpdump.packets(), with_times);
            assert!(plain(&seen, with_times) == expected, "{kind:?} {interface}");
        }
    }
}

#[test]
fn af_xdp_takes_received_packets_from_the_stack() {
    if !has_veth() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("t.pcap");
    let tcpdump = Tcpdump::start("near", &path, 1500);
    let mut af_xdp = backend::open(Kind::AfXdp, &settings("far", None)).expect("root may");
    let mut behind = backend::open(Kind::Receive, &settings("far", None)).expect("root may");
    let mut seen = Vec::new();
    for _ in 0..5 {
        send(300, 5000);
        let before = seen.len();
        let start = Instant::now();
        while seen.len() < before + 300 {
            assert!(start.elapsed() < PATIENCE, "{}", seen.len());
            let mut take = keep(&mut seen);
            af_xdp
                .next_batch(Duration::from_millis(100), &mut take)
                .expect("open");
        }
    }
    drain(&mut *af_xdp, &mut seen);
    let expected = Counts {
        seen: 1500,
        dropped: 0,
        delivered: 1500,
    };
    assert_eq!(af_xdp.counts().expect("open"), expected);
    assert!(
        seen.iter()
            .all(|packet| packet.direction == Direction::In && packet.time_ns > 0)
    );
    assert!(plain(&seen, false) == plain(&tcpdump.packets(), false));
    // Once it has stopped, packets go their way again: these are the first that the stack sees.
    send(10, 5001);
    let (after, counts) = collect(&mut *behind, 10);
    assert_eq!((after.len(), counts.seen), (10, 10));
}

/// Takes UDP over IPv4 to port 5000, as libpcap compiles it.
fn port_5000() -> [ClassicInstruction; 8] {
    let of = |code, jt, jf, k| ClassicInstruction { code, jt, jf, k };
    [
        of(0x28, 0, 0, 12),
        of(0x15, 0, 5, 0x800),
        of(0x30, 0, 0, 23),
        of(0x15, 0, 3, 17),
        of(0x28, 0, 0, 36),
        of(0x15, 0, 1, 5000),
        of(0x06, 0, 0, 262_144),
        of(0x06, 0, 0, 0),
    ]
}

#[test]
fn filter_and_snaplen_hold_from_the_first_packet() {
    if !has_veth() {
        return;
    }
    let filter = port_5000();
    for kind in [Kind::Receive, Kind::MappedBlocks] {
        let settings = Settings {
            snaplen_bytes: 60,
            ..settings("near", Some(&filter))
        };
        let mut capture = backend::open(kind, &settings).expect("root may");
        send(100, 5001);
        send(100, 5000);
        let (seen, counts) = collect(&mut *capture, 100);
        assert_eq!((seen.len(), counts.seen), (100, 100), "{kind:?}");
        for (number, packet) in seen.iter().enumerate() {
            assert_eq!(packet.wire_bytes as usize, 42 + number);
            assert_eq!(packet.captured.len(), (42 + number).min(60));
            assert_eq!(packet.captured[36..38], 5000u16.to_be_bytes());
        }
    }
}

#[test]
fn af_xdp_takes_only_accepted_packets_from_the_stack() {
    if !has_veth() {
        return;
    }
    let filter = port_5000();
    let settings_of = |filter| Settings {
        snaplen_bytes: 60,
        ..settings("far", filter)
    };
    let mut af_xdp = backend::open(Kind::AfXdp, &settings_of(Some(&filter))).expect("root may");
    let mut stack = backend::open(Kind::Receive, &settings_of(None)).expect("root may");
    send(100, 5001);
    send(100, 5000);
    for (capture, port) in [(&mut af_xdp, 5000u16), (&mut stack, 5001)] {
        let (seen, counts) = collect(&mut **capture, 100);
        assert_eq!((seen.len(), counts.seen), (100, 100), "port {port}");
        for (number, packet) in seen.iter().enumerate() {
            assert_eq!(packet.wire_bytes as usize, 42 + number);
            assert_eq!(packet.captured.len(), (42 + number).min(60));
            assert_eq!(packet.captured[36..38], port.to_be_bytes());
        }
    }
}

#[test]
fn packets_dropped_by_a_full_buffer_are_counted() {
    if !has_veth() {
        return;
    }
    for kind in [Kind::Receive, Kind::MappedBlocks, Kind::AfXdp] {
        let settings = Settings {
            buffer_bytes: 64 << 10,
            ..settings("far", None)
        };
        let mut capture = backend::open(kind, &settings).expect("root may");
        send(20_000, 5000);
        let (_, counts) = collect(&mut *capture, 1);
        assert_eq!(counts.seen, 20_000, "{kind:?}");
        assert!(counts.dropped > 10_000, "{kind:?} {counts:?}");
    }
}

/// Sends a frame as it is.
fn send_frame(interface: &str, frame: &[u8]) {
    let index = parshall_kernel::net::interface::index(interface).expect("it exists");
    // SAFETY: plain system calls; address and frame outlive them, and lengths are theirs.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        let bytes = size_of::<libc::sockaddr_ll>() as u32;
        let to = (&raw const address).cast();
        let sent = libc::sendto(socket, frame.as_ptr().cast(), frame.len(), 0, to, bytes);
        assert_eq!(sent, frame.len() as isize);
        libc::close(socket);
    }
}

#[test]
fn vlan_tags_are_where_they_were_on_the_wire() {
    if !has_veth() {
        return;
    }
    let mut frame = vec![
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0xa0, 7, 8, 0, 0x45,
    ];
    frame.resize(100, 9);
    for kind in [Kind::Receive, Kind::MappedBlocks, Kind::AfXdp] {
        let mut capture = backend::open(kind, &settings("far", None)).expect("root may");
        send_frame("near", &frame);
        let (seen, _) = collect(&mut *capture, 1);
        assert_eq!(seen[0].captured, frame, "{kind:?}");
        assert_eq!(seen[0].wire_bytes, 100, "{kind:?}");
    }
}

#[test]
fn errors_name_interfaces_that_cannot_be_captured() {
    if !is_root() {
        return;
    }
    for kind in [Kind::Receive, Kind::MappedBlocks, Kind::AfXdp] {
        let error = backend::open(kind, &settings("nothing0", None))
            .err()
            .expect("no such interface");
        assert!(
            error
                .to_string()
                .starts_with("interface nothing0: no such interface"),
            "{error}"
        );
    }
}
