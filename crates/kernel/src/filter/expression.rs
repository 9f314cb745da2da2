//! Expressions of pcap-filter(7).

use std::ffi::CString;
use std::net::Ipv4Addr;

use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram, ProgramError};
use parshall_core::filter::emit::LinkLayer;

use super::libpcap::{self, Compiler};
use super::pieces;
use super::words::words;

/// A number that libpcap refuses to read: what stands before it was understood when this is what
/// libpcap complains of.
const UNREADABLE: &str = " 99999999999999999999";

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    instructions: Vec<ClassicInstruction>,
    program: ClassicProgram,
}

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// libpcap does not understand it.
    #[error("filter '{expression}': {message}, at column {column} ({}); see pcap-filter(7)", place(.expression, *.column))]
    Compile {
        /// The expression.
        expression: String,
        /// What libpcap says.
        message: String,
        /// Where, counted in characters from 1; behind the last one when something is missing.
        column: usize,
    },
    /// It contains a character that no expression can.
    #[error("filter '{}': character {column} is a zero byte; leave it out", .expression.escape_debug())]
    ZeroByte {
        /// The expression.
        expression: String,
        /// Where, counted in characters from 1.
        column: usize,
    },
    /// What libpcap makes of it cannot be merged.
    #[error("filter '{expression}': {source}")]
    Program {
        /// The expression.
        expression: String,
        /// Why not.
        source: ProgramError,
    },
    /// There is no memory for libpcap's handle.
    #[error("filter '{expression}': no memory to compile it; free some")]
    Memory {
        /// The expression.
        expression: String,
    },
}

impl Expression {
    /// Compiles an expression; the empty one matches every frame.
    ///
    /// `netmask` is that of the interface's IPv4 network, which `ip broadcast` asks for. Names of
    /// hosts are looked up, which may take as long as the resolver does.
    ///
    /// # Errors
    /// [`ExpressionError`] with libpcap's message and the place, or the part of the language that
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
            None => compiler
                .compile(&text)
                .map_err(|message| ExpressionError::Compile {
                    expression: expression.to_owned(),
                    column: column(expression, find(&mut compiler, expression, &message)),
                    message,
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

    /// Takes a classic program that something else compiled.
    ///
    /// # Errors
    /// [`ProgramError`] when it is none, or cannot be merged.
    pub fn from_instructions(instructions: &[ClassicInstruction]) -> Result<Self, ProgramError> {
        Ok(Self {
            program: ClassicProgram::new(instructions)?,
            instructions: instructions.to_vec(),
        })
    }

    /// The program as libpcap made it.
    pub fn instructions(&self) -> &[ClassicInstruction] {
        &self.instructions
    }

    /// The program, for a [`parshall_core::filter::Subscription`].
    pub fn program(&self) -> &ClassicProgram {
        &self.program
    }

    /// What libpcap's own interpreter returns for a whole frame: 0 rejects.
    pub fn run_by_libpcap(&self, frame: &[u8]) -> u32 {
        // SAFETY: `ClassicProgram::new` took these instructions: no jump leaves them, and every
        // way through them ends with a return.
        unsafe { libpcap::run(&self.instructions, frame) }
    }
}

/// The byte at which libpcap gives up: the start of the first word with which the text up to there
/// brings the same complaint, although something unreadable follows. When there is none, libpcap
/// missed something at the end.
fn find(compiler: &mut Compiler, expression: &str, message: &str) -> usize {
    // libpcap reads no further than the first mistake, so all that is longer brings it, too.
    let words = words(expression);
    let first = words.partition_point(|(_, end)| {
        let probe = CString::new(format!("{}{UNREADABLE}", &expression[..*end]));
        let complaint = probe.ok().and_then(|probe| compiler.compile(&probe).err());
        complaint.as_deref() != Some(message)
    });
    words
        .get(first)
        .map_or(expression.len(), |(start, _)| *start)
}

fn column(expression: &str, byte: usize) -> usize {
    expression[..byte].chars().count() + 1
}

/// The word at a column, quoted, for a message.
fn place(expression: &str, column: usize) -> String {
    let byte = expression
        .char_indices()
        .nth(column - 1)
        .map(|(byte, _)| byte);
    words(expression)
        .into_iter()
        .find(|(start, _)| Some(*start) == byte)
        .map_or_else(
            || "its end".to_owned(),
            |(start, end)| format!("'{}'", &expression[start..end]),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(expression: &str) -> (String, usize) {
        match Expression::compile(expression, LinkLayer::Ethernet, None) {
            Err(ExpressionError::Compile {
                message, column, ..
            }) => (message, column),
            other => panic!("{expression}: {other:?}"),
        }
    }

    #[test]
    fn an_error_says_what_and_where() {
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
    fn what_cannot_be_merged_is_named() {
        for (expression, reason) in [
            ("ip6 protochain 6", "loops (protochain)"),
            ("inbound", "direction (inbound, outbound)"),
            ("ifindex 3", "index (ifindex)"),
        ] {
            let error = Expression::compile(expression, LinkLayer::Ethernet, None).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
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
