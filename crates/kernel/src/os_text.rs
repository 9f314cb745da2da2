//! Paths and words of the command line inside JSON, where they need not be UTF-8.
//!
//! Python writes a byte that is not UTF-8 as the lone surrogate U+DC80 to U+DCFF (PEP 383), and JSON can carry it as an
//! escape. serde_json gives such text as bytes, with each surrogate in three bytes (WTF-8).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// Text of the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsText(OsString);

impl AsRef<OsStr> for OsText {
    fn as_ref(&self) -> &OsStr {
        &self.0
    }
}

impl From<OsText> for PathBuf {
    fn from(text: OsText) -> Self {
        text.0.into()
    }
}

impl<'de> Deserialize<'de> for OsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(BytesVisitor)
    }
}

/// Deserializes a field that is a path.
pub fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    OsText::deserialize(deserializer).map(PathBuf::from)
}

/// Deserializes a field that is a path or null.
pub fn optional_path<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    Ok(Option::<OsText>::deserialize(deserializer)?.map(PathBuf::from))
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = OsText;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("text of the operating system")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<OsText, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_bytes<E: Error>(self, wtf8: &[u8]) -> Result<OsText, E> {
        Ok(OsText(OsString::from_vec(without_surrogates(wtf8))))
    }
}

/// Restores the bytes that are written as U+DC80 to U+DCFF (ED B2 80 to ED B3 BF).
fn without_surrogates(mut wtf8: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(wtf8.len());
    while let Some((&first, rest)) = wtf8.split_first() {
        wtf8 = match wtf8 {
            [0xED, second @ 0xB2..=0xB3, third, rest @ ..] => {
                bytes.push(second << 6 | third & 0x3F);
                rest
            }
            _ => {
                bytes.push(first);
                rest
            }
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    fn read(json: &str) -> Vec<u8> {
        let text: OsText = serde_json::from_str(json).unwrap();
        text.as_ref().as_bytes().to_vec()
    }

    #[test]
    fn text_is_read_as_it_stands() {
        assert_eq!(read("\"log.arrow\""), b"log.arrow");
        assert_eq!(
            read("\"\u{e9}\u{2603}\u{d7ff}\""),
            "\u{e9}\u{2603}\u{d7ff}".as_bytes()
        );
        assert_eq!(read(r#""\ud83d\ude00""#), "\u{1f600}".as_bytes());
    }

    #[test]
    fn bytes_that_are_not_utf_8_come_back() {
        for byte in 0x80..=0xFF_u8 {
            let json = format!(r#""a\udc{byte:02x}b""#);
            assert_eq!(read(&json), [b'a', byte, b'b'], "{byte:#x}");
        }
    }
}
