//! Work on each packet that stands for its analysis, as in chapter 6 of Schneider's thesis: copies, or compression.

use std::hint::black_box;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Deserialize;

/// The work that is requested.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum LoadRequest {
    /// Copy the packet so many times, as `memcpy`.
    Memcpy(u32),
    /// Compress it into one stream, at this level from 0 to 9.
    Zlib(u32),
}

/// Does the work.
#[derive(Debug)]
pub enum Load {
    /// See [`LoadRequest::Memcpy`].
    Memcpy { times: u32, room: Vec<u8> },
    /// See [`LoadRequest::Zlib`].
    Zlib(Box<GzEncoder<io::Sink>>),
}

impl From<LoadRequest> for Load {
    fn from(request: LoadRequest) -> Self {
        match request {
            LoadRequest::Memcpy(times) => Self::Memcpy {
                times,
                room: Vec::new(),
            },
            LoadRequest::Zlib(level) => {
                let encoder = GzEncoder::new(io::sink(), Compression::new(level.min(9)));
                Self::Zlib(Box::new(encoder))
            }
        }
    }
}

impl Load {
    /// Works on a packet.
    pub fn work(&mut self, packet: &[u8]) {
        match self {
            Self::Memcpy { times, room } => {
                if room.len() < packet.len() {
                    room.resize(packet.len(), 0);
                }
                for _ in 0..*times {
                    room[..packet.len()].copy_from_slice(black_box(packet));
                    black_box(&mut *room);
                }
            }
            // Writing to a sink cannot fail.
            Self::Zlib(encoder) => drop(encoder.write_all(packet)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_from_json() {
        let read = |text| serde_json::from_str::<LoadRequest>(text).unwrap();
        assert_eq!(read(r#"{"memcpy": 50}"#), LoadRequest::Memcpy(50));
        assert_eq!(read(r#"{"zlib": 3}"#), LoadRequest::Zlib(3));
    }

    #[test]
    fn packets_of_any_length_are_worked_on() {
        for request in [LoadRequest::Memcpy(2), LoadRequest::Zlib(9)] {
            let mut load = Load::from(request);
            for packet in [&[][..], &[1; 1500], &[2; 60]] {
                load.work(packet);
            }
            match load {
                Load::Memcpy { room, .. } => assert_eq!((room[0], room[60]), (2, 1)),
                Load::Zlib(encoder) => drop(encoder.finish().unwrap()),
            }
        }
    }
}
