//! Long expressions, taken apart.
//!
//! libpcap takes more than the square of an expression's length to compile it. Here an expression that is a
//! long list is read as far as `and`, `or`, `not` and parentheses go; libpcap compiles a few primitives at a
//! time, and their programs are put one behind the other, as libpcap itself does without its optimizer. The
//! code does not know what a primitive means: libpcap compiles as a whole what is not plainly a list.

use std::ffi::CString;

use parshall_core::filter::classic::ClassicInstruction;

use super::libpcap::Compiler;
use super::words::words;

/// Primitives from which on an expression is taken apart: libpcap is done with fewer in milliseconds.
const LONG_PRIMITIVES: usize = 32;
/// Primitives that libpcap compiles at once: few enough to be quick.
const PIECE_PRIMITIVES: usize = 12;
/// Parentheses in parentheses.
const DEPTH_MAX: usize = 64;

/// Words that a primitive can start with and that say all of what it means.
pub(super) const QUALIFIERS: [&str; 15] = [
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
pub(super) const NAMES: [&str; 7] = [
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

/// The program of a long list. `None` when it is no list or libpcap refuses a part of it: then
/// libpcap compiles the whole, and reports what it finds.
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

/// An instruction that does not branch.
const fn instruction(code: u16, k: u32) -> ClassicInstruction {
    ClassicInstruction {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(usize);

/// Programs one behind the other.
#[derive(Default)]
struct Assembly {
    instructions: Vec<ClassicInstruction>,
    /// Jumps whose distance is not known yet.
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
        for mut instruction in compiler.compile_short(&text).ok()? {
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
            self.instructions.push(instruction(RETURN, verdict));
        }
        self.link()
    }

    /// The instructions, with the distances of all jumps.
    fn link(mut self) -> Option<Vec<ClassicInstruction>> {
        for (at, label) in self.jumps {
            let distance = self.places[label.0]?.checked_sub(at + 1)?;
            self.instructions[at].k = u32::try_from(distance).ok()?;
        }
        Some(self.instructions)
    }
}

#[cfg(test)]
mod tests;
