//! Long lists whose optimized program must be that of the whole list.
//!
//! libpcap's optimizer takes the cube of a list's length. Of a row of primitives that differ in one
//! number only (`port 1 or port 2 or ...`), a few stand for all: libpcap compiles the list with one number in
//! place of those in the middle, and where its program compares with that number, all of them are put
//! in. That is right when comparing is all that the program does with it, and when none of these numbers
//! stands anywhere else. Which instructions compare with it is seen by compiling again with another one
//! of the numbers: the programs must differ there only.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::net::Ipv4Addr;

use parshall_core::filter::classic::ClassicInstruction;

use super::{Assembly, QUALIFIERS, RETURN, Tree, starts_with_digit};
use crate::filter::libpcap::Compiler;
use crate::filter::words::words;

/// Primitives of a row that stay as they are, before and behind those that one stands for.
const KEPT: usize = 2;
/// How often numbers that turn out to stand elsewhere, too, may be taken out of their rows.
const ATTEMPTS: usize = 8;

const JUMP_CLASS: u16 = 0x05;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;

/// The program of a list, or `None` when libpcap should see the whole.
pub(super) fn compile(compiler: &mut Compiler, tree: &Tree) -> Option<Vec<ClassicInstruction>> {
    let mut elsewhere = repeated_numbers(tree);
    for _ in 0..ATTEMPTS {
        let mut rows = Vec::new();
        let first = shorten(tree, &elsewhere, 0, &mut rows);
        if rows.is_empty() {
            return None;
        }
        let second = shorten(tree, &elsewhere, 1, &mut Vec::new());
        let program = compiler.compile(&CString::new(text(&first)).ok()?).ok()?;
        let other = compiler.compile(&CString::new(text(&second)).ok()?).ok()?;
        let places = places(&program, &other, &rows)?;
        let of_rows: HashSet<u32> = rows.iter().flatten().copied().collect();
        let others = program
            .iter()
            .enumerate()
            .filter(|(at, instruction)| instruction.code == JUMP_EQUAL && !places.contains_key(at))
            .map(|(_, instruction)| instruction.k)
            .filter(|number| of_rows.contains(number));
        let before = elsewhere.len();
        elsewhere.extend(others);
        if elsewhere.len() == before {
            return expand(&program, &places, &rows);
        }
    }
    None
}

/// A primitive that compares with one number: the words before that, and the number.
fn comparison(text: &str) -> Option<(&str, u32)> {
    let (start, end) = *words(text).last()?;
    let (before, number) = (text[..start].trim_end(), &text[start..end]);
    let mut kinds = before.split_ascii_whitespace();
    if end != text.len()
        || !kinds
            .clone()
            .all(|word| QUALIFIERS.contains(&word) || matches!(word, "and" | "or"))
    {
        return None;
    }
    let number = match kinds.next_back()? {
        "port" => number.parse::<u16>().ok()?.into(),
        "host" | "src" | "dst" => number.parse::<Ipv4Addr>().ok()?.into(),
        _ => return None,
    };
    // 0 is compared in ways of its own.
    (number != 0).then_some((before, number))
}

/// The same of a primitive or its opposite, which is part of what is the same in a row.
fn item(tree: &Tree) -> Option<((bool, &str), u32)> {
    let (is_opposite, text) = match tree {
        Tree::Primitive(text) => (false, text),
        Tree::Not(inner) => match &**inner {
            Tree::Primitive(text) => (true, text),
            _ => return None,
        },
        _ => return None,
    };
    let (kind, number) = comparison(text)?;
    Some(((is_opposite, kind), number))
}

/// Numbers that the expression contains more than once, however they are written.
fn repeated_numbers(tree: &Tree) -> HashSet<u32> {
    let (mut once, mut repeated) = (HashSet::new(), HashSet::new());
    collect_numbers(tree, &mut |number| {
        if !once.insert(number) {
            repeated.insert(number);
        }
    });
    repeated
}

fn collect_numbers(tree: &Tree, take: &mut impl FnMut(u32)) {
    match tree {
        Tree::Primitive(text) => {
            for (start, end) in words(text) {
                for part in text[start..end].split(['-', ':']) {
                    number(part).into_iter().for_each(&mut *take);
                }
            }
        }
        Tree::Not(inner) => collect_numbers(inner, take),
        Tree::And(parts) | Tree::Or(parts) => {
            parts.iter().for_each(|part| collect_numbers(part, take));
        }
    }
}

fn number(text: &str) -> Option<u32> {
    if !starts_with_digit(text) {
        return None;
    }
    if let Some(digits) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        return u32::from_str_radix(digits, 16).ok();
    }
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Some(address.into());
    }
    match text.strip_prefix('0') {
        Some(digits) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// The tree with one number, the `chosen`th, in place of those that stand only in the middle of a
/// row; `rows` gets these.
fn shorten(tree: &Tree, elsewhere: &HashSet<u32>, chosen: usize, rows: &mut Vec<Vec<u32>>) -> Tree {
    let parts = match tree {
        Tree::Primitive(_) => return tree.clone(),
        Tree::Not(inner) => {
            return Tree::Not(Box::new(shorten(inner, elsewhere, chosen, rows)));
        }
        Tree::And(parts) | Tree::Or(parts) => parts,
    };
    let mut short = Vec::new();
    let mut rest = &parts[..];
    while let Some(part) = rest.first() {
        let kind = item(part).map(|(kind, _)| kind);
        let length = rest
            .iter()
            .take_while(|part| kind.is_some() && item(part).map(|(kind, _)| kind) == kind)
            .count();
        if length == 0 {
            short.push(shorten(part, elsewhere, chosen, rows));
            rest = &rest[1..];
            continue;
        }
        let (row, behind) = rest.split_at(length);
        rest = behind;
        let middle = row.get(KEPT..length.saturating_sub(KEPT)).unwrap_or(&[]);
        let numbers: Vec<u32> = middle
            .iter()
            .filter_map(item)
            .map(|(_, number)| number)
            .filter(|number| !elsewhere.contains(number))
            .collect();
        // A number alone stands for itself.
        let (Some(first), Some(stands_for_all), true) =
            (numbers.first(), numbers.get(chosen), numbers.len() > 1)
        else {
            short.extend_from_slice(row);
            continue;
        };
        let all: HashSet<u32> = numbers.iter().copied().collect();
        let with = |wanted: &u32| {
            row.iter()
                .find(|part| item(part).is_some_and(|(_, number)| number == *wanted))
                .cloned()
        };
        for part in row {
            match item(part) {
                Some((_, number)) if number == *first => short.extend(with(stands_for_all)),
                Some((_, number)) if all.contains(&number) => {}
                _ => short.push(part.clone()),
            }
        }
        rows.push(numbers);
    }
    match tree {
        Tree::And(_) => Tree::And(short),
        _ => Tree::Or(short),
    }
}

fn text(tree: &Tree) -> String {
    let join = |parts: &[Tree], operator: &str| {
        let texts: Vec<String> = parts.iter().map(text).collect();
        format!("({})", texts.join(operator))
    };
    match tree {
        Tree::Primitive(text) => format!("({text})"),
        Tree::Not(inner) => format!("(not {})", text(inner)),
        Tree::And(parts) => join(parts, " and "),
        Tree::Or(parts) => join(parts, " or "),
    }
}

/// The instructions that compare with the number that stands for a row, and which row; `None` when the
/// programs differ in anything else.
fn places(
    program: &[ClassicInstruction],
    other: &[ClassicInstruction],
    rows: &[Vec<u32>],
) -> Option<HashMap<usize, usize>> {
    if program.len() != other.len() {
        return None;
    }
    let row_of: HashMap<(u32, u32), usize> = rows
        .iter()
        .enumerate()
        .map(|(row, numbers)| ((numbers[0], numbers[1]), row))
        .collect();
    let mut places = HashMap::new();
    for (at, (one, two)) in program.iter().zip(other).enumerate() {
        if one == two {
            continue;
        }
        let is_comparison =
            one.code == JUMP_EQUAL && ClassicInstruction { k: one.k, ..*two } == *one;
        let row = row_of.get(&(one.k, two.k)).filter(|_| is_comparison)?;
        places.insert(at, *row);
    }
    Some(places)
}

/// The program with all numbers of each row in place of the one that stood for them.
fn expand(
    program: &[ClassicInstruction],
    places: &HashMap<usize, usize>,
    rows: &[Vec<u32>],
) -> Option<Vec<ClassicInstruction>> {
    let mut assembly = Assembly::default();
    let labels: Vec<_> = program.iter().map(|_| assembly.label()).collect();
    for (at, instruction) in program.iter().enumerate() {
        assembly.place(labels[at]);
        let target = |distance: usize| labels.get(at + 1 + distance).copied();
        if instruction.code & 7 != JUMP_CLASS {
            assembly.instructions.push(*instruction);
            continue;
        }
        if instruction.code == JUMP_ALWAYS {
            assembly.jump(target(instruction.k as usize)?);
            continue;
        }
        let yes = target(instruction.jt.into())?;
        let no = target(instruction.jf.into())?;
        let own = [instruction.k];
        let numbers = places.get(&at).map_or(&own[..], |row| &rows[*row]);
        for number in numbers {
            assembly.instructions.push(ClassicInstruction {
                jt: 0,
                jf: 1,
                k: *number,
                ..*instruction
            });
            assembly.jump(yes);
        }
        assembly.jump(no);
    }
    // The last instruction is a return.
    debug_assert_eq!(
        assembly.instructions.last().map(|last| last.code & 7),
        Some(RETURN)
    );
    assembly.link()
}
