//! Where an expression is wrong: libpcap says what, but not where.

use std::ffi::CString;

use super::libpcap::Compiler;
use super::pieces::{NAMES, QUALIFIERS};
use super::words::words;

/// Numbers that libpcap rejects. When libpcap complains of such a number behind a text, it has
/// understood the text. The number used is one that the expression does not contain. Of a longer
/// number some versions report only the digits up to the overflow.
const UNREADABLE: [&str; 2] = ["9999999999", "8888888888"];
/// What libpcap says of an expression that is longer than its memory, whatever is wrong behind that.
const OUT_OF_MEMORY: &str = "out of memory";
/// Primitives of a part of such an expression.
const PART_PRIMITIVES: usize = 200;

/// What is wrong, and where.
#[derive(Debug)]
pub(super) struct Mistake {
    /// What libpcap says.
    pub message: String,
    /// Where the word begins at which libpcap stops; the end when something is missing; `None` when the whole is wrong.
    pub byte: Option<usize>,
}

impl Mistake {
    /// Finds the place of libpcap's complaint.
    pub fn find(compiler: &mut Compiler, expression: &str, message: String) -> Self {
        if message == OUT_OF_MEMORY {
            return find_in_parts(compiler, expression).unwrap_or(Self {
                message: "it is longer than libpcap can read".into(),
                byte: None,
            });
        }
        if is_too_large(&message)
            && let Some((start, number)) = too_large(expression)
        {
            return Self {
                message: format!("number {number} overflows 32 bits"),
                byte: Some(start),
            };
        }
        let byte = find(compiler, expression, &message);
        Self { message, byte }
    }
}

/// Whether libpcap complains of a number. Some versions report only a part of it, or nothing.
fn is_too_large(message: &str) -> bool {
    message.ends_with("overflows 32 bits")
}

/// The first number that libpcap cannot read.
fn too_large(expression: &str) -> Option<(usize, &str)> {
    let words = words(expression).into_iter();
    words
        .map(|(start, end)| (start, &expression[start..end]))
        .find(|(_, word)| {
            word.bytes().all(|byte| byte.is_ascii_digit()) && word.parse::<u32>().is_err()
        })
}

/// The first mistake of an expression of which libpcap reads only a part at once.
fn find_in_parts(compiler: &mut Compiler, expression: &str) -> Option<Mistake> {
    let unreadable = unreadable_in(expression)?;
    let starts = starts(expression);
    let parts = starts.chunks(PART_PRIMITIVES).collect::<Vec<_>>();
    for (nth, part) in parts.iter().enumerate() {
        let (start, depth) = *part.first()?;
        let end = parts.get(nth + 1).map(|next| next[0].0);
        let opened = "(".repeat(depth);
        let part = format!(
            "{opened}{}",
            &expression[start..end.unwrap_or(expression.len())]
        );
        let probe = match end {
            Some(_) => format!("{part} {unreadable}"),
            None => part.clone(),
        };
        let complaint = compiler.compile(&CString::new(probe).ok()?).err();
        if let Some(message) =
            complaint.filter(|message| !is_too_large(message) || too_large(&part).is_some())
        {
            if message == OUT_OF_MEMORY {
                return None;
            }
            let Mistake { message, byte } = Mistake::find(compiler, &part, message);
            let byte = byte.map(|byte| start + byte.saturating_sub(opened.len()));
            return Some(Mistake { message, byte });
        }
    }
    None
}

/// Where primitives begin that need no qualifiers of earlier ones, and in how many parentheses.
fn starts(expression: &str) -> Vec<(usize, usize)> {
    let words = words(expression);
    let word = |at: usize| &expression[words[at].0..words[at].1];
    // `src or dst port 80` is one primitive.
    let is_direction = |at: usize| matches!(word(at), "src" | "dst");
    let mut depth = 0_usize;
    let mut starts = vec![(0, 0)];
    for (at, (start, _)) in words.iter().enumerate().skip(1) {
        let means_all = QUALIFIERS.contains(&word(at)) || NAMES.contains(&word(at));
        match word(at - 1) {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            "and" | "or" if means_all && !(at > 1 && is_direction(at - 2) && is_direction(at)) => {
                starts.push((*start, depth));
            }
            _ => {}
        }
    }
    starts
}

fn unreadable_in(expression: &str) -> Option<&'static str> {
    UNREADABLE
        .into_iter()
        .find(|number| !expression.contains(number))
}

/// The byte at which libpcap stops: the start of the first word such that the text up to its end,
/// with an unreadable number behind it, brings the same complaint. Without such a word, something
/// is missing at the end, or the complaint is about the whole.
fn find(compiler: &mut Compiler, expression: &str, message: &str) -> Option<usize> {
    let unreadable = unreadable_in(expression)?;
    let words = words(expression);
    let mut find_before = |what_follows: &str| {
        // libpcap stops at the first mistake, so every longer text brings the same complaint.
        let first = words.partition_point(|(_, end)| {
            let probe = CString::new(format!("{} {what_follows}", &expression[..*end]));
            let complaint = probe.ok().and_then(|probe| compiler.compile(&probe).err());
            complaint.as_deref() != Some(message)
        });
        words.get(first).map(|(start, _)| *start)
    };
    let found = find_before(unreadable);
    if found.is_none() && message.ends_with("syntax error") {
        return Some(expression.len());
    }
    // Some words are only understood when the next one was read.
    found.or_else(|| find_before(&format!("and {unreadable}")))
}
