//! Programs that see a frame as a packet socket shows it, beside programs that see it whole.

use proptest::prelude::*;

use super::{frame, instruction, merged_alone, program, subscribe_all};
use crate::filter::classic::{ClassicProgram, FrameView, Origin, Packet, ProgramError, Tag};
use crate::filter::{FilterError, MergedFilter};

/// Valid programs of a view; those of a packet socket's ask for the tag, too.
pub(super) fn program_of_a_view() -> impl Strategy<Value = ClassicProgram> {
    let tag_load = (
        prop::sample::select(vec![0x20_u16, 0x28, 0x30]),
        prop::sample::select(vec![44, 48, 60]),
    );
    let tag_loads = prop::collection::vec((tag_load, any::<prop::sample::Index>()), 0..3);
    (program(), tag_loads, any::<bool>()).prop_map(|(mut program, tag_loads, is_untagged)| {
        if !is_untagged {
            return ClassicProgram::new(&program).unwrap();
        }
        for ((code, field), at) in tag_loads {
            // In place of one that has no jump and writes no word.
            let at = at.index(program.len());
            if !matches!(program[at].code & 7, 2 | 3 | 5 | 6) {
                program[at] = instruction(code, 0, 0, 0xffff_f000 + field);
            }
        }
        ClassicProgram::of_view(&program, FrameView::Untagged).unwrap()
    })
}

/// What a program sees of a frame whose outer tag stands beside it.
fn without_tag(frame: &[u8]) -> (Vec<u8>, Tag) {
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let tag = Tag {
        protocol: number(12),
        control: number(14),
    };
    ([&frame[..12], &frame[16..]].concat(), tag)
}

/// Whether a program accepts a frame, given whole.
fn accepts(program: &ClassicProgram, frame: &[u8], tag_is_beside: bool) -> bool {
    if !tag_is_beside || program.view() == FrameView::Whole {
        return program.run(frame) != 0;
    }
    let (bytes, tag) = without_tag(frame);
    let packet = Packet {
        tag: Some(tag),
        ..Packet::whole(&bytes)
    };
    program.run_on(&packet) != 0
}

proptest! {
    /// For every frame, every merged filter has the verdict that it has alone: where the tag is beside the frame, the
    /// one on the frame without it.
    #[test]
    fn an_untagged_view_is_that_of_the_frame_without_its_tag(
        programs in prop::collection::vec(program_of_a_view(), 1..10),
        frames in prop::collection::vec((frame(), any::<[u8; 4]>()), 1..20),
    ) {
        // Each alone first: what may lie on both sides of a tag is refused.
        let programs = programs.into_iter().filter(|program| {
            let alone = MergedFilter::new(&subscribe_all(std::iter::once(program.clone())));
            let is_around = |error: &FilterError| {
                matches!(error, FilterError::Program { source: ProgramError::AroundTag { .. }, .. })
            };
            assert!(alone.as_ref().err().is_none_or(is_around), "{alone:?}");
            alone.is_ok()
        });
        let subscriptions = subscribe_all(programs);
        prop_assume!(!subscriptions.is_empty());
        let merged = MergedFilter::new(&subscriptions).unwrap();
        for (mut frame, end) in frames {
            frame.resize(frame.len().max(14), 0);
            frame.extend(end);
            for tag_is_beside in [false, true] {
                let expected = subscriptions
                    .iter()
                    .filter(|one| accepts(&one.program, &frame, tag_is_beside))
                    .fold(0, |all, one| all | 1 << one.subscriber);
                let found = merged.subscribers_at(&frame, Origin::default(), tag_is_beside);
                prop_assert_eq!(found, expected, "{}", tag_is_beside);
            }
        }
    }
}

/// `ldb [14]; and #mask; tax; ldb [x + offset]; jeq #7; ret`, with the view of a packet socket.
fn load_at_an_index(mask: u32, offset: u32) -> ClassicProgram {
    let instructions = [
        instruction(0x30, 0, 0, 14),
        instruction(0x54, 0, 0, mask),
        instruction(0x07, 0, 0, 0),
        instruction(0x50, 0, 0, offset),
        instruction(0x15, 0, 1, 7),
        instruction(0x06, 0, 0, 1),
        instruction(0x06, 0, 0, 0),
    ];
    ClassicProgram::of_view(&instructions, FrameView::Untagged).unwrap()
}

#[test]
fn a_load_on_an_unknown_side_of_a_tag_is_refused() {
    let mut frame: Vec<u8> = (0..40).collect();
    // The program sees it at 14, and loads it back from 19 on.
    frame[18] = 0xff;
    for (mask, offset, seen) in [(3, 8, 11), (1, 10, 11), (0xf, 12, 27), (7, 20, 27)] {
        let program = load_at_an_index(mask, offset);
        // Where the frame's byte is that the program sees at 11 or 27.
        let place = if seen < 12 { seen } else { seen + 4 };
        for (value, expected) in [(7, true), (8, false)] {
            frame[place] = value;
            assert_eq!(accepts(&program, &frame, true), expected, "{mask} {offset}");
            let merged = merged_alone(program.clone());
            let found = merged.subscribers_at(&frame, Origin::default(), true);
            assert_eq!(found != 0, expected, "{mask} {offset}");
        }
        frame[place] = place as u8;
    }
    for (mask, offset) in [(3, 9), (0xff, 0), (1, 11)] {
        let program = load_at_an_index(mask, offset);
        let refused = MergedFilter::new(&subscribe_all(std::iter::once(program)));
        assert_eq!(
            refused.unwrap_err(),
            FilterError::Program {
                subscriber: 0,
                source: ProgramError::AroundTag { position: 3 }
            }
        );
    }
}

#[test]
fn a_filter_that_sees_no_difference_asks_for_no_tag() {
    let programs = [
        vec![instruction(0x06, 0, 0, 1)],
        // The direction.
        vec![
            instruction(0x20, 0, 0, 0xffff_f004),
            instruction(0x15, 0, 1, 4),
            instruction(0x06, 0, 0, 1),
            instruction(0x06, 0, 0, 0),
        ],
    ];
    for program in programs {
        let of_view = |view| merged_alone(ClassicProgram::of_view(&program, view).unwrap());
        let [whole, untagged] = [FrameView::Whole, FrameView::Untagged].map(of_view);
        assert_eq!(whole.questions(), untagged.questions());
    }
}
