//! The host and the program that made a capture file.

/// The environment of a capture, for the section header of pcapng; classic pcap does not have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// Processor and machine.
    pub hardware: Option<String>,
    /// Kernel and distribution.
    pub os: Option<String>,
    /// Program and version.
    pub application: Option<String>,
    /// Remarks; Parshall puts its environment here as a JSON object. Each at most 65,535 bytes.
    pub comments: Vec<String>,
}
