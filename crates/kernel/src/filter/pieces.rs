//! Long expressions, taken apart.
//!
//! libpcap takes more than the square of an expression's length to compile it, with its optimizer or
//! without. Here an expression that is a long list is read as far as `and`, `or`, `not` and
//! parentheses go; libpcap compiles a few primitives at a time, and their programs are put one behind
//! the other. Nothing here knows what a primitive means: whatever is not plainly a list is left to
//! libpcap as a whole.

use std::ffi::CString;

use parshall_core::filter::classic::ClassicInstruction;

use super::libpcap::Compiler;
use super::words::words;

/// Primitives from which on an expression is taken apart: libpcap is done with fewer in milliseconds.
const LONG_PRIMITIVES: usize = 32;
/// Primitives that libpcap compiles at once: few enough to be quick, enough that it finds most of
/// what they share.
const PIECE_PRIMITIVES: usize = 12;
/// Parentheses in parentheses.
const DEPTH_MAX: usize = 64;

/// Words that a primitive can start with and that say all of what it means.
const QUALIFIERS: [&str; 15] = [
    "src",
    "dst",
    "host",
    "net",
    "port",
    "portrange",
    "ether",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "tcp",
    "udp",
    "sctp",
    "proto",
];
/// Words that are primitives by themselves, or go on with a number.
const NAMES: [&str; 7] = [
    "icmp",
    "icmp6",
    "igmp",
    "less",
    "greater",
    "len",
    "multicast",
];
/// Words that change what everything behind them means.
const MOVING: [&str; 6] = ["vlan", "mpls", "pppoed", "pppoes", "geneve", "vxlan"];

const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;

/// The program of a long list, or `None` when it is none or libpcap refuses a part of it: then
/// libpcap should see the whole, and say what it finds.
pub(super) fn compile(
    compiler: &mut Compiler,
    expression: &str,
) -> Option<Vec<ClassicInstruction>> {
    compile_above(compiler, expression, LONG_PRIMITIVES)
}

fn compile_above(
    compiler: &mut Compiler,
    expression: &str,
    primitives: usize,
) -> Option<Vec<ClassicInstruction>> {
    let tree = Parser::parse(expression)?;
    if tree.primitives() < primitives {
        return None;
    }
    let mut assembly = Assembly::default();
    let (accept, reject) = (assembly.label(), assembly.label());
    assembly.put(compiler, &tree, accept, reject)?;
    assembly.finish(accept, reject)
}

/// What an expression says, down to primitives.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tree {
    Primitive(String),
    Not(Box<Tree>),
    /// All of them: from left to right, until one does not hold.
    And(Vec<Tree>),
    /// One of them: from left to right, until one holds.
    Or(Vec<Tree>),
}

impl Tree {
    fn primitives(&self) -> usize {
        match self {
            Self::Primitive(_) => 1,
            Self::Not(inner) => inner.primitives(),
            Self::And(parts) | Self::Or(parts) => parts.iter().map(Self::primitives).sum(),
        }
    }

    /// `and` and `or` bind alike, and to the left.
    fn join(self, is_and: bool, next: Self) -> Self {
        match (self, is_and) {
            (Self::And(mut parts), true) => {
                parts.push(next);
                Self::And(parts)
            }
            (Self::Or(mut parts), false) => {
                parts.push(next);
                Self::Or(parts)
            }
            (first, true) => Self::And(vec![first, next]),
            (first, false) => Self::Or(vec![first, next]),
        }
    }

    /// As an expression again, when it is a primitive or the opposite of one.
    fn text(&self) -> Option<String> {
        match self {
            Self::Primitive(text) => Some(format!("({text})")),
            Self::Not(inner) => match &**inner {
                Self::Primitive(text) => Some(format!("(not ({text}))")),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Reads words; every function returns `None` for what it is not sure of.
struct Parser<'a> {
    text: &'a str,
    /// Start and end of each word, in bytes.
    words: Vec<(usize, usize)>,
    next: usize,
    depth: usize,
    /// What a number without qualifiers stands behind: those of the primitive before it, unless a
    /// parenthesis comes between.
    recent: Option<String>,
    /// Within the parentheses of `port (80 or 81)`: nothing but numbers that stand behind `recent`.
    values_only: bool,
}

impl<'a> Parser<'a> {
    fn parse(text: &'a str) -> Option<Tree> {
        let mut parser = Self {
            text,
            words: words(text),
            next: 0,
            depth: 0,
            recent: None,
            values_only: false,
        };
        if (0..parser.words.len()).any(|at| MOVING.contains(&parser.word(at))) {
            return None;
        }
        let tree = parser.expression()?;
        (parser.next == parser.words.len()).then_some(tree)
    }

    /// A word; nothing behind the last one.
    fn word(&self, at: usize) -> &'a str {
        self.words
            .get(at)
            .map_or("", |(start, end)| &self.text[*start..*end])
    }

    fn expression(&mut self) -> Option<Tree> {
        let mut tree = self.term()?;
        while let Some((is_and, words)) = self.operator(self.next) {
            self.next += words;
            tree = tree.join(is_and, self.term()?);
        }
        Some(tree)
    }

    fn term(&mut self) -> Option<Tree> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let tree = match self.word(self.next) {
            "not" | "!" => {
                self.next += 1;
                Tree::Not(Box::new(self.term()?))
            }
            // libpcap takes these behind an operator, but not in front of one.
            "(" if self.values_only => return None,
            "(" => {
                self.recent = None;
                let tree = self.parenthesis()?;
                self.recent = None;
                tree
            }
            _ => match self.qualifiers_before_parenthesis() {
                Some(behind) => self.values(behind)?,
                None => self.primitive()?,
            },
        };
        self.depth -= 1;
        Some(tree)
    }

    fn parenthesis(&mut self) -> Option<Tree> {
        self.next += 1;
        let tree = self.expression()?;
        // `(tcp[0] & 3) = 1` is arithmetic.
        if self.word(self.next) != ")" || !self.is_end(self.next + 1) {
            return None;
        }
        self.next += 1;
        Some(tree)
    }

    /// Where the parenthesis of `port (80 or 81)` opens.
    fn qualifiers_before_parenthesis(&self) -> Option<usize> {
        let is_qualifier = |at: &usize| {
            let word = self.word(*at);
            QUALIFIERS.contains(&word)
                || matches!(word, "and" | "or") && self.operator(*at).is_none()
        };
        let behind = (self.next..).find(|at| !is_qualifier(at))?;
        (behind > self.next && self.word(behind) == "(").then_some(behind)
    }

    /// Numbers in parentheses, which all stand behind the qualifiers here. Fewer than two libpcap takes
    /// in some places only, and it should say so.
    fn values(&mut self, parenthesis: usize) -> Option<Tree> {
        if self.values_only {
            return None;
        }
        let (start, end) = (self.words[self.next].0, self.words[parenthesis].0);
        self.recent = Some(self.text[start..end].trim_end().to_owned());
        self.next = parenthesis;
        self.values_only = true;
        let tree = self.parenthesis()?;
        self.values_only = false;
        self.recent = None;
        (tree.primitives() > 1).then_some(tree)
    }

    fn primitive(&mut self) -> Option<Tree> {
        let first = self.next;
        let mut depth = 0;
        while depth > 0 || !self.is_end(self.next) {
            match self.word(self.next) {
                "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                "" => return None,
                _ => {}
            }
            self.next += 1;
        }
        let behind = self.next;
        let (start, _) = *self.words.get(first)?;
        let (_, end) = *self.words.get(behind.checked_sub(1)?)?;
        let text = self.text.get(start..end)?;
        if QUALIFIERS.contains(&self.word(first)) || NAMES.contains(&self.word(first)) {
            if self.values_only {
                return None;
            }
            self.recent = self.inherited(first, behind);
            return Some(Tree::Primitive(text.to_owned()));
        }
        let is_number =
            starts_with_digit(text) && !text.contains(|sign| "[]()<>=&|+*%^".contains(sign));
        let recent = self.recent.as_ref().filter(|_| is_number)?;
        Some(Tree::Primitive(format!("{recent} {text}")))
    }

    /// The qualifiers that go on to the next primitive when that is a mere number.
    fn inherited(&self, first: usize, behind: usize) -> Option<String> {
        let value = (first..behind).find(|at| {
            let word = self.word(*at);
            !QUALIFIERS.contains(&word) && !matches!(word, "and" | "or")
        })?;
        let (start, end) = (self.words[first].0, self.words[value].0);
        starts_with_digit(self.word(value)).then(|| self.text[start..end].trim_end().to_owned())
    }

    /// Whether a primitive ends in front of a word.
    fn is_end(&self, at: usize) -> bool {
        matches!(self.word(at), "" | ")") || self.operator(at).is_some()
    }

    /// The operator that stands here: whether it is `and`, and how many words it has.
    fn operator(&self, at: usize) -> Option<(bool, usize)> {
        let is_direction = |at: usize| matches!(self.word(at), "src" | "dst");
        let is_twice = |sign| self.word(at + 1) == sign && self.words[at].1 == self.words[at + 1].0;
        match self.word(at) {
            // `src or dst port 80` is one primitive.
            "and" | "or" if at > 0 && is_direction(at - 1) && is_direction(at + 1) => None,
            "and" => Some((true, 1)),
            "or" => Some((false, 1)),
            "&" if is_twice("&") => Some((true, 2)),
            "|" if is_twice("|") => Some((false, 2)),
            _ => None,
        }
    }
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(usize);

/// Programs one behind the other.
#[derive(Default)]
struct Assembly {
    instructions: Vec<ClassicInstruction>,
    /// Jumps that are still to be told how far.
    jumps: Vec<(usize, Label)>,
    places: Vec<Option<usize>>,
}

impl Assembly {
    fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.instructions.len());
    }

    /// Puts what decides a tree, and goes on at one label or the other.
    fn put(&mut self, compiler: &mut Compiler, tree: &Tree, yes: Label, no: Label) -> Option<()> {
        let (parts, is_and) = match tree {
            Tree::Primitive(text) => return self.put_piece(compiler, text, yes, no),
            Tree::Not(inner) => return self.put(compiler, inner, no, yes),
            Tree::And(parts) => (parts, true),
            Tree::Or(parts) => (parts, false),
        };
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let texts: Vec<String> = rest
                .iter()
                .take(PIECE_PRIMITIVES)
                .map_while(Tree::text)
                .collect();
            let (these, behind) = rest.split_at(texts.len().max(1));
            rest = behind;
            let go_on = self.label();
            let (yes, no) = match (behind.is_empty(), is_and) {
                (true, _) => (yes, no),
                (false, true) => (go_on, no),
                (false, false) => (yes, go_on),
            };
            if texts.is_empty() {
                self.put(compiler, &these[0], yes, no)?;
            } else {
                let operator = if is_and { " and " } else { " or " };
                self.put_piece(compiler, &texts.join(operator), yes, no)?;
            }
            self.place(go_on);
        }
        Some(())
    }

    fn put_piece(
        &mut self,
        compiler: &mut Compiler,
        expression: &str,
        yes: Label,
        no: Label,
    ) -> Option<()> {
        let text = CString::new(expression).ok()?;
        for mut instruction in compiler.compile(&text).ok()? {
            if instruction.code == RETURN {
                let to = if instruction.k == 0 { no } else { yes };
                self.jumps.push((self.instructions.len(), to));
                instruction.code = JUMP;
            } else if instruction.code & 7 == RETURN {
                return None; // of a register: nothing that libpcap compiles
            }
            self.instructions.push(instruction);
        }
        Some(())
    }

    fn finish(mut self, accept: Label, reject: Label) -> Option<Vec<ClassicInstruction>> {
        for (label, verdict) in [(accept, u32::MAX), (reject, 0)] {
            self.place(label);
            self.instructions.push(ClassicInstruction {
                code: RETURN,
                jt: 0,
                jf: 0,
                k: verdict,
            });
        }
        for (at, label) in self.jumps {
            let distance = self.places[label.0]?.checked_sub(at + 1)?;
            self.instructions[at].k = u32::try_from(distance).ok()?;
        }
        Some(self.instructions)
    }
}

#[cfg(test)]
mod tests {
    use parshall_core::filter::emit::LinkLayer;
    use rand::seq::IndexedRandom;
    use rand::{Rng, RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;
    use crate::filter::libpcap::run;

    fn primitive(text: &str) -> Tree {
        Tree::Primitive(text.into())
    }

    #[test]
    fn operators_bind_alike_and_to_the_left() {
        assert_eq!(
            Parser::parse("port 1 or host 10.0.0.1 && not (net 10.0.0.0/8 || icmp)"),
            Some(Tree::And(vec![
                Tree::Or(vec![primitive("port 1"), primitive("host 10.0.0.1")]),
                Tree::Not(Box::new(Tree::Or(vec![
                    primitive("net 10.0.0.0/8"),
                    primitive("icmp"),
                ]))),
            ]))
        );
    }

    #[test]
    fn numbers_inherit_the_words_before_them() {
        assert_eq!(
            Parser::parse("src or dst port 80 or 443 or not host 10.0.0.1 or 10.0.0.2"),
            Some(Tree::Or(vec![
                primitive("src or dst port 80"),
                primitive("src or dst port 443"),
                Tree::Not(Box::new(primitive("host 10.0.0.1"))),
                primitive("host 10.0.0.2"),
            ]))
        );
    }

    #[test]
    fn numbers_in_parentheses_stand_behind_the_words_before_these() {
        assert_eq!(
            Parser::parse("tcp and not src or dst port (80 or not 443 and 8080) or udp"),
            Some(Tree::Or(vec![
                Tree::And(vec![
                    primitive("tcp"),
                    Tree::Not(Box::new(Tree::And(vec![
                        Tree::Or(vec![
                            primitive("src or dst port 80"),
                            Tree::Not(Box::new(primitive("src or dst port 443"))),
                        ]),
                        primitive("src or dst port 8080"),
                    ]))),
                ]),
                primitive("udp"),
            ]))
        );
    }

    #[test]
    fn what_is_not_plainly_a_list_is_left_to_libpcap() {
        for expression in [
            "",
            "port (80)",
            "port (80 or (81 or 82))",
            "port (80 or tcp)",
            "port (80 or port 81)",
            "port (80 or http)",
            "port (80 or 81) or 82",
            "port (80 or 81",
            "port (80 or 81) 82",
            "port 80 or",
            "port 80 or vlan 5 or port 81",
            "(tcp[0] & 3) = 1 or port 80",
            "tcp or 80",
            "host www or mail",
            "port 80 or (port 81",
            "port 80) or port 81",
            "5 = len or port 80",
        ] {
            assert_eq!(Parser::parse(expression), None, "{expression}");
        }
    }

    const POOL: [&str; 24] = [
        "port 1",
        "port 2",
        "port 3",
        "4",
        "5-6",
        "tcp port 2",
        "udp src port 3",
        "src or dst port 4",
        "portrange 2-4",
        "tcp",
        "udp",
        "icmp",
        "arp",
        "ip",
        "ip6",
        "ip proto 6",
        "host 10.0.0.1",
        "src host 10.0.0.2",
        "net 10.0.0.0/30",
        "host 2001:db8::1",
        "ether host 02:00:00:00:00:01",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) != 0",
        "ip[8] > 3",
        "less 60",
    ];

    const QUALIFIED: [&str; 6] = [
        "port",
        "src or dst port",
        "udp dst port",
        "ip proto",
        "src host",
        "ether proto",
    ];

    /// Numbers in parentheses.
    fn values(random: &mut impl Rng, depth: u32) -> String {
        let mut list = String::new();
        for nth in 0..random.random_range(1..9) {
            if nth > 0 {
                list += [" or ", " or ", " and ", "||"].choose(random).unwrap();
            }
            list += ["", "", "", "not ", "!"].choose(random).unwrap();
            if depth > 0 && random.random_ratio(1, 20) {
                list += &values(random, depth - 1);
            } else {
                list += ["1", "2", "3", "6", "17", "0x800"].choose(random).unwrap();
            }
        }
        format!("({list})")
    }

    /// A list of primitives that libpcap understands, most of them understood here, too.
    fn list(random: &mut impl Rng, depth: u32) -> String {
        let operator = *[" or ", " and "].choose(random).unwrap();
        let mut list = String::new();
        for nth in 0..random.random_range(1..6) {
            if nth > 0 {
                let other = *[" and ", " or ", " || ", "&&"].choose(random).unwrap();
                list += if random.random_ratio(1, 5) {
                    other
                } else {
                    operator
                };
            }
            list += ["", "", "", "not ", "!"].choose(random).unwrap();
            if random.random_ratio(1, 6) {
                list += &format!(
                    "{} {}",
                    QUALIFIED.choose(random).unwrap(),
                    values(random, depth)
                );
            } else if depth > 0 && random.random_ratio(1, 4) {
                list += &format!("({})", self::list(random, depth - 1));
            } else {
                list += POOL.choose(random).unwrap();
            }
        }
        list
    }

    fn frame(random: &mut impl Rng) -> Vec<u8> {
        let mut frame = vec![0; 80];
        random.fill(&mut frame[30..]);
        frame[5] = random.random_range(0..3);
        frame[0] = 2;
        let protocol = *[1, 6, 6, 17, 17, 132].choose(random).unwrap();
        let (kind, ports) = *[([8, 0], 34), ([8, 0], 34), ([0x86, 0xdd], 54), ([8, 6], 42)]
            .choose(random)
            .unwrap();
        frame[12..14].copy_from_slice(&kind);
        if ports == 54 {
            frame[14] = 0x60;
            frame[20] = protocol;
            frame[22..38]
                .copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        } else {
            frame[14] = 0x45;
            frame[21] = u8::from(random.random_ratio(1, 8));
            frame[22] = random.random_range(0..8);
            frame[23] = protocol;
            for address in [26, 30] {
                frame[address..address + 4].copy_from_slice(&[10, 0, 0, random.random_range(0..5)]);
            }
        }
        for port in [ports, ports + 2] {
            frame[port..port + 2].copy_from_slice(&[0, random.random_range(0..8)]);
        }
        frame.truncate(random.random_range(58..=80));
        frame
    }

    /// Taken apart as far as it goes, a list has the verdict that libpcap gives it as a whole.
    #[test]
    fn lists_mean_what_they_mean_as_a_whole() {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        let mut compiler = Compiler::new(LinkLayer::Ethernet, None).unwrap();
        let (mut apart, mut wanted, mut runs) = (0, 0, 0);
        for _ in 0..1_000 {
            let expression = list(&mut random, 2);
            let whole = compiler.compile(&CString::new(expression.as_str()).unwrap());
            let pieces = compile_above(&mut compiler, &expression, 1);
            let whole = match whole {
                Ok(whole) => whole,
                // What the optimizer finds out only when it sees the whole.
                Err(message) if message.contains("rejects all packets") => continue,
                Err(message) => {
                    assert_eq!(pieces, None, "{expression}: libpcap says {message}");
                    continue;
                }
            };
            let Some(pieces) = pieces else { continue };
            apart += 1;
            for _ in 0..40 {
                let frame = frame(&mut random);
                // SAFETY: both programs were compiled by libpcap, or put together of such: no jump
                // leaves them, and they end with returns.
                let (ours, theirs) = unsafe { (run(&pieces, &frame), run(&whole, &frame)) };
                assert_eq!(ours != 0, theirs != 0, "{expression}: {frame:02x?}");
                wanted += u32::from(ours != 0);
                runs += 1;
            }
        }
        assert!(apart > 300, "only {apart} lists were taken apart");
        assert!(
            (runs / 10..runs / 10 * 9).contains(&wanted),
            "{wanted} of {runs} wanted"
        );
    }
}
