//! Words of an expression.

/// Start and end of each word, in bytes; signs are words of one character.
pub(super) fn words(expression: &str) -> Vec<(usize, usize)> {
    let joins = |character: char| character.is_alphanumeric() || "._:-\\$".contains(character);
    let mut words: Vec<(usize, usize)> = Vec::new();
    let mut joined = false;
    for (start, character) in expression.char_indices() {
        if character.is_whitespace() {
            joined = false;
            continue;
        }
        let end = start + character.len_utf8();
        match words.last_mut() {
            Some(word) if joined && joins(character) => word.1 = end,
            _ => words.push((start, end)),
        }
        joined = joins(character);
    }
    words
}
