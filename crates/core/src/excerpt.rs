//! The beginning of a text that is too long for a message.

/// The first `characters` of a text, with dots if it is longer.
pub(crate) fn excerpt(text: &str, characters: usize) -> String {
    let text = text.trim_end();
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
