//! Full disks, killed writers, readers that leave: the file on the disk opens, and the account balances.

use parshall_core::trace::*;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// The environment variable with the path for a test that runs again in a child process.
const CHILD: &str = "PARSHALL_TRACE_CHILD";

fn packet(number: u64, captured: &[u8]) -> Packet<'_> {
    Packet {
        interface: (number % 2) as u32,
        time_ns: number,
        direction: Direction::Out,
        wire_bytes: 60,
        captured,
        ..Packet::default()
    }
}

fn interfaces() -> [Interface; 2] {
    [Interface::default(), Interface::default()]
}

fn seen(handed: u64) -> [Statistics; 2] {
    let of = |packets| Statistics {
        seen: packets,
        complete: true,
        ..Statistics::default()
    };
    [of(handed.div_ceil(2)), of(handed / 2)]
}

/// The times of all packets of a file, which are their numbers here, and how the file ends.
fn read(path: &Path) -> (Vec<u64>, Option<Reader>, Result<(), TraceError>) {
    let mut reader = match Reader::open(path) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), None, Err(error)),
    };
    let mut numbers = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(packet)) => numbers.push(packet.time_ns),
            Ok(None) => return (numbers, Some(reader), Ok(())),
            Err(error) => return (numbers, Some(reader), Err(error)),
        }
    }
}

/// Checks that tshark finds this many packets and no fault in a file. `zstd` also checks its frames; after a
/// full disk the file has a second frame, which Wireshark 4.0 does not read.
fn tshark_reads(path: &Path, packets: usize, disk_was_full: bool) {
    let count = "tshark -n -T fields -e frame.number -r";
    let file = path.display();
    let line = match Compression::of_name(path) {
        Compression::Zstd if disk_was_full => {
            format!("set -o pipefail; zstd -dcq {file} | {count} -")
        }
        Compression::Zstd => format!("zstd -tq {file} && {count} {file}"),
        Compression::Lz4 => format!("set -o pipefail; lz4 -dcq {file} | {count} -"),
        _ => format!("{count} {file}"),
    };
    let programs = Command::new("sh")
        .args(["-c", "command -v tshark && command -v zstd"])
        .output();
    let output = match programs {
        Ok(found) if found.status.success() => Command::new("bash").args(["-c", &line]).output(),
        _ => Err(io::ErrorKind::NotFound.into()),
    };
    let Ok(output) = output else {
        assert!(
            std::env::var_os("CI").is_none(),
            "tshark and zstd are required under CI"
        );
        eprintln!("skipped: tshark or zstd is not installed");
        return;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", path.display());
    let lines = output.stdout.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(lines, packets, "{}: {errors}", path.display());
}

fn is_ascending(numbers: &[u64]) -> bool {
    numbers.is_sorted_by(|before, after| before < after)
}

/// A disk with limited space, which a test may change.
#[derive(Clone)]
struct SmallDisk {
    bytes: Arc<Mutex<Vec<u8>>>,
    room_bytes: Arc<Mutex<usize>>,
    /// Where the next write begins.
    at_bytes: usize,
}

impl SmallDisk {
    fn new(room_bytes: usize) -> Self {
        Self {
            bytes: Arc::default(),
            room_bytes: Arc::new(Mutex::new(room_bytes)),
            at_bytes: 0,
        }
    }

    fn set_room(&self, room_bytes: usize) {
        *self.room_bytes.lock().expect("one thread") = room_bytes;
    }

    /// What [`read`] gives for a file.
    fn read(&self) -> (Vec<u64>, Option<Reader>, Result<(), TraceError>) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        std::fs::write(&path, &*self.bytes.lock().expect("one thread")).expect("room");
        read(&path)
    }
}

impl Sink for SmallDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.bytes.lock().expect("one thread");
        let room_bytes = self
            .room_bytes
            .lock()
            .expect("one thread")
            .saturating_sub(self.at_bytes);
        let taken_bytes = room_bytes.min(bytes.len());
        let overwritten = self.at_bytes..disk.len().min(self.at_bytes + taken_bytes);
        disk.splice(overwritten, bytes[..taken_bytes].iter().copied());
        self.at_bytes += taken_bytes;
        match taken_bytes {
            0 => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(taken_bytes),
        }
    }

    fn cut(&mut self, length_bytes: u64) -> io::Result<bool> {
        let mut disk = self.bytes.lock().expect("one thread");
        disk.truncate(length_bytes as usize);
        self.at_bytes = length_bytes as usize;
        Ok(true)
    }

    fn overwrite_from(&mut self, position_bytes: u64) -> io::Result<bool> {
        self.at_bytes = position_bytes as usize;
        Ok(true)
    }

    fn is_live(&self) -> bool {
        false
    }
}

fn all_kinds() -> impl Iterator<Item = WriterOptions> {
    [Format::Pcapng, Format::Pcap]
        .into_iter()
        .flat_map(|format| {
            [
                Compression::None,
                Compression::Gzip,
                Compression::Zstd,
                Compression::Lz4,
            ]
            .map(|compression| WriterOptions {
                format,
                compression,
                ..WriterOptions::default()
            })
        })
}

#[test]
fn a_full_disk_loses_only_unwritten_packets() {
    for options in all_kinds() {
        // Compressed, so that one frame is full, and a part of the next.
        let room_bytes = match options.compression {
            Compression::None => 1_000_001,
            _ => 100_001,
        };
        let disk = SmallDisk::new(room_bytes);
        let sink = Box::new(disk.clone());
        let mut writer =
            Writer::to_sink(sink, "disk", &options, &Section::default(), &interfaces())
                .expect("room for the head");
        let mut errors = Vec::new();
        let count = 200_000;
        for number in 0u64..count {
            let bytes = number.to_be_bytes().repeat(8);
            errors.extend(writer.write(&packet(number, &bytes)).err());
            if number % 5000 == 0 {
                errors.extend(writer.tick(number, &seen(number + 1)).err());
            }
        }
        let [error] = errors.as_slice() else {
            panic!("{options:?}: one error is wanted, not {errors:?}");
        };
        let message = error.to_string();
        assert!(
            message.starts_with("disk: takes no more after"),
            "{message}"
        );
        assert!(writer.is_stalled());

        let Finished {
            accounts, result, ..
        } = writer.finish(&seen(count));
        result.expect_err("packets were given up at the end");
        let (numbers, reader, ended) = disk.read();
        ended.unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert!(numbers.len() > 5000 && is_ascending(&numbers));
        let logged: u64 = accounts
            .iter()
            .map(|account| account.written.logged())
            .sum();
        assert_eq!(numbers.len() as u64, logged, "{options:?}");
        for account in &accounts {
            assert_eq!(account.difference(), 0, "{}", account.sentence());
        }
        if options.format == Format::Pcapng {
            let reader = reader.expect("it opened");
            for (counters, account) in reader.counters().iter().zip(&accounts) {
                let counters = counters
                    .as_ref()
                    .expect("the end has room that was given back");
                assert!(
                    counters.comments[0].ends_with(&account.sentence()),
                    "{} is not {}",
                    counters.comments[0],
                    account.sentence()
                );
            }
        }
    }
}

#[test]
fn writing_continues_when_the_disk_has_room_again() {
    for options in all_kinds() {
        let disk = SmallDisk::new(50_000);
        let sink = Box::new(disk.clone());
        let mut writer =
            Writer::to_sink(sink, "disk", &options, &Section::default(), &interfaces())
                .expect("room for the head");
        let mut errors = 0;
        for number in 0..300_000u64 {
            let noise = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            errors += u32::from(writer.write(&packet(number, &noise)).is_err());
            if number == 200_000 {
                assert!(writer.is_stalled(), "{options:?}");
                disk.set_room(usize::MAX);
                writer.tick(number, &seen(number)).expect("room again");
                assert!(!writer.is_stalled());
            }
        }
        assert_eq!(errors, 1, "{options:?}");
        let Finished {
            accounts, result, ..
        } = writer.finish(&seen(300_000));
        result.expect("room again");
        let (numbers, _, ended) = disk.read();
        ended.unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert!(is_ascending(&numbers), "{options:?}: no packet twice");
        assert_eq!(numbers.last(), Some(&299_999));
        let unwritten: u64 = accounts
            .iter()
            .map(|account| account.written.unwritten)
            .sum();
        assert!(unwritten > 0);
        assert_eq!(numbers.len() as u64 + unwritten, 300_000);
    }
}

/// Runs a test of this file again in a child process.
fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", test, "--nocapture", "--ignored"])
        .env(CHILD, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

fn child_path() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

#[test]
#[ignore = "the process that killed_writers_leave_all_packets_of_the_last_tick kills"]
fn write_until_killed() {
    let Some(path) = child_path() else { return };
    let options = WriterOptions::of_name(&path);
    let mut writer = Writer::create(&path, &options, &Section::default(), &interfaces())
        .expect("a file in a directory");
    for number in 0u64.. {
        let bytes = number.to_be_bytes().repeat(8);
        writer.write(&packet(number, &bytes)).expect("room");
        if number % 5000 == 4999 {
            writer.tick(number, &seen(number + 1)).expect("room");
            println!("ticked {}", number + 1);
        }
    }
}

#[test]
fn killed_writers_leave_all_packets_of_the_last_tick() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in [
        "t.pcapng",
        "t.pcap",
        "t.pcapng.gz",
        "t.pcapng.zst",
        "t.pcapng.lz4",
    ] {
        let path = directory.path().join(name);
        let mut writing = child("write_until_killed", &path)
            .spawn()
            .expect("a process");
        let mut ticked = 0;
        let mut lines = BufReader::new(writing.stdout.take().expect("a pipe")).lines();
        while ticked < 50_000 {
            let line = lines.next().expect("it goes on").expect("text");
            if let Some(number) = line.strip_prefix("ticked ") {
                ticked = number.parse().expect("a number");
            }
        }
        writing.kill().expect("it lives");
        writing.wait().expect("it ends");
        let (numbers, _, ended) = read(&path);
        assert!(
            numbers.len() >= ticked,
            "{name}: {} of {ticked}",
            numbers.len()
        );
        assert!(
            numbers.iter().copied().eq(0..numbers.len() as u64),
            "{name}"
        );
        match ended {
            Ok(()) => tshark_reads(&path, numbers.len(), false),
            // The kernel may cut the very last write short.
            Err(TraceError::Truncated { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

#[test]
#[ignore = "the process that a_full_tmpfs_holds_what_it_took puts on a small tmpfs"]
fn write_to_full_tmpfs() {
    let Some(directory) = child_path() else {
        return;
    };
    for name in [
        "t.pcapng",
        "t.pcap",
        "t.pcapng.gz",
        "t.pcapng.zst",
        "t.pcapng.lz4",
    ] {
        let path = directory.join(name);
        let options = WriterOptions::of_name(&path);
        let mut writer = Writer::create(&path, &options, &Section::default(), &interfaces())
            .expect("room for the head");
        let mut messages = Vec::new();
        for number in 0..100_000u64 {
            let bytes: Vec<u8> = (0..20u64)
                .flat_map(|at| {
                    (number * 20 + at)
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        .to_be_bytes()
                })
                .collect();
            messages.extend(
                writer
                    .write(&packet(number, &bytes))
                    .err()
                    .map(|e| e.to_string()),
            );
        }
        assert_eq!(messages.len(), 1, "{name}: {messages:?}");
        assert!(
            messages[0].contains("No space left on device"),
            "{messages:?}"
        );
        let Finished {
            accounts, result, ..
        } = writer.finish(&seen(100_000));
        assert!(result.is_err());
        let (numbers, reader, ended) = read(&path);
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        let logged: u64 = accounts
            .iter()
            .map(|account| account.written.logged())
            .sum();
        assert_eq!(numbers.len() as u64, logged);
        assert!(logged > 1000 && is_ascending(&numbers));
        tshark_reads(&path, numbers.len(), true);
        if options.format == Format::Pcapng {
            let counters = reader.expect("it opened").counters()[1].clone();
            let comments = counters.expect("statistics at the end").comments;
            assert!(
                comments[0].ends_with(&accounts[1].sentence()),
                "{comments:?}"
            );
        }
        std::fs::remove_file(&path).expect("it is there");
    }
    println!("all hold");
}

#[test]
fn a_full_tmpfs_holds_what_it_took() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to mount a tmpfs");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let again = child("write_to_full_tmpfs", directory.path());
    // In a mount namespace of its own, so that nothing stays.
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg(r#"mount -t tmpfs -o size=2M tmpfs "$PARSHALL_TRACE_CHILD" && exec "$@""#)
        .args(["sh".as_ref(), again.get_program()])
        .args(again.get_args())
        .env(CHILD, directory.path())
        .output()
        .expect("unshare of util-linux");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("all hold"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_reader_of_a_pipe_gets_every_packet_at_once_and_may_leave() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    // Opening a pipe waits for the other side.
    let (sender, receiver) = std::sync::mpsc::channel();
    let reading = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut reader = Reader::open(&path).expect("a head");
            for _ in 0..100 {
                let packet = reader.next().expect("good").expect("a packet");
                sender.send(packet.time_ns).expect("a receiver");
            }
        }
    });
    let options = WriterOptions::default();
    let mut writer = Writer::create(&path, &options, &Section::default(), &interfaces())
        .expect("a reader is there");
    for number in 0..100 {
        writer.write(&packet(number, &[0; 60])).expect("read");
        writer.caught_up().expect("read");
        let patience = std::time::Duration::from_secs(20);
        assert_eq!(receiver.recv_timeout(patience), Ok(number));
    }
    reading.join().expect("it ended well");
    writer
        .write(&packet(100, &[0; 60]))
        .expect("it waits in the buffer");
    let error = writer.caught_up().expect_err("the reader has left");
    assert!(error.is_reader_gone(), "{error}");
    for number in 101..100_000 {
        writer
            .write(&packet(number, &[0; 60]))
            .expect("one error is enough");
    }
    let Finished {
        accounts, result, ..
    } = writer.finish(&seen(100_000));
    assert!(result.expect_err("the reader has left").is_reader_gone());
    let unwritten: u64 = accounts
        .iter()
        .map(|account| account.written.unwritten)
        .sum();
    assert_eq!(unwritten, 100_000 - 100);
    for account in &accounts {
        assert_eq!(account.difference(), 0, "{}", account.sentence());
    }
}

#[test]
fn the_error_names_a_file_that_cannot_be_created() {
    let path = Path::new("/proc/nothing/t.pcapng");
    let error = Writer::create(path, &WriterOptions::default(), &Section::default(), &[])
        .err()
        .expect("no such directory")
        .to_string();
    assert!(
        error.starts_with("/proc/nothing/t.pcapng: cannot be written"),
        "{error}"
    );
}

#[test]
fn standard_output_carries_a_capture() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut writing = child("write_to_stdout", directory.path())
        .spawn()
        .expect("a process");
    let mut bytes = Vec::new();
    let mut stdout = writing.stdout.take().expect("a pipe");
    stdout.read_to_end(&mut bytes).expect("readable");
    assert!(writing.wait().expect("it ends").success());
    // The test harness writes to standard output, too: before and behind.
    let start = bytes
        .windows(4)
        .position(|four| four == [0x0a, 0x0d, 0x0d, 0x0a]);
    let path = directory.path().join("t.pcapng");
    std::fs::write(&path, &bytes[start.expect("a section header")..]).expect("room");
    let (numbers, _, _) = read(&path);
    assert!(numbers.iter().copied().eq(0..1000));
}

#[test]
#[ignore = "the process whose output standard_output_carries_a_capture reads"]
fn write_to_stdout() {
    if child_path().is_none() {
        return;
    }
    let (options, section) = (WriterOptions::default(), Section::default());
    let mut writer = Writer::create(Path::new("-"), &options, &section, &interfaces())
        .expect("standard output is open");
    for number in 0..1000 {
        writer.write(&packet(number, &[0; 60])).expect("read");
    }
    writer.finish(&seen(1000)).result.expect("read");
}
