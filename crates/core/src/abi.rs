//! The Rust mirror of `bpf/abi.h`: records as they lie in the ring.
//!
//! This file holds layouts only. A test of the kernel crate compares every size and offset with the BTF of
//! the compiled eBPF objects, so this file cannot drift from the header.

/// Bytes of a lane before its data.
pub const LANE_HEADER_BYTES: usize = 4096;
/// Bytes behind a lane's data for the end of its last record, in rings of small records.
pub const LANE_SLACK_BYTES: usize = 4096;
/// Number of equal parts of a lane; the lane header has the position of each part's first record.
pub const LANE_INDEX_SLOTS: usize = 64;
/// Alignment and granularity of records.
pub const RECORD_ALIGN_BYTES: usize = 8;

/// `record_header.kind` of a [`TcpStateRecord`].
pub const RECORD_TCP_STATE: u16 = 1;
/// `record_header.kind` of a [`TcpFlowRecord`].
pub const RECORD_TCP_FLOW: u16 = 2;
/// `record_header.kind` of a [`TcpFlowEndRecord`].
pub const RECORD_TCP_FLOW_END: u16 = 3;
/// `record_header.kind` of a [`CaptureRecord`] and the packet behind it.
pub const RECORD_PACKET: u16 = 4;

/// Maximum number of subscribers of one capture ring.
pub const CAPTURE_SUBSCRIBERS_MAX: usize = 64;
/// Maximum bytes of a packet in a capture ring.
pub const CAPTURE_SNAPLEN_MAX: u32 = 262_144;
/// Slack of a capture ring's lanes.
pub const CAPTURE_SLACK_BYTES: usize = CAPTURE_SNAPLEN_MAX as usize + 4096;
/// The copying program's slot in the jump table of a generated program.
pub const CAPTURE_JUMP_COPY: u32 = 0;

/// Maximum number of readers of one ring.
pub const RING_READERS_MAX: usize = 64;
/// Lanes of the TCP instrument's packet ring for each CPU, see `enum tcp_lane`.
pub const TCP_LANES_PER_CPU: usize = 2;
/// Maximum number of hosts in a filter.
pub const FILTER_HOSTS_MAX: usize = 16;
/// Maximum number of ports in a filter.
pub const FILTER_PORTS_MAX: usize = 16;
/// Maximum number of processes in a filter.
pub const FILTER_PIDS_MAX: usize = 16;

/// Number of hooks of the TCP instrument.
pub const TCP_HOOK_COUNT: usize = 6;

/// `tcp_state_record.direction`: into this host.
pub const DIRECTION_IN: u8 = 0;
/// `tcp_state_record.direction`: out of this host.
pub const DIRECTION_OUT: u8 = 1;
/// `tcp_state_record.direction`: the event is not a packet.
pub const DIRECTION_NONE: u8 = 2;

/// `tcp_state_record.event`: a packet passed.
pub const EVENT_PACKET: u8 = 0;
/// `tcp_state_record.event`: the stack retransmitted a segment.
pub const EVENT_RETRANSMIT: u8 = 1;
/// `tcp_state_record.event`: the congestion state changed.
pub const EVENT_CONGESTION_STATE: u8 = 2;
/// `tcp_state_record.event`: the connection is about to become CLOSED.
pub const EVENT_CLOSE: u8 = 3;

/// `tcp_flow_record.flags`: addresses are IPv6.
pub const FLOW_IS_IPV6: u32 = 1;
/// `tcp_flow_record.flags`: the connection is older than the log.
pub const FLOW_BEGAN_BEFORE: u32 = 2;
/// `tcp_flow_record.flags`: a passive open: accept(2), not connect(2).
pub const FLOW_PASSIVE: u32 = 4;
/// `tcp_flow_record.flags`: SACK was negotiated.
pub const FLOW_SACK: u32 = 8;
/// `tcp_flow_record.flags`: timestamps were negotiated.
pub const FLOW_TIMESTAMPS: u32 = 16;
/// `tcp_flow_record.flags`: ECN was negotiated.
pub const FLOW_ECN: u32 = 32;
/// `tcp_flow_record.flags`: window scaling was negotiated.
pub const FLOW_WINDOW_SCALING: u32 = 64;
/// `tcp_flow_end_record.flags`: the socket was destroyed; otherwise it outlived the log.
pub const FLOW_END_DESTROYED: u32 = 1;

/// 8-byte words of a `flow_header`.
pub const HEADER_WORDS_MAX: usize = 10;
/// Bytes of a `frame_image`.
pub const FRAME_IMAGE_BYTES: usize = 4096;
/// Replayed trace: bytes of a block in which frames may begin.
pub const TRACE_BLOCK_BYTES: usize = 1 << 20;
/// Replayed trace: bytes behind a block in which its last frame may end.
pub const TRACE_SLACK_BYTES: usize = 4096;
/// `generate_options.transport`: no transport header.
pub const TRANSPORT_NONE: u32 = 0;
/// `generate_options.transport`: UDP.
pub const TRANSPORT_UDP: u32 = 1;
/// `generate_options.transport`: TCP.
pub const TRANSPORT_TCP: u32 = 2;

/// No slot in the plan, or a frame too short for a header. See `enum generate_failure`.
pub const GENERATE_FAILURE_PLACE: u64 = 1;
/// No such flow, or no such frame in the trace.
pub const GENERATE_FAILURE_CONTENT: u64 = 2;
/// The frame cannot be cut to the packet's length.
pub const GENERATE_FAILURE_CUT: u64 = 3;
/// The interface was removed.
pub const GENERATE_FAILURE_INTERFACE: u64 = 4;

/// A value such as `min_rtt_us` without a sample.
pub const NO_SAMPLE: u32 = u32::MAX;
/// Linux's initial slow start threshold (`TCP_INFINITE_SSTHRESH`).
pub const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;

/// Types that may be read from any properly sized and aligned bytes.
///
/// # Safety
/// The type is `repr(C)`, has no padding that is not a named field, and every bit pattern of it is
/// a valid value.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($(#[$doc:meta])* struct $name:ident = $size:literal { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, non_snake_case)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size);

        impl $name {
            /// Name, offset and size of every field, to compare with the header.
            pub const FIELDS: &'static [(&'static str, usize, usize)] = &[
                $((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()),)*
            ];
        }

        // SAFETY: repr(C) of integers and arrays of integers only; the size assertion together
        // with the field-by-field comparison in the tests leaves no implicit padding.
        unsafe impl Plain for $name {}
    )*

        /// Name, size and fields of every structure, to compare with the header.
        pub const MIRRORS: &[(&str, usize, &[(&str, usize, usize)])] =
            &[$((stringify!($name), size_of::<$name>(), $name::FIELDS),)*];
    };
}

plain! {
    /// See `struct record_header`.
    struct RecordHeader = 24 {
        stamp: u64,
        lane_seq: u64,
        length_bytes: u32,
        kind: u16,
        hook: u16,
    }
    /// See `struct hook_counters`.
    struct HookCounters = 64 {
        seen: u64,
        filtered: u64,
        due: u64,
        dropped: u64,
        unowned: u64,
        failed: u64,
        pad: [u64; 2],
    }
    /// See `struct ring_layout`.
    struct RingLayout = 48 {
        size_bytes: u64,
        part_shift: u64,
        secret: u64,
        wait_for_readers: u64,
        slack_bytes: u64,
        writers_alone: u64,
    }
    /// See `struct reader_time`.
    struct ReaderTime = 24 {
        thread: u32,
        pad: u32,
        softirq_from_ns: u64,
        softirq_ns: u64,
    }
    /// See `struct tcp_options`.
    struct TcpOptions = 544 {
        inbound_layout: RingLayout,
        packet_layout: RingLayout,
        flow_layout: RingLayout,
        cgroup_id: u64,
        handshake_silence_ns: u64,
        hosts: [[u64; 2]; FILTER_HOSTS_MAX],
        ports: [u16; FILTER_PORTS_MAX],
        host_count: u32,
        port_count: u32,
        packets_per_log: u32,
        on_change: u32,
        outbound_only: u32,
        netns_inode: u32,
        pids: [u32; FILTER_PIDS_MAX],
        pid_count: u32,
        unused: u32,
    }
    /// See `struct tcp_state_record`.
    struct TcpStateRecord = 176 {
        header: RecordHeader,
        time_ns: u64,
        flow_seq: u64,
        pacing_rate_Bps: u64,
        flow: u32,
        cwnd_segments: u32,
        ssthresh_segments: u32,
        mss_bytes: u32,
        srtt_us_x8: u32,
        mdev_us_x4: u32,
        min_rtt_us: u32,
        rto_jiffies: u32,
        snd_una: u32,
        snd_nxt: u32,
        snd_wnd_bytes: u32,
        rcv_nxt: u32,
        rcv_wnd_bytes: u32,
        packets_out: u32,
        retrans_out: u32,
        lost_out: u32,
        sacked_out: u32,
        total_retrans: u32,
        rate_delivered: u32,
        rate_interval_us: u32,
        delivered: u32,
        delivered_ce: u32,
        sndbuf_bytes: u32,
        sndbuf_used_bytes: u32,
        rcvbuf_bytes: u32,
        rcvbuf_used_bytes: u32,
        pkt_seq: u32,
        pkt_ack: u32,
        payload_bytes: u32,
        gso_segs: u16,
        pkt_flags: u16,
        direction: u8,
        event: u8,
        state: u8,
        ca_state: u8,
        window_scales: u8,
        app_limited: u8,
        pad: [u8; 2],
    }
    /// See `struct tcp_flow_record`.
    struct TcpFlowRecord = 152 {
        header: RecordHeader,
        time_ns: u64,
        socket_cookie: u64,
        cgroup_id: u64,
        netns_cookie: u64,
        flow: u32,
        netns_inode: u32,
        flags: u32,
        pid: u32,
        uid: u32,
        mss_clamp_bytes: u32,
        advmss_bytes: u32,
        local_port: u16,
        remote_port: u16,
        local_address: [u8; 16],
        remote_address: [u8; 16],
        congestion_control: [u8; 16],
        command: [u8; 16],
    }
    /// See `struct planned_packet`.
    struct PlannedPacket = 16 {
        time_ns: u64,
        flow: u16,
        ip_bytes: u16,
        ip_checksum: u16,
        transport_checksum: u16,
    }
    /// See `struct flow_header`.
    struct FlowHeader = 80 {
        words: [u64; HEADER_WORDS_MAX],
    }
    /// See `struct generate_options`.
    struct GenerateOptions = 64 {
        plan_mask: u32,
        buffer_bytes: u32,
        written_bytes: u32,
        header_words: u32,
        ip_offset: u32,
        transport_offset: u32,
        payload_offset: u32,
        frame_bytes_min: u32,
        transport: u32,
        is_ipv6: u32,
        is_stamped: u32,
        is_paced: u32,
        is_replay: u32,
        batch_runs: u32,
        first_sequence: u32,
        sequence_step: u32,
    }
    /// See `struct generate_state`.
    struct GenerateState = 128 {
        drawn: u64,
        end: u64,
        stop: u64,
        start_ns: u64,
        pad_user: [u64; 4],
        taken: u64,
        next: u64,
        waited: u64,
        starved: u64,
        failure: u64,
        first_sent_ns: u64,
        batch_ns: u32,
        run: u32,
        replayed: u64,
    }
    /// See `struct edge_options`.
    struct EdgeOptions = 24 {
        capacity: u32,
        port: u32,
        is_recording: u32,
        is_discarding: u32,
        link_bytes: u32,
        pad: u32,
    }
    /// See `struct edge_time`.
    struct EdgeTime = 16 {
        time_ns: u64,
        bytes: u32,
        pad: u32,
    }
    /// See `struct edge_account`.
    struct EdgeAccount = 48 {
        packets: u64,
        bytes: u64,
        recorded: u64,
        duplicates: u64,
        beyond: u64,
        other: u64,
    }
    /// See `struct tcp_flow_end_record`.
    struct TcpFlowEndRecord = 88 {
        header: RecordHeader,
        time_ns: u64,
        packets_seen: u64,
        packets_filtered: u64,
        packets_thinned: u64,
        packets_dropped: u64,
        events_seen: u64,
        events_dropped: u64,
        flow: u32,
        flags: u32,
    }
    /// See `struct capture_verdict`.
    struct CaptureVerdict = 24 {
        seen: u64,
        subscribers: u64,
        snaplen: u32,
        pad: u32,
    }
    /// See `struct capture_options`.
    struct CaptureOptions = 56 {
        layout: RingLayout,
        hook: u16,
        interface: u16,
        direction: u16,
        discard: u16,
    }
    /// See `struct capture_record`.
    struct CaptureRecord = 56 {
        header: RecordHeader,
        time_ns: u64,
        subscribers: u64,
        wire_length_bytes: u32,
        captured_length_bytes: u32,
        gso_segs: u16,
        vlan_tci: u16,
        vlan_protocol: u16,
        interface: u8,
        direction: u8,
    }
}

/// See `struct capture_account`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureAccount {
    /// The subscribers of the current run of packets.
    pub run_subscribers: u64,
    /// Packets of this run.
    pub run_records: u64,
    /// Packets that each subscriber's filter matched, without the run.
    pub matched: [u64; CAPTURE_SUBSCRIBERS_MAX],
    /// Of these, packets dropped because the ring was full.
    pub refused: [u64; CAPTURE_SUBSCRIBERS_MAX],
}

// SAFETY: repr(C) of integers and arrays of integers of one size: no padding, every pattern valid.
unsafe impl Plain for CaptureAccount {}

impl CaptureAccount {
    /// Packets that this subscriber's filter matched.
    pub fn matched_by(&self, subscriber: usize) -> u64 {
        let in_run = self.run_subscribers >> subscriber & 1;
        self.matched[subscriber] + in_run * self.run_records
    }
}

/// Reads a value from bytes that may be unaligned.
///
/// Returns `None` if the input is shorter than the type.
pub fn read_plain<T: Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: the length was checked, `read_unaligned` needs no alignment, and `Plain` promises
    // that every bit pattern is a value.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Views the value at the start of aligned words, without a copy.
///
/// Returns `None` if the input is shorter than the type.
pub fn view_plain<T: Plain>(words: &[u64]) -> Option<&T> {
    view_plain_slice(words).first()
}

/// Views aligned words as consecutive values, without a copy.
pub fn view_plain_slice<T: Plain>(words: &[u64]) -> &[T] {
    const { assert!(align_of::<T>() <= align_of::<u64>() && size_of::<T>() > 0) };
    let count = size_of_val(words) / size_of::<T>();
    // SAFETY: as in `view_plain`; `count` values lie within `words`.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<T>(), count) }
}

/// Views words as bytes.
pub fn bytes_of_words(words: &[u64]) -> &[u8] {
    // SAFETY: bytes need no alignment, every byte of a word is initialised, and the size is that of `words`.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Views a value as bytes.
pub fn plain_bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` promises no padding, so every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
