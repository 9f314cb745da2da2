//! What libbpf says while it loads: kept for the error message, never printed over the user's screen.

use std::sync::Mutex;

static LAST_LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
const LINES_MAX: usize = 200;

/// Keeps a line; a callback for `libbpf_rs::set_print`.
pub fn keep(_level: libbpf_rs::PrintLevel, line: String) {
    if std::env::var_os("PARSHALL_LIBBPF_LOG").is_some() {
        eprint!("{line}");
    }
    if let Ok(mut lines) = LAST_LINES.lock()
        && lines.len() < LINES_MAX
    {
        lines.push(line.trim().to_string());
    }
}

/// The line that most likely tells why, and forgets the rest.
pub fn take() -> Option<String> {
    let mut lines = LAST_LINES.lock().ok()?;
    let found = lines
        .iter()
        .find(|line| line.contains("kernel BTF") || line.contains("failed"))
        .or_else(|| lines.last())
        .map(|line| line.trim_start_matches("libbpf: ").to_string());
    lines.clear();
    found
}
