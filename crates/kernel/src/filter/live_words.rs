//! `inbound`, `outbound` and `ifindex`, which libpcap from version 1.11 on compiles for live captures of its own alone.
//!
//! Each is replaced by a test of the packet's length, with a number of its own that the expression does not contain. In
//! the program such a test becomes what libpcap makes of the word.

use std::collections::HashSet;
use std::ffi::CString;

use parshall_core::filter::classic::ClassicInstruction;

use super::words::words;

/// `BPF_LD | BPF_W | BPF_LEN`.
const LOAD_LENGTH: u16 = 0x80;
/// `BPF_LD | BPF_H | BPF_ABS`.
const LOAD_HALF: u16 = 0x28;
/// `BPF_LD | BPF_W | BPF_ABS`.
const LOAD_WORD: u16 = 0x20;
/// `BPF_JMP | BPF_JGE | BPF_K`.
const IF_AT_LEAST: u16 = 0x35;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const IF_EQUAL: u16 = 0x15;
/// `SKF_AD_OFF + SKF_AD_PKTTYPE`.
const PACKET_TYPE: u32 = 0xffff_f004;
/// `SKF_AD_OFF + SKF_AD_IFINDEX`.
const INTERFACE_INDEX: u32 = 0xffff_f008;
const PACKET_OUTGOING: u32 = 4;

/// An expression without these words.
pub struct WithoutLiveWords {
    /// To be compiled without the optimizer, which could join tests of the length.
    pub expression: CString,
    replaced: Vec<(u32, LiveWord)>,
}

#[derive(Clone, Copy)]
enum LiveWord {
    Inbound,
    Outbound,
    InterfaceIndex(u32),
}

impl WithoutLiveWords {
    /// `None` when the expression has none of the words.
    pub fn new(expression: &str) -> Option<Self> {
        let words: Vec<(usize, usize, &str)> = words(expression)
            .into_iter()
            .map(|(start, end)| (start, end, &expression[start..end]))
            .collect();
        let taken: HashSet<u32> = words.iter().filter_map(|one| number(one.2)).collect();
        let mut free = (0..=u32::MAX).rev().filter(|one| !taken.contains(one));
        let mut text = String::new();
        let mut copied = 0;
        let mut replaced = Vec::new();
        for (at, (start, end, word)) in words.iter().enumerate() {
            let next = words.get(at + 1);
            let (word, end) = match (*word, next.and_then(|next| number(next.2))) {
                ("inbound", _) => (LiveWord::Inbound, *end),
                ("outbound", _) => (LiveWord::Outbound, *end),
                ("ifindex", Some(index)) => (LiveWord::InterfaceIndex(index), next?.1),
                _ => continue,
            };
            let bytes = free.next()?;
            text += &format!("{} greater {bytes} ", &expression[copied..*start]);
            copied = end;
            replaced.push((bytes, word));
        }
        text += &expression[copied..];
        (!replaced.is_empty()).then_some(Self {
            expression: CString::new(text).ok()?,
            replaced,
        })
    }

    /// Puts the tests for the words into the program.
    pub fn restore(&self, instructions: &mut [ClassicInstruction]) {
        for at in 1..instructions.len() {
            let [load, branch] = &mut instructions[at - 1..=at] else {
                continue;
            };
            if (load.code, branch.code) != (LOAD_LENGTH, IF_AT_LEAST) {
                continue;
            }
            let Some((_, word)) = self.replaced.iter().find(|one| one.0 == branch.k) else {
                continue;
            };
            (load.code, load.k, branch.k) = match word {
                LiveWord::Inbound | LiveWord::Outbound => (LOAD_HALF, PACKET_TYPE, PACKET_OUTGOING),
                LiveWord::InterfaceIndex(index) => (LOAD_WORD, INTERFACE_INDEX, *index),
            };
            branch.code = IF_EQUAL;
            if matches!(word, LiveWord::Inbound) {
                (branch.jt, branch.jf) = (branch.jf, branch.jt);
            }
        }
    }
}

/// A number as libpcap reads it: decimal, or hexadecimal behind `0x`, or octal behind `0`.
fn number(word: &str) -> Option<u32> {
    let hexadecimal = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
    let (digits, base) = match (hexadecimal, word.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (word, 10),
    };
    u32::from_str_radix(digits, base).ok()
}

#[cfg(test)]
mod tests {
    use parshall_core::filter::classic::{ClassicProgram, Origin, Packet};
    use parshall_core::filter::emit::LinkLayer;

    use super::super::libpcap::Compiler;
    use super::*;

    /// The verdict on a TCP segment over Ethernet.
    fn accepts(program: &[ClassicInstruction], is_outbound: bool, interface_index: u32) -> bool {
        let mut frame = [0; 60];
        (frame[12], frame[14], frame[23]) = (8, 0x45, 6);
        let packet = Packet {
            bytes: &frame,
            wire_bytes: 60,
            origin: Origin {
                is_outbound,
                interface_index,
            },
            tag: None,
        };
        ClassicProgram::new(program).unwrap().run_on(&packet) != 0
    }

    #[test]
    fn the_words_mean_the_same_in_every_place() {
        let mut compiler = Compiler::new(LinkLayer::Ethernet, None).unwrap();
        type Meaning = fn(bool, u32) -> bool;
        let cases: [(&str, Meaning); 10] = [
            ("inbound", |is_outbound, _| !is_outbound),
            ("outbound", |is_outbound, _| is_outbound),
            ("not inbound", |is_outbound, _| is_outbound),
            ("(inbound)and tcp", |is_outbound, _| !is_outbound),
            ("outbound and udp or ifindex 0x7", |_, index| index == 7),
            ("inbound and outbound", |_, _| false),
            ("tcp and(ifindex 010 or ifindex 9)", |_, index| {
                index == 8 || index == 9
            }),
            ("not ifindex 7 and not inbound", |is_outbound, index| {
                is_outbound && index != 7
            }),
            (
                "inbound and less 4294967295 and not greater 4294967294",
                |is_outbound, _| !is_outbound,
            ),
            ("greater 4294967295 or inbound", |is_outbound, _| {
                !is_outbound
            }),
        ];
        for (expression, meaning) in cases {
            let without = WithoutLiveWords::new(expression).unwrap();
            let mut replaced = compiler.compile(&without.expression).unwrap();
            without.restore(&mut replaced);
            let direct = CString::new(expression).unwrap();
            let direct = compiler.compile(&direct).unwrap();
            for (is_outbound, index) in [(false, 7), (true, 7), (false, 8), (true, 8), (true, 9)] {
                let expected = meaning(is_outbound, index);
                for program in [&replaced, &direct] {
                    let seen = accepts(program, is_outbound, index);
                    assert_eq!(seen, expected, "{expression}: {is_outbound}, {index}");
                }
            }
        }
    }

    #[test]
    fn other_words_stay_as_they_are() {
        for expression in [
            "tcp and greater 70",
            "host inbound.example",
            "ifindex",
            "ifindex frob",
            "ifindex 99999999999",
            "",
        ] {
            assert!(WithoutLiveWords::new(expression).is_none(), "{expression}");
        }
    }

    #[test]
    fn what_is_wrong_beside_the_words_is_said() {
        let mut compiler = Compiler::new(LinkLayer::Ethernet, None).unwrap();
        for (expression, message) in [
            (
                c"inbound and vlan 5000",
                "VLAN tag 5000 greater than maximum 4095",
            ),
            (c"inbound and 80", "syntax error"),
            (c"inbound outbound", "syntax error"),
        ] {
            let complaint = compiler.compile(&expression.into()).unwrap_err();
            assert!(complaint.contains(message), "{expression:?}: {complaint}");
        }
    }
}
