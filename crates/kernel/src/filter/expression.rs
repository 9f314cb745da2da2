//! Expressions of pcap-filter(7).

use std::ffi::CString;
use std::net::Ipv4Addr;

use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram, ProgramError};
use parshall_core::filter::emit::LinkLayer;

use super::libpcap::{self, Compiler};
use super::mistake::Mistake;
use super::pieces;
use super::words::words;

/// Characters of an expression in a message: before the position of a mistake, and in all.
const SHOWN_BEFORE: usize = 60;
const SHOWN: usize = 120;

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    instructions: Vec<ClassicInstruction>,
    program: ClassicProgram,
}

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum ExpressionError {
    #[error(
        "filter '{}': {message}{}; see pcap-filter(7)",
        excerpt(.expression, *.column),
        place(.expression, *.column)
    )]
    Compile {
        expression: String,
        message: String,
        column: Option<usize>,
    },
    #[error("filter '{}': character {column} is a zero byte; leave it out", excerpt(.expression, Some(*.column)))]
    ZeroByte { expression: String, column: usize },
    #[error("filter '{}': {source}", excerpt(.expression, None))]
    Program {
        expression: String,
        source: ProgramError,
    },
    #[error("filter '{}': no memory to compile it; free some", excerpt(.expression, None))]
    Memory { expression: String },
}

impl Expression {
    /// Compiles an expression; the empty one matches every frame.
    ///
    /// `netmask` is that of the interface's IPv4 network, which `ip broadcast` needs. Host names are
    /// resolved, which may take time.
    ///
    /// # Errors
    /// [`ExpressionError`] with libpcap's message and the position, or the part of the language that
    /// cannot be merged.
    pub fn compile(
        expression: &str,
        link_layer: LinkLayer,
        netmask: Option<Ipv4Addr>,
    ) -> Result<Self, ExpressionError> {
        let text = CString::new(expression).map_err(|error| ExpressionError::ZeroByte {
            expression: expression.to_owned(),
            column: column(expression, error.nul_position()),
        })?;
        let memory = || ExpressionError::Memory {
            expression: expression.to_owned(),
        };
        let mut compiler = Compiler::new(link_layer, netmask).ok_or_else(memory)?;
        let instructions = match pieces::compile(&mut compiler, expression) {
            Some(instructions) => instructions,
            None => compiler.compile_short(&text).map_err(|message| {
                let mistake = Mistake::find(&mut compiler, expression, message);
                ExpressionError::Compile {
                    expression: expression.to_owned(),
                    column: mistake.byte.map(|byte| column(expression, byte)),
                    message: on_one_line(&mistake.message),
                }
            })?,
        };
        let program =
            ClassicProgram::new(&instructions).map_err(|source| ExpressionError::Program {
                expression: expression.to_owned(),
                source,
            })?;
        Ok(Self {
            instructions,
            program,
        })
    }

    /// Wraps a classic BPF program that another program compiled.
    ///
    /// # Errors
    /// [`ProgramError`] when it is not valid, or cannot be merged.
    pub fn from_instructions(instructions: &[ClassicInstruction]) -> Result<Self, ProgramError> {
        Ok(Self {
            program: ClassicProgram::new(instructions)?,
            instructions: instructions.to_vec(),
        })
    }

    /// The program: by libpcap's optimizer where that accepts the same frames, and otherwise without it.
    pub fn instructions(&self) -> &[ClassicInstruction] {
        &self.instructions
    }

    /// The program, for a [`parshall_core::filter::Subscription`].
    pub fn program(&self) -> &ClassicProgram {
        &self.program
    }

    /// The return value of libpcap's interpreter for a whole frame: 0 rejects.
    pub fn run_by_libpcap(&self, frame: &[u8]) -> u32 {
        // SAFETY: `ClassicProgram::new` took these instructions: no jump leaves them, and every
        // path through them ends with a return.
        unsafe { libpcap::run(&self.instructions, frame) }
    }
}

fn column(expression: &str, byte: usize) -> usize {
    expression[..byte].chars().count() + 1
}

/// The position of a mistake, for a message.
fn place(expression: &str, column: Option<usize>) -> String {
    let Some(column) = column else {
        return String::new();
    };
    let byte = expression
        .char_indices()
        .nth(column - 1)
        .map(|(byte, _)| byte);
    let word = words(expression)
        .into_iter()
        .find(|(start, _)| Some(*start) == byte)
        .map_or_else(
            || "its end".to_owned(),
            |(start, end)| format!("'{}'", excerpt(&expression[start..end], None)),
        );
    format!(", at column {column} ({word})")
}

/// An expression for a message: of a long one the part around a column, or its beginning.
fn excerpt(expression: &str, column: Option<usize>) -> String {
    let characters = expression.chars().count();
    if characters <= SHOWN {
        return printable(expression);
    }
    let first = column
        .map_or(0, |column| column.saturating_sub(SHOWN_BEFORE))
        .min(characters - SHOWN);
    let shown: String = expression.chars().skip(first).take(SHOWN).collect();
    let mark = |is_cut: bool| if is_cut { "..." } else { "" };
    format!(
        "{}{}{}",
        mark(first > 0),
        printable(&shown),
        mark(first + SHOWN < characters)
    )
}

/// Text that is safe for a terminal: control characters are escaped.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\'' | '"' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// libpcap's message on one line: it may have several lines and repeat the expression.
fn on_one_line(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).collect();
    printable(lines.join(" ").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(expression: &str) -> (String, usize) {
        match Expression::compile(expression, LinkLayer::Ethernet, None) {
            Err(ExpressionError::Compile {
                message, column, ..
            }) => (message, column.unwrap_or(0)),
            other => panic!("{expression}: {other:?}"),
        }
    }

    #[test]
    fn an_error_has_the_message_and_the_place() {
        let syntax = "can't parse filter expression: syntax error";
        for (expression, message, column) in [
            ("tcp prot 80", syntax, 5),
            ("tcp port", syntax, 9),
            ("tcp and (udp", syntax, 13),
            ("tcp @ udp", syntax, 5),
            ("udp or or tcp", syntax, 8),
            (
                "tcp and vlan 5000 or udp",
                "VLAN tag 5000 greater than maximum 4095",
                14,
            ),
            (
                "ip broadcast",
                "netmask not known, so 'ip broadcast' not supported",
                4,
            ),
            ("port 80 or 70000", "illegal port number 70000 > 65535", 12),
            (
                "port 80 or port 9999999999",
                "number 9999999999 overflows 32 bits",
                17,
            ),
        ] {
            assert_eq!(
                complaint(expression),
                (message.to_owned(), column),
                "{expression}"
            );
        }
    }

    #[test]
    fn a_message_names_expression_place_and_remedy() {
        let error = Expression::compile("tcp prot 80", LinkLayer::Ethernet, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "filter 'tcp prot 80': can't parse filter expression: syntax error, at column 5 \
             ('prot'); see pcap-filter(7)"
        );
        let error = Expression::compile("tcp port", LinkLayer::Ethernet, None).unwrap_err();
        assert!(
            error.to_string().contains("at column 9 (its end)"),
            "{error}"
        );
        let error = Expression::compile("tcp\0", LinkLayer::Ethernet, None).unwrap_err();
        assert!(
            error.to_string().contains("character 4 is a zero byte"),
            "{error}"
        );
    }

    #[test]
    fn the_place_of_a_mistake_behind_a_long_list_is_right() {
        let ports: Vec<String> = (1..300).map(|port| format!("port {port}")).collect();
        let list = ports.join(" or ") + " or ";
        let before = list.chars().count();
        for (mistake, at) in [
            ("port 70000", 6),
            ("70000", 1),
            ("prot 80", 1),
            ("port", 5),
            ("port 5 port", 8),
            ("host 10.0.0.256", 6),
            ("(udp", 5),
            ("port 5 or", 10),
        ] {
            let expression = format!("{list}{mistake}");
            let (_, column) = complaint(&expression);
            assert_eq!(column, before + at, "{mistake}");
            let error = Expression::compile(&expression, LinkLayer::Ethernet, None).unwrap_err();
            let shown = error.to_string();
            assert!(shown.len() < 400 && shown.contains(mistake), "{shown}");
        }
    }

    fn check_places_behind_a_list_too_long_for_libpcap(cases: &[(&str, &str, &str, usize)]) {
        let ports: Vec<String> = (0..9_000).map(|port| format!("port {port}")).collect();
        let list = ports.join(" or ") + " or ";
        for (before, mistake, behind, at) in cases {
            let expression = format!("{before}{list}{mistake}{behind}");
            let expected = before.len() + list.len() + at;
            let (message, column) = complaint(&expression);
            assert_eq!(column, expected, "{before}...{mistake}{behind}: {message}");
        }
    }

    #[test]
    fn the_place_of_a_mistake_is_right_where_the_list_is_too_long_for_libpcap() {
        check_places_behind_a_list_too_long_for_libpcap(&[(
            "ip and (not icmp and (",
            "host 10.0.0.256",
            "))",
            6,
        )]);
    }

    #[test]
    #[ignore = "seconds each: make test-long"]
    fn long_the_place_of_more_mistakes_is_right_where_the_list_is_too_long_for_libpcap() {
        check_places_behind_a_list_too_long_for_libpcap(&[
            ("", "prot 80", " or port 5", 1),
            ("", "port 70000", "", 6),
            ("", "port 1 or 70000", "", 11),
            ("", "port", "", 5),
            ("ip and (not icmp and (", "port 5", ")", 8),
        ]);
    }

    #[test]
    fn a_message_is_one_short_printable_line() {
        for expression in [
            "tcp\u{1b}[31m".to_owned(),
            "tcp\nprot".to_owned(),
            "tcp \u{202e}".to_owned(),
            "host \u{7}".to_owned(),
            "x".repeat(100_000),
            "port 1 or ".repeat(10_000),
            format!("{}\0", "port 1 or ".repeat(10_000)),
            format!("inbound and len > {}1 and port", "0".repeat(100_000)),
        ] {
            let error = Expression::compile(&expression, LinkLayer::Ethernet, None).unwrap_err();
            let shown = error.to_string();
            assert!(shown.len() < 1_000, "{} bytes", shown.len());
            assert!(!shown.contains(char::is_control), "{shown:?}");
            assert!(!shown.contains('\u{202e}'), "{shown:?}");
        }
        assert_eq!(on_one_line("first\n second\u{1b}\n"), "first second\\u{1b}");
    }

    #[test]
    fn broadcast_is_known_by_the_netmask() {
        let mask = Some(Ipv4Addr::new(255, 255, 255, 0));
        let filter = Expression::compile("ip broadcast", LinkLayer::RawIp, mask).unwrap();
        let mut frame = vec![0; 20];
        frame[0] = 0x45;
        frame[16..20].copy_from_slice(&[10, 1, 2, 255]);
        assert_ne!(filter.run_by_libpcap(&frame), 0);
        frame[19] = 254;
        assert_eq!(filter.run_by_libpcap(&frame), 0);
    }
}
