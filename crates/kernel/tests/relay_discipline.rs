//! The disciplines of the emulated queue against what their documents say of them, with times that the test makes.

use parshall_kernel::relay::{Bottleneck, Discipline, Outcome, Shape, Waiting};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// 1,250 bytes take a millisecond.
const RATE_BPS: u64 = 10_000_000;
const FRAME_BYTES: usize = 1250;

fn shape(discipline: Discipline) -> Shape {
    Shape {
        rate_bps: Some(RATE_BPS),
        queue_packets: Some(1000),
        discipline,
        ..Shape::default()
    }
    .checked()
    .unwrap()
}

/// A UDP datagram of IPv4 between two ports, whose hosts understand ECN or do not.
fn frame(source_port: u16, is_capable: bool, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    frame[12..14].copy_from_slice(&[8, 0]);
    let header = &mut frame[14..];
    header[0] = 0x45;
    header[1] = if is_capable { 2 } else { 0 };
    header[9] = 17;
    header[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = !checksum(&header[..20]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header[20..22].copy_from_slice(&source_port.to_be_bytes());
    frame
}

/// The sum of the words of a header (RFC 1071); with the right checksum in it, all ones.
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn port(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

/// What became of frames, in the order in which it was known.
#[derive(Default)]
struct Seen {
    served: Vec<(Vec<u8>, u64, bool)>,
    full: usize,
    early: usize,
}

impl Seen {
    fn note(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Serialised {
                bytes,
                at_ns,
                is_marked,
            } => self.served.push((bytes, at_ns, is_marked)),
            Outcome::Full { .. } => self.full += 1,
            Outcome::Early { .. } => self.early += 1,
        }
    }
}

fn offer(queue: &mut Bottleneck, seen: &mut Seen, arrival_ns: u64, bytes: Vec<u8>) {
    let size_bytes = bytes.len() as u64;
    let waiting = Waiting {
        arrival_ns,
        size_bytes,
        bytes,
        is_marked: false,
    };
    queue.offer(waiting, |outcome| seen.note(outcome));
}

/// A source that sends faster than the line for a time; returns what became of its frames.
fn overload(shape: &Shape, gap_ns: u64, until_ns: u64, is_capable: bool) -> Seen {
    let mut queue = Bottleneck::new(shape, 1).unwrap();
    let mut seen = Seen::default();
    let mut at_ns = 0;
    while at_ns < until_ns {
        offer(
            &mut queue,
            &mut seen,
            at_ns,
            frame(1, is_capable, FRAME_BYTES),
        );
        at_ns += gap_ns;
    }
    queue.advance(u64::MAX / 2, |outcome| seen.note(outcome));
    assert_eq!(queue.packets(), 0);
    seen
}

#[test]
fn below_the_rate_nothing_is_dropped_or_waits() {
    for discipline in [Discipline::Codel, Discipline::FqCodel, Discipline::Pie] {
        let seen = overload(&shape(discipline), 2 * MS, 20_000 * MS, false);
        assert_eq!((seen.served.len(), seen.full, seen.early), (10_000, 0, 0));
        let times = seen.served.iter().map(|(_, at_ns, _)| *at_ns);
        assert!(times.eq((0..10_000).map(|number| number * 2 * MS + MS)));
    }
}

#[test]
fn a_busy_line_keeps_its_exact_rate() {
    // 100 bytes at 3 Gbit/s take 266 2/3 ns.
    for discipline in [Discipline::Codel, Discipline::FqCodel, Discipline::Pie] {
        let fast = Shape {
            rate_bps: Some(3_000_000_000),
            ..shape(discipline)
        };
        let mut queue = Bottleneck::new(&fast, 1).unwrap();
        let mut seen = Seen::default();
        for _ in 0..900 {
            offer(&mut queue, &mut seen, 0, frame(1, false, 100));
        }
        queue.advance(MS, |outcome| seen.note(outcome));
        let times = seen.served.iter().map(|(_, at_ns, _)| *at_ns);
        assert!(times.eq((1..=900_u64).map(|number| (number * 800).div_ceil(3))));
    }
}

#[test]
fn times_that_run_backwards_count_as_the_latest() {
    for discipline in [Discipline::Codel, Discipline::FqCodel, Discipline::Pie] {
        let mut queue = Bottleneck::new(&shape(discipline), 1).unwrap();
        let mut seen = Seen::default();
        for arrival_ns in [5 * MS, 2 * MS, 4 * MS] {
            offer(
                &mut queue,
                &mut seen,
                arrival_ns,
                frame(1, false, FRAME_BYTES),
            );
        }
        queue.advance(20 * MS, |outcome| seen.note(outcome));
        let times: Vec<u64> = seen.served.iter().map(|(_, at_ns, _)| *at_ns).collect();
        assert_eq!(times, [6 * MS, 7 * MS, 8 * MS]);
    }
}

#[test]
fn codel_drops_when_frames_waited_too_long_for_an_interval_and_then_ever_faster() {
    // Twice the rate: a frame that comes at t waits t / 2 ms.
    let mut queue = Bottleneck::new(&shape(Discipline::Codel), 1).unwrap();
    let mut seen = Seen::default();
    let mut drops_ns = Vec::new();
    for number in 0..2000 {
        let at_ns = number * MS / 2;
        offer(&mut queue, &mut seen, at_ns, frame(1, false, FRAME_BYTES));
        if seen.early > drops_ns.len() {
            drops_ns.push(at_ns);
        }
    }
    // The frame taken after 10 ms is the first that waited 5 ms; the first drop is an interval later.
    assert!((109 * MS..112 * MS).contains(&drops_ns[0]), "{drops_ns:?}");
    // Then after 100 ms / sqrt(n): the law of control.
    let mut expected_ns = drops_ns[0];
    for (number, at_ns) in drops_ns.iter().enumerate().skip(1).take(8) {
        expected_ns += (100.0 * MS as f64 / (number as f64).sqrt()) as u64;
        assert!(
            at_ns.abs_diff(expected_ns) <= 2 * MS,
            "{number}: {drops_ns:?}"
        );
    }
}

#[test]
fn codel_marks_in_place_of_dropping_where_hosts_understand_it() {
    let marking = Shape {
        is_ecn: true,
        ..shape(Discipline::Codel)
    };
    let seen = overload(&marking, MS / 2, 400 * MS, true);
    let marked = seen.served.iter().filter(|(_, _, is_marked)| *is_marked);
    assert_eq!(seen.early, 0);
    assert!(marked.clone().count() > 3);
    for (bytes, _, is_marked) in &seen.served {
        assert_eq!(bytes[15] & 3, if *is_marked { 3 } else { 2 });
        assert_eq!(
            checksum(&bytes[14..34]),
            0xffff,
            "the checksum fits the mark"
        );
    }
    // Frames of others are dropped.
    let seen = overload(&marking, MS / 2, 400 * MS, false);
    assert!(seen.early > 3 && seen.served.iter().all(|(_, _, is_marked)| !is_marked));
}

#[test]
fn fq_codel_lets_a_sparse_flow_pass_a_standing_queue_and_shares_evenly() {
    let mut queue = Bottleneck::new(&shape(Discipline::FqCodel), 1).unwrap();
    let mut seen = Seen::default();
    for number in 0..4000_u64 {
        let at_ns = number * MS / 4;
        // Two flows that fill the line, the second with three frames to one of the first, and a frame of a third now and
        // then.
        let source = if number % 4 == 0 { 1 } else { 2 };
        offer(
            &mut queue,
            &mut seen,
            at_ns,
            frame(source, false, FRAME_BYTES),
        );
        if number % 100 == 50 {
            let before = seen.served.len();
            offer(&mut queue, &mut seen, at_ns, frame(3, false, 100));
            queue.advance(at_ns + 2 * MS, |outcome| seen.note(outcome));
            let mine = seen.served[before..]
                .iter()
                .find(|(bytes, _, _)| port(bytes) == 3);
            let (_, served_ns, _) = mine.expect("it goes before those that wait");
            // Behind the frame in the serialiser, and perhaps one other.
            assert!(served_ns - at_ns < 3 * MS);
        }
    }
    let of = |wanted| {
        seen.served
            .iter()
            .filter(|(bytes, _, _)| port(bytes) == wanted)
            .count()
    };
    assert!(of(1).abs_diff(of(2)) <= 20, "{} and {}", of(1), of(2));
}

#[test]
fn fq_codel_drops_from_the_longest_queue_when_there_is_no_room() {
    let small = Shape {
        queue_packets: Some(20),
        ..shape(Discipline::FqCodel)
    };
    let mut queue = Bottleneck::new(&small, 1).unwrap();
    let mut seen = Seen::default();
    for number in 0..50 {
        offer(&mut queue, &mut seen, number, frame(1, false, FRAME_BYTES));
    }
    assert_eq!(seen.full, 30);
    offer(&mut queue, &mut seen, 60, frame(2, false, 100));
    assert_eq!((seen.full, queue.packets()), (31, 19));
    queue.advance(60 * MS, |outcome| seen.note(outcome));
    assert_eq!(
        seen.served
            .iter()
            .filter(|(bytes, _, _)| port(bytes) == 2)
            .count(),
        1
    );
}

#[test]
fn pie_spares_a_burst_and_holds_the_waiting_time_of_a_steady_overload_at_its_reference() {
    // A burst of 100 ms passes.
    let seen = overload(&shape(Discipline::Pie), MS / 2, 100 * MS, false);
    assert_eq!(seen.early, 0);
    // A source that does not answer, at 1.2 times the rate: a sixth must go, and the rest waits about 15 ms.
    let mut queue = Bottleneck::new(&shape(Discipline::Pie), 1).unwrap();
    let mut seen = Seen::default();
    let gap_ns = MS * 5 / 6;
    let mut waiting = Vec::new();
    for number in 0..72_000 {
        offer(
            &mut queue,
            &mut seen,
            number * gap_ns,
            frame(1, false, FRAME_BYTES),
        );
        if number > 36_000 {
            waiting.push(queue.packets() as f64);
        }
    }
    let share = seen.early as f64 / 72_000.0;
    assert!((share - 1.0 / 6.0).abs() < 0.01, "{share}");
    // A frame takes a millisecond.
    let mean_ms = waiting.iter().sum::<f64>() / waiting.len() as f64;
    assert!((10.0..20.0).contains(&mean_ms), "{mean_ms}");
    assert_eq!(seen.full, 0);
}

#[test]
fn flows_of_either_version_and_with_tags_are_told_apart() {
    let mut queue = Bottleneck::new(&shape(Discipline::FqCodel), 1).unwrap();
    let mut seen = Seen::default();
    let tagged = |source| {
        let mut bytes = frame(source, false, FRAME_BYTES);
        bytes.splice(12..12, [0x81, 0, 0, 5]);
        bytes
    };
    let of_six = |source: u16| {
        let mut bytes = vec![0; FRAME_BYTES];
        bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
        bytes[14] = 0x60;
        bytes[20] = 6;
        bytes[54..56].copy_from_slice(&source.to_be_bytes());
        bytes
    };
    for kind in [&tagged as &dyn Fn(u16) -> Vec<u8>, &of_six] {
        for source in [1, 1, 1, 1, 2] {
            offer(&mut queue, &mut seen, 0, kind(source));
        }
    }
    queue.advance(20 * MS, |outcome| seen.note(outcome));
    let second: Vec<usize> = (0..seen.served.len())
        .filter(|place| {
            let bytes = &seen.served[*place].0;
            *bytes == tagged(2) || *bytes == of_six(2)
        })
        .collect();
    // Both flows with one frame are served in the first round, in which the others have two.
    assert!(second.len() == 2 && second[1] <= 5, "{second:?}");
}

proptest! {
    #[test]
    fn every_frame_is_served_dropped_or_waits_and_the_line_is_never_overtaken(
        discipline in prop_oneof![Just(Discipline::Codel), Just(Discipline::FqCodel), Just(Discipline::Pie)],
        is_ecn: bool,
        packets in 1..200_u32,
        frames in prop::collection::vec((0..3 * MS, 14..1600_usize, any::<[u8; 40]>()), 1..400),
    ) {
        let shape = Shape { queue_packets: Some(packets), is_ecn, ..shape(discipline) };
        let mut queue = Bottleneck::new(&shape, 7).unwrap();
        let mut seen = Seen::default();
        let mut at_ns = 0;
        let mut served_bytes = 0;
        for (gap_ns, length, content) in &frames {
            at_ns += gap_ns;
            // Whatever a header says, of frames of any length.
            let mut bytes = vec![0; *length];
            let copied = content.len().min(length - 12);
            bytes[12..12 + copied].copy_from_slice(&content[..copied]);
            offer(&mut queue, &mut seen, at_ns, bytes);
            prop_assert!(queue.packets() <= packets as usize);
        }
        let waiting = queue.packets();
        prop_assert_eq!(seen.served.len() + seen.full + seen.early + waiting, frames.len());
        queue.advance(u64::MAX / 2, |outcome| seen.note(outcome));
        prop_assert_eq!(queue.packets(), 0);
        let mut before_ns = 0;
        for (bytes, left_ns, _) in &seen.served {
            prop_assert!(*left_ns >= before_ns + bytes.len() as u64 * 800 - 1);
            before_ns = *left_ns;
            served_bytes += bytes.len();
        }
        prop_assert!(served_bytes <= frames.iter().map(|(_, length, _)| length).sum());
    }
}
