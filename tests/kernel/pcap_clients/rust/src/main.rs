//! Captures by Rust's crate pcap: client INTERFACE FILTER COUNT

use std::fmt::Write;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let mut left: usize = words[3].parse().unwrap();
    let capture = pcap::Capture::from_device(words[1].as_str()).unwrap();
    let mut capture = capture.snaplen(200).timeout(50).open().unwrap();
    capture.filter(&words[2], true).unwrap();
    eprintln!("ready");
    while left > 0 {
        match capture.next_packet() {
            Ok(packet) => {
                let mut text = String::new();
                packet.data.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
                println!("{} {text}", packet.header.len);
                left -= 1;
            }
            Err(pcap::Error::TimeoutExpired) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let stats = capture.stats().unwrap();
    println!("{} {} {}", stats.received, stats.dropped, capture.get_datalink().0);
}
