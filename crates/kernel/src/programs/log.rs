//! Messages of libbpf: kept for error messages, never printed.

use libbpf_rs::PrintLevel;
use std::cell::RefCell;

thread_local! {
    /// libbpf calls back on the thread that called it, and objects may be loaded beside each other.
    static LAST_LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}
const LINES_MAX: usize = 200;

/// Keeps a line; a callback for `libbpf_rs::set_print`.
fn keep(_level: PrintLevel, line: String) {
    if std::env::var_os("PARSHALL_LIBBPF_LOG").is_some() {
        eprint!("{line}");
    }
    LAST_LINES.with_borrow_mut(|lines| {
        if lines.len() < LINES_MAX {
            lines.push(line.trim().to_string());
        }
    });
}

/// Keeps libbpf's messages from now on, and prints none.
pub fn listen() {
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
}

/// An error of libbpf with the line that most likely has the reason, if there is one.
pub fn explained(error: &libbpf_rs::Error) -> String {
    match take() {
        Some(line) => format!("{error}: {line}"),
        None => error.to_string(),
    }
}

/// The line that most likely has the reason, with the verifier's reason where it gave one. Clears the rest.
fn take() -> Option<String> {
    let lines = LAST_LINES.take();
    let found = lines
        .iter()
        .find(|line| line.contains("kernel BTF") || line.contains("failed"))
        .or_else(|| lines.last())
        .map(|line| line.trim_start_matches("libbpf: ").to_string());
    let verifier = lines.iter().find_map(|line| verifier_reason(line));
    match (found, verifier) {
        (Some(found), Some(reason)) => Some(format!("{found}: {reason}")),
        (found, _) => found,
    }
}

/// The verifier's last line before its statistics. libbpf reports the whole log as one message.
fn verifier_reason(output: &str) -> Option<&str> {
    let log = output.split_once("-- BEGIN PROG LOAD LOG --")?.1;
    let log = log.split("-- END PROG LOAD LOG --").next()?;
    log.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !line.starts_with("processed "))
}

#[cfg(test)]
mod tests {
    use super::verifier_reason;

    #[test]
    fn the_verifiers_reason_is_its_last_word_before_its_statistics() {
        let output = "libbpf: prog 'one': -- BEGIN PROG LOAD LOG --\n0: (85) call 14\n\
                    unknown func bpf_x#14\nprocessed 9 insns (limit 1000000)\n-- END PROG LOAD LOG --";
        assert_eq!(verifier_reason(output), Some("unknown func bpf_x#14"));
        assert_eq!(verifier_reason("libbpf: failed to load object 'x'"), None);
    }
}
