//! Properties of merged filters and their parts.

use proptest::prelude::*;

use super::classic::{
    ClassicInstruction, ClassicProgram, Origin, Packet, ProgramError, Relation, Width,
};
use super::condition::Condition;
use super::ebpf::{Assembler, Bits, Instruction, Register, Test};
use super::emit::{Hook, LinkLayer, Map, TagsBeside, Target};
use super::value::{Known, Values};
use super::{FilterError, MergedFilter, Subscription};
use views::program_of_a_view;

mod views;

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> ClassicInstruction {
    ClassicInstruction { code, jt, jf, k }
}

/// `ldh [12]; jeq #type, ...; ldb [at]; jeq #value; ret`
fn two_tests(kind: u32, at: u32, value: u32) -> Vec<ClassicInstruction> {
    vec![
        instruction(0x28, 0, 0, 12),
        instruction(0x15, 0, 3, kind),
        instruction(0x30, 0, 0, at),
        instruction(0x15, 0, 1, value),
        instruction(0x06, 0, 0, 96),
        instruction(0x06, 0, 0, 0),
    ]
}

fn subscribe(programs: &[Vec<ClassicInstruction>]) -> Vec<Subscription> {
    let programs = programs.iter().map(|one| ClassicProgram::new(one).unwrap());
    subscribe_all(programs)
}

fn subscribe_all(programs: impl Iterator<Item = ClassicProgram>) -> Vec<Subscription> {
    programs
        .zip(0..)
        .map(|(program, subscriber)| Subscription {
            subscriber,
            program,
            snaplen_bytes: 100 + subscriber,
        })
        .collect()
}

fn small_number() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..20, Just(0x800), any::<u32>()]
}

/// Instructions without jumps, each with its index among the random codes.
fn straight() -> impl Strategy<Value = ClassicInstruction> {
    let load = prop::sample::select(vec![0x20_u16, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1]);
    let alu = prop::sample::select(vec![
        0x04_u16, 0x14, 0x24, 0x44, 0x54, 0xa4, 0x0c, 0x1c, 0x2c, 0x3c, 0x4c, 0x5c, 0x6c, 0x7c,
        0x9c, 0x84, 0x80, 0x81, 0x07, 0x87,
    ]);
    prop_oneof![
        (load, 0_u32..24).prop_map(|(code, k)| instruction(code, 0, 0, k)),
        (alu, small_number()).prop_map(|(code, k)| instruction(code, 0, 0, k)),
        (prop::sample::select(vec![0x64_u16, 0x74]), 0_u32..32)
            .prop_map(|(code, k)| instruction(code, 0, 0, k)),
        (prop::sample::select(vec![0x34_u16, 0x94]), 1_u32..9)
            .prop_map(|(code, k)| instruction(code, 0, 0, k)),
        (
            prop::sample::select(vec![0x02_u16, 0x03, 0x60, 0x61]),
            0_u32..2
        )
            .prop_map(|(code, k)| instruction(code, 0, 0, k)),
    ]
}

fn branch() -> impl Strategy<Value = ClassicInstruction> {
    let codes = vec![0x15_u16, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d];
    (
        prop::sample::select(codes),
        0_u8..6,
        0_u8..6,
        small_number(),
    )
        .prop_map(|(code, jt, jf, k)| instruction(code, jt, jf, k))
}

/// Valid programs: scratch words are written first, and behind the last branch there are returns
/// enough for every jump.
fn program() -> impl Strategy<Value = Vec<ClassicInstruction>> {
    let body = prop::collection::vec(prop_oneof![3 => straight(), 2 => branch()], 0..24);
    (body, prop::collection::vec(0_u32..2, 7)).prop_map(|(body, ends)| {
        let mut program = vec![instruction(0x02, 0, 0, 0), instruction(0x02, 0, 0, 1)];
        program.extend(body);
        program.extend(
            ends.into_iter()
                .map(|accepts| instruction(0x06, 0, 0, accepts)),
        );
        program
    })
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![0_u8..20, any::<u8>()], 0..48)
}

proptest! {
    /// For every frame, every merged filter has the verdict that it has alone.
    #[test]
    fn a_merged_set_is_the_set_of_its_filters(
        programs in prop::collection::vec(program(), 1..10),
        frames in prop::collection::vec(frame(), 1..20),
    ) {
        let subscriptions = subscribe(&programs);
        let merged = MergedFilter::new(&subscriptions).unwrap();
        let apart = MergedFilter::apart(&subscriptions).unwrap();
        for frame in frames {
            let expected = subscriptions
                .iter()
                .filter(|subscription| subscription.program.run(&frame) != 0)
                .fold(0, |all, subscription| all | 1 << subscription.subscriber);
            prop_assert_eq!(merged.subscribers(&frame), expected);
            prop_assert_eq!(apart.subscribers(&frame), expected);
        }
    }

    /// Implied answers are right.
    #[test]
    fn implied_answers_hold(
        (first, second) in (relation(), relation()),
        (one, other) in (small_number(), small_number()),
        near in 0_u32..3,
        number in small_number(),
    ) {
        let mut values = Values::default();
        let value = values.load(Width::Word, 0);
        let condition = |relation, constant| Condition::Holds { relation, value, constant };
        for constant in [other, one.wrapping_add(near), one.wrapping_sub(near)] {
            let (asked, follows) = (condition(first, one), condition(second, constant));
            for number in [number, one, constant, constant.wrapping_add(1)] {
                let frame = number.to_be_bytes();
                let answer = |condition: Condition| {
                    condition.evaluate(&values, &frame, &mut Known::default()).unwrap()
                };
                let known = answer(asked);
                if let Some(implied) = asked.implies(known, &follows) {
                    prop_assert_eq!(implied, answer(follows), "{:?} {:?}", asked, follows);
                }
            }
        }
    }

    /// An emitted program has valid instructions only, and no jump leaves it.
    #[test]
    fn an_emitted_program_is_whole(
        programs in prop::collection::vec(program_of_a_view(), 1..6),
        (customer, service) in any::<(bool, bool)>(),
    ) {
        let Ok(merged) = MergedFilter::new(&subscribe_all(programs.into_iter())) else {
            return Ok(());
        };
        let tags_beside = TagsBeside { customer, service };
        for hook in [Hook::Xdp { frags: true }, Hook::Xdp { frags: false }, Hook::SchedCls] {
            for link_layer in [LinkLayer::Ethernet, LinkLayer::RawIp] {
                let target = Target { hook, link_layer, discard: false, origin: Origin::default(), tags_beside };
                let program = merged.emit(target).unwrap();
                let length = program.instructions.len() as i64;
                for (at, instruction) in program.instructions.iter().enumerate() {
                    let jumps = matches!(instruction.code & 7, 5 | 6)
                        && !matches!(instruction.code, 0x85 | 0x95);
                    if jumps {
                        let to = at as i64 + 1 + i64::from(instruction.offset);
                        prop_assert!((0..length).contains(&to));
                    }
                }
                for map in [Map::Verdict, Map::Unfiltered, Map::Jumps] {
                    prop_assert!(program.map_addresses.iter().any(|address| address.map == map));
                }
            }
        }
    }
}

fn relation() -> impl Strategy<Value = Relation> {
    prop::sample::select(vec![Relation::Equal, Relation::Greater, Relation::AnyBit])
}

#[test]
fn identical_filters_cost_one() {
    let program = two_tests(0x800, 23, 6);
    let one = MergedFilter::new(&subscribe(&vec![program.clone(); 1])).unwrap();
    let all = MergedFilter::new(&subscribe(&vec![program; 64])).unwrap();
    assert_eq!(one.questions(), all.questions());
    let mut frame = vec![0; 42];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[23] = 6;
    assert_eq!(all.subscribers(&frame), u64::MAX);
    assert_eq!(all.subscribers(&frame[..23]), 0);
    assert_eq!(all.snaplen_bytes(u64::MAX), 163);
}

#[test]
fn common_prefixes_are_asked_once() {
    let programs: Vec<_> = (0..8).map(|number| two_tests(0x800, 23, number)).collect();
    let one = MergedFilter::new(&subscribe(&programs[..1])).unwrap();
    let all = MergedFilter::new(&subscribe(&programs)).unwrap();
    // Each further filter adds the one question in which it differs.
    assert_eq!(all.questions(), one.questions() + 7);
    assert_eq!(all.stages(), 1);
}

/// A load behind the end rejects in its own filter and no other.
#[test]
fn a_missing_byte_rejects_in_one_filter_only() {
    let programs = vec![two_tests(0x800, 60, 0), two_tests(0x800, 14, 0x45)];
    let merged = MergedFilter::new(&subscribe(&programs)).unwrap();
    let mut frame = vec![0; 61];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    assert_eq!(merged.subscribers(&frame), 0b11);
    assert_eq!(merged.subscribers(&frame[..60]), 0b10);
    assert_eq!(merged.subscribers(&frame[..14]), 0);
}

#[test]
fn filters_without_common_questions_are_split_over_stages() {
    // States multiply when each filter loads bytes of its own.
    let programs: Vec<_> = (0..64_u32)
        .map(|number| {
            let mut program: Vec<ClassicInstruction> = Vec::new();
            for step in 0..6 {
                program.push(instruction(0x30, 0, 0, number * 6 + step));
                program.push(instruction(0x45, 0, (2 * (5 - step) + 1) as u8, 1));
            }
            program.push(instruction(0x06, 0, 0, 1));
            program.push(instruction(0x06, 0, 0, 0));
            program
        })
        .collect();
    let merged = MergedFilter::new(&subscribe(&programs)).unwrap();
    assert!(merged.stages() > 1);
    assert!(
        merged.questions() < 64 * 12 * 8,
        "{} questions",
        merged.questions()
    );
    let frame = vec![1; 64 * 6];
    assert_eq!(merged.subscribers(&frame), u64::MAX);
    assert_eq!(merged.subscribers(&frame[..6 * 32]), u64::MAX >> 32);
}

#[test]
fn a_very_long_filter_has_a_stage_of_its_own() {
    // Each compares one byte, and does so a thousand times in successive half words.
    let long = |first: u32| {
        let mut program = Vec::new();
        for step in 0..1000 {
            program.push(instruction(0x28, 0, 0, first));
            program.push(instruction(0x15, 0, 1, step * 7));
            program.push(instruction(0x06, 0, 0, 1));
        }
        program.push(instruction(0x06, 0, 0, 0));
        program
    };
    let programs = [long(14), long(16), two_tests(0x800, 23, 6)];
    let merged = MergedFilter::new(&subscribe(&programs)).unwrap();
    assert_eq!(merged.stages(), 3);
    let mut frame = vec![0; 42];
    frame[12..18].copy_from_slice(&[8, 0, 0, 7, 0, 1]);
    frame[23] = 6;
    assert_eq!(merged.subscribers(&frame), 0b101);
}

#[test]
fn invalid_programs_are_refused_by_name() {
    let end = instruction(0x06, 0, 0, 1);
    for (program, expected) in [
        (vec![], ProgramError::Empty),
        (
            vec![instruction(0xff, 0, 0, 0), end],
            ProgramError::UnknownInstruction {
                position: 0,
                code: 0xff,
            },
        ),
        (
            vec![instruction(0x15, 0, 1, 0), end],
            ProgramError::LeavesProgram {
                position: 0,
                length: 2,
            },
        ),
        (
            vec![instruction(0x00, 0, 0, 0)],
            ProgramError::LeavesProgram {
                position: 0,
                length: 1,
            },
        ),
        (
            vec![instruction(0x05, 0, 0, -2_i32 as u32), end],
            ProgramError::LeavesProgram {
                position: 0,
                length: 2,
            },
        ),
        (
            vec![instruction(0x34, 0, 0, 0), end],
            ProgramError::DivisionByZero { position: 0 },
        ),
        (
            vec![instruction(0x64, 0, 0, 32), end],
            ProgramError::ShiftTooFar {
                position: 0,
                bits: 32,
            },
        ),
        (
            vec![instruction(0x02, 0, 0, 16), end],
            ProgramError::NoSuchScratchWord {
                position: 0,
                word: 16,
            },
        ),
    ] {
        assert_eq!(ClassicProgram::new(&program).unwrap_err(), expected);
    }
    let program = [instruction(0x28, 0, 0, 0xffff_f000 + 44), end];
    let tag = ClassicProgram::new(&program).unwrap_err().to_string();
    assert!(tag.contains("the VLAN tag beside the frame"), "{tag}");
}

/// One subscriber of a program.
fn merged_alone(program: ClassicProgram) -> MergedFilter {
    let subscription = Subscription {
        subscriber: 0,
        program,
        snaplen_bytes: 1,
    };
    MergedFilter::new(&[subscription]).unwrap()
}

#[test]
fn direction_and_interface_are_those_of_the_hook() {
    let program = |place: u32, k: u32| {
        let instructions = [
            instruction(0x20, 0, 0, 0xffff_f000 + place),
            instruction(0x15, 0, 1, k),
            instruction(0x06, 0, 0, 1),
            instruction(0x06, 0, 0, 0),
        ];
        ClassicProgram::new(&instructions).unwrap()
    };
    let outbound = Origin {
        is_outbound: true,
        interface_index: 7,
    };
    for (program, is_out, is_in) in [
        (program(4, 4), true, false),
        (program(8, 7), true, false),
        (program(8, 0), false, true),
    ] {
        assert!(program.asks_for_origin());
        for (origin, expected) in [(outbound, is_out), (Origin::default(), is_in)] {
            let packet = Packet {
                origin,
                ..Packet::whole(&[])
            };
            assert_eq!(program.run_on(&packet) != 0, expected);
            let merged = merged_alone(program.clone());
            assert_eq!(merged.subscribers_at(&[], origin, false) != 0, expected);
        }
    }
}

#[test]
fn a_loop_runs_six_times() {
    // Goes to the place that the byte there names, until that is 9.
    let program = ClassicProgram::new(&[
        instruction(0x50, 0, 0, 0),
        instruction(0x15, 2, 0, 9),
        instruction(0x07, 0, 0, 0),
        instruction(0x05, 0, 0, -4_i32 as u32),
        instruction(0x06, 0, 0, 1),
    ])
    .unwrap();
    assert!(program.has_loop());
    let merged = merged_alone(program.clone());
    for (frame, expected) in [
        (&[9_u8][..], true),
        (&[1, 2, 3, 4, 5, 9], true),
        (&[1, 2, 3, 4, 5, 6, 9], false),
        (&[1, 2], false),
        (&[0, 9], false),
    ] {
        assert_eq!(program.run(frame) != 0, expected, "{frame:?}");
        assert_eq!(merged.subscribers(frame) != 0, expected, "{frame:?}");
    }
}

#[test]
fn scratch_memory_must_be_written_first() {
    let program = [instruction(0x60, 0, 0, 3), instruction(0x16, 0, 0, 0)];
    let subscription = Subscription {
        subscriber: 5,
        program: ClassicProgram::new(&program).unwrap(),
        snaplen_bytes: 0,
    };
    assert_eq!(
        MergedFilter::new(&[subscription]).unwrap_err(),
        FilterError::Program {
            subscriber: 5,
            source: ProgramError::UnwrittenScratchWord {
                position: 0,
                word: 3
            }
        }
    );
}

#[test]
fn subscribers_are_checked() {
    let mut two = subscribe(&[two_tests(0x800, 23, 6), two_tests(0x800, 23, 17)]);
    assert_eq!(
        MergedFilter::new(&[]).unwrap_err(),
        FilterError::Subscriptions { found: 0 }
    );
    two[1].snaplen_bytes = 262_145;
    assert_eq!(
        MergedFilter::new(&two).unwrap_err(),
        FilterError::Snaplen {
            subscriber: 1,
            found: 262_145
        }
    );
    two[1].subscriber = 0;
    assert_eq!(
        MergedFilter::new(&two).unwrap_err(),
        FilterError::SubscriberTwice { subscriber: 0 }
    );
    two[1].subscriber = 64;
    assert_eq!(
        MergedFilter::new(&two).unwrap_err(),
        FilterError::Subscriber { found: 64 }
    );
}

/// A jump that 16 bits do not hold becomes a long one, forwards and across a branch.
#[test]
fn long_jumps_reach_their_labels() {
    let mut assembler = Assembler::default();
    let (end, start) = (assembler.label(), assembler.label());
    assembler.place(start);
    assembler.branch(Bits::B32, Test::Equal, Register::R1, 1, end);
    for _ in 0..40_000 {
        assembler.put(Instruction::exit());
    }
    assembler.jump(start);
    assembler.place(end);
    assembler.put(Instruction::exit());
    let (program, _) = assembler.finish();
    // The branch skips a short jump over the long one.
    assert_eq!(program[0].offset, 1);
    assert_eq!(program[1], Instruction::jump(1));
    assert_eq!(program[2], Instruction::jump_far(40_001));
    assert_eq!(program[40_003], Instruction::jump_far(-40_004));
    assert_eq!(program.len(), 40_005);
}
