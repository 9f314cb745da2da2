//! The Rust mirror of `bpf/abi.h`: records as they lie in the ring.
//!
//! This file holds layouts only. A test of the kernel crate compares every size and offset with the BTF of
//! the compiled eBPF objects, so this file cannot drift from the header.

use crate::stage::{PATH_STAGE_COUNT, STAGE_PAD};

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

/// `record_header.kind` of a [`PathRecord`].
pub const RECORD_PATH: u16 = 5;
/// `record_header.kind` of a [`PathReadRecord`].
pub const RECORD_READ: u16 = 6;

/// Number of code paths; see `enum path_code`.
pub const PATH_CODE_COUNT: usize = 10;
/// Maximum instructions of the path instrument's filter.
pub const PATH_FILTER_MAX: usize = 4096;
/// Packets whose head the path instrument reads at once on a CPU.
pub const PATH_HEADS_PER_CPU: usize = 4;
/// Maximum interfaces of the path instrument's filter.
pub const PATH_INTERFACES_MAX: usize = 16;
/// Buckets of a histogram of times.
pub const PATH_BUCKETS: usize = 256;
/// Code paths that have a [`PathWait`] for each bucket of the whole.
pub const PATH_WAIT_CODES: usize = 4;
/// Kinds of noise; see `enum path_noise`.
pub const NOISE_COUNT: usize = 14;
/// Times of a read; see `enum path_read_time`.
pub const READ_TIME_COUNT: usize = 4;
/// Drop reasons that are counted at most.
pub const PATH_REASONS_MAX: usize = 256;

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
/// `tcp_state_record.event`: the peer reports bytes that it got more than once.
pub const EVENT_DSACK: u8 = 4;

/// `tcp_state_record.loss_state`: mask of `icsk_pending`.
pub const LOSS_STATE_TIMER: u8 = 0x07;
/// `tcp_state_record.loss_state`: `undo_marker` is set.
pub const LOSS_STATE_CAN_UNDO: u8 = 0x08;
/// `tcp_state_record.loss_state`: reordering was detected on the connection.
pub const LOSS_STATE_REORDERED: u8 = 0x10;
/// `tcp_state_record.loss_state`: the last ACK echoes a time stamp from before the first retransmission.
pub const LOSS_STATE_ORIGINAL: u8 = 0x20;
/// `tcp_state_record.loss_state`: it was recorded.
pub const LOSS_STATE_KNOWN: u8 = 0x80;

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
pub const FLOW_END_DESTROYED: u16 = 1;
/// `tcp_flow_end_record.ending`: the connection has not ended. See `enum tcp_ending`.
pub const ENDING_OPEN: u8 = 1;
/// `tcp_flow_end_record.closing`: this host sent a FIN.
pub const CLOSING_FIN_SENT: u8 = 1;
/// `tcp_flow_end_record.closing`: the peer sent a FIN.
pub const CLOSING_FIN_RECEIVED: u8 = 2;
/// `tcp_flow_end_record.closing`: this host sent a reset.
pub const CLOSING_RST_SENT: u8 = 4;
/// `tcp_flow_end_record.closing`: the peer sent a reset.
pub const CLOSING_RST_RECEIVED: u8 = 8;

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

// SAFETY: an integer.
unsafe impl Plain for u64 {}

macro_rules! plain {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, non_snake_case)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }

        const _: () = assert!(
            size_of::<$name>() == 0 $(+ size_of::<$type>())*,
            concat!(stringify!($name), " has padding that is not a field")
        );

        impl Default for $name {
            /// All zero.
            fn default() -> Self {
                // SAFETY: every bit pattern is a valid value.
                unsafe { std::mem::zeroed() }
            }
        }

        impl $name {
            /// Name, offset and size of every field, to compare with the header.
            pub const FIELDS: &'static [(&'static str, usize, usize)] = &[
                $((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()),)*
            ];
        }

        // SAFETY: repr(C) of integers and arrays of integers only; the size is that of the fields.
        unsafe impl Plain for $name {}
    )*

        /// Name, size and fields of every structure, to compare with the header.
        pub const MIRRORS: &[(&str, usize, &[(&str, usize, usize)])] =
            &[$((stringify!($name), size_of::<$name>(), $name::FIELDS),)*];
    };
}

plain! {
    /// See `struct record_header`.
    struct RecordHeader {
        stamp: u64,
        lane_seq: u64,
        length_bytes: u32,
        kind: u16,
        hook: u16,
    }
    /// See `struct lane_header`.
    struct LaneHeader {
        reserved_bytes: u64,
        committed_bytes: u64,
        quiet_bytes: u64,
        records: u64,
        dropped_records: u64,
        pad: [u64; 3],
        boundary: [u64; LANE_INDEX_SLOTS],
    }
    /// See `struct lane_readers`.
    struct LaneReaders {
        active: u64,
        position_bytes: [u64; RING_READERS_MAX],
    }
    /// See `struct hook_counters`.
    struct HookCounters {
        seen: u64,
        filtered: u64,
        due: u64,
        dropped: u64,
        unowned: u64,
        failed: u64,
        pad: [u64; 2],
    }
    /// See `struct ring_layout`.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct RingLayout {
        size_bytes: u64,
        part_shift: u64,
        secret: u64,
        wait_for_readers: u64,
        slack_bytes: u64,
        writers_alone: u64,
    }
    /// See `struct reader_time`.
    struct ReaderTime {
        thread: u32,
        pad: u32,
        softirq_from_ns: u64,
        softirq_ns: u64,
    }
    /// See `struct tcp_options`.
    struct TcpOptions {
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
        pid_namespace: u32,
        adapts: u32,
        pad: u32,
    }
    /// See `struct tcp_control`.
    struct TcpControl {
        enabled: u32,
        packets_per_log: u32,
    }
    /// See `struct tcp_state_record`.
    struct TcpStateRecord {
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
        loss_state: u8,
        dupthresh_segments: u8,
    }
    /// See `struct tcp_flow_record`.
    struct TcpFlowRecord {
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
        mptcp_token: u32,
        pad: u32,
    }
    /// See `struct tcp_listener`.
    struct TcpListener {
        syns_refused: u64,
        acks_refused: u64,
        first_refused_ns: u64,
        last_refused_ns: u64,
        socket_cookie: u64,
        cgroup_id: u64,
        netns_cookie: u64,
        local_address: [u8; 16],
        listener: u32,
        netns_inode: u32,
        pid: u32,
        backlog: u32,
        queue_last: u32,
        queue_longest: u32,
        local_port: u16,
        is_ipv6: u8,
        has_ended: u8,
        command: [u8; 16],
        pad: u32,
    }
    /// See `struct flow_state`. A union has the name of its first member.
    struct FlowState {
        packets_seen: u64,
        packets_due: u64,
        packets_dropped: u64,
        congestion_ops: u64,
        flow: u32,
        marks: u32,
        has_ended: u32,
        syn_seq: u32,
        last_cwnd_segments: u32,
        last_ssthresh_segments: u32,
        events_seen: u64,
        events_dropped: u64,
        bytes_acked: u64,
        bytes_received: u64,
        bytes_acked_before: u64,
        bytes_received_before: u64,
        has_closed: u32,
        is_summed_up: u32,
        retransmits_seen: u32,
        retransmits_failed: u32,
        retransmits_refused: u32,
        total_retrans: u32,
        total_retrans_before: u32,
        ending: u8,
        closing: u8,
        unused: u16,
    }
    /// See `struct planned_packet`.
    struct PlannedPacket {
        time_ns: u64,
        flow: u16,
        ip_bytes: u16,
        ip_checksum: u16,
        transport_checksum: u16,
    }
    /// See `struct flow_header`.
    struct FlowHeader {
        words: [u64; HEADER_WORDS_MAX],
    }
    /// See `struct generate_options`.
    struct GenerateOptions {
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
    struct GenerateState {
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
    struct EdgeOptions {
        capacity: u32,
        port: u32,
        is_recording: u32,
        is_discarding: u32,
        link_bytes: u32,
        pad: u32,
    }
    /// See `struct edge_time`.
    struct EdgeTime {
        time_ns: u64,
        bytes: u32,
        pad: u32,
    }
    /// See `struct edge_account`.
    struct EdgeAccount {
        packets: u64,
        bytes: u64,
        recorded: u64,
        duplicates: u64,
        beyond: u64,
        other: u64,
        first_timed_ns: u64,
        last_timed_ns: u64,
        timed: u64,
    }
    /// See `struct tcp_flow_end_record`.
    struct TcpFlowEndRecord {
        header: RecordHeader,
        time_ns: u64,
        packets_seen: u64,
        packets_filtered: u64,
        packets_thinned: u64,
        packets_dropped: u64,
        events_seen: u64,
        events_dropped: u64,
        flow: u32,
        flags: u16,
        ending: u8,
        closing: u8,
        retransmits_total: u32,
        retransmits_seen: u32,
        retransmits_failed: u32,
        retransmits_refused: u32,
        bytes_acked: u64,
        bytes_received: u64,
    }
    /// See `struct capture_verdict`.
    struct CaptureVerdict {
        seen: u64,
        subscribers: u64,
        snaplen: u32,
        unfiltered_snaplen: u32,
    }
    /// See `struct capture_options`.
    struct CaptureOptions {
        layout: RingLayout,
        hook: u16,
        interface: u16,
        direction: u16,
        discard: u16,
    }
    /// See `struct capture_record`.
    struct CaptureRecord {
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
    /// See `struct path_options`.
    struct PathOptions {
        layout: RingLayout,
        cgroup_id: u64,
        interfaces: [u32; PATH_INTERFACES_MAX],
        interface_count: u32,
        netns_inode: u32,
        every: u32,
        filter_length: u32,
        stages: u32,
        table_bits: u32,
        writes_records: u32,
        group: u32,
        groups_max: u32,
        reads_headers: u32,
        follows_readers: u32,
        delivered_reasons: [u16; 3],
        refused_reason: u16,
        queue_reasons: [u16; 2],
    }
    /// See `struct path_identity`.
    struct PathIdentity {
        socket_cookie: u64,
        cgroup_id: u64,
        netns_inode: u32,
        interface: u32,
        length_bytes: u32,
        tcp_seq: u32,
        tcp_ack: u32,
        payload_bytes: u32,
        poll: u32,
        poll_index: u16,
        gso_segs: u16,
        source_port: u16,
        destination_port: u16,
        ip_id: u16,
        ip_version: u8,
        protocol: u8,
        tcp_flags: u16,
        ethernet_protocol: u16,
        in_cgroup: u32,
        source: [u8; 16],
        destination: [u8; 16],
    }
    /// See `struct path_record`.
    struct PathRecord {
        header: RecordHeader,
        time_ns: u64,
        offset_ns: [u32; STAGE_PAD.next_multiple_of(2)],
        seen: u32,
        stolen_ns: u32,
        interface_out: u32,
        reason: u32,
        first_cpu: u16,
        last_cpu: u16,
        code: u8,
        first_stage: u8,
        last_stage: u8,
        pad: u8,
        identity: PathIdentity,
    }
    /// See `struct path_read_record`.
    struct PathReadRecord {
        header: RecordHeader,
        time_ns: u64,
        ready_ns: u64,
        waking_ns: u64,
        running_ns: u64,
        socket_cookie: u64,
        bytes: u32,
        pid: u32,
        command: [u8; 16],
    }
    /// See `struct path_key`.
    struct PathKey {
        source: [u8; 16],
        destination: [u8; 16],
        source_port: u16,
        destination_port: u16,
        protocol: u32,
        number: u64,
        netns_inode: u32,
        code: u32,
    }
    /// See `struct path_account`.
    struct PathAccount {
        seen: u64,
        filtered: u64,
        thinned: u64,
        failed: u64,
        ended: [u64; PATH_CODE_COUNT],
        dropped: u64,
        ungrouped: u64,
        reads: u64,
        reads_dropped: u64,
        uncounted_drops: u64,
        without_histogram: u64,
        pad: [u64; 4],
    }
    /// See `struct path_histogram`.
    struct PathHistogram {
        /// Packets that ended.
        packets: u64,
        /// Sum of each stage's times.
        sum_ns: [u64; PATH_STAGE_COUNT],
        /// The longest time of each stage.
        max_ns: [u32; PATH_STAGE_COUNT.next_multiple_of(2)],
        /// Times of each stage, by bucket.
        counts: [[u32; PATH_BUCKETS]; PATH_STAGE_COUNT],
    }
    /// See `struct path_wait`.
    struct PathWait {
        /// Packets.
        packets: u64,
        /// Sum of each stage's times; that of [`STAGE_PAD`] is of the whole.
        sum_ns: [u64; PATH_STAGE_COUNT],
    }
    /// See `struct path_noise_histogram`.
    struct PathNoiseHistogram {
        /// Events.
        events: u64,
        /// Sum of their times.
        sum_ns: u64,
        /// The longest.
        max_ns: u64,
        /// Sum of the gaps between their starts.
        sum_gap_ns: u64,
        /// Sum of the squares of these, us^2.
        sum_gap_squared_us: u64,
        /// Times, by bucket.
        counts: [u32; PATH_BUCKETS],
    }
    /// See `struct path_drops`.
    struct PathDrops {
        /// Packets that the kernel dropped for this reason.
        all: u64,
        /// Of these, packets that were followed, by the last stage before.
        followed: [u64; PATH_STAGE_COUNT],
    }
    /// See `struct capture_account`.
    struct CaptureAccount {
        /// The subscribers of the current run of packets.
        run_subscribers: u64,
        /// Packets of this run.
        run_records: u64,
        /// Packets that each subscriber's filter matched, without the run.
        matched: [u64; CAPTURE_SUBSCRIBERS_MAX],
        /// Of these, packets dropped because the ring was full.
        dropped: [u64; CAPTURE_SUBSCRIBERS_MAX],
    }
}

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
