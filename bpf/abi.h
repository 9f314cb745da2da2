/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Everything that crosses from kernel to user space, and nothing else.
 *
 * This is the only definition. The Rust mirror (crates/core/src/abi.rs) is held against the
 * BTF of the compiled objects by a test, field by field, so neither side can drift.
 *
 * Conventions: units stand in names; padding is explicit and zero; integers are in host byte
 * order, addresses are 16 bytes in network byte order (IPv4 as ::ffff:a.b.c.d).
 */
#ifndef PARSHALL_ABI_H
#define PARSHALL_ABI_H

#include <linux/types.h>

/* Padding is an error: it would cross with whatever was there before. */
#pragma clang diagnostic push
#pragma clang diagnostic error "-Wpadded"

#define PARSHALL_ABI_VERSION 1

/*
 * A ring is one array map with BPF_F_MMAPABLE; element n is the lane of CPU n.
 *
 *   lane:  | struct lane_header | data[size_bytes] | slack_bytes |
 *
 * Positions count bytes since the ring was made and never wrap in practice (64 bit); the byte at
 * position p lies at data[p & (size_bytes - 1)]. A record starts below size_bytes and may run into
 * the slack, so it is never split and needs no filler.
 */
#define LANE_HEADER_BYTES 4096
#define LANE_SLACK_BYTES 4096      /* of rings whose records are small */
#define LANE_INDEX_SLOTS 64
#define RECORD_ALIGN_BYTES 8
#define RING_READERS_MAX 64

/*
 * The first five are advanced by the writers of this CPU, which may interrupt each other at any
 * instruction and for any time. Below quiet_bytes every record is committed. A writer never
 * reserves more than the data area beyond it: one that was interrupted half-way would otherwise
 * wake up in a record of the next lap. dropped_records counts what was refused, for that reason
 * or by slow-reader preference.
 * boundary[k] is the position of the first record that starts in the k-th part of the lane (the
 * data area cut into LANE_INDEX_SLOTS equal parts): where a reader that was overtaken goes on.
 */
struct lane_header {
	__u64 reserved_bytes;
	__u64 committed_bytes;
	__u64 quiet_bytes;
	__u64 records;
	__u64 dropped_records;
	__u64 pad[3];
	__u64 boundary[LANE_INDEX_SLOTS];
};

/*
 * The header of every record. The stamp is written last: position ^ secret of the ring. A reader
 * accepts a record when its stamp matches its position and the writers have not reserved that space
 * again after the record was copied. The secret keeps bytes from the network from passing for a
 * stamp.
 */
struct record_header {
	__u64 stamp;
	__u64 lane_seq;      /* the lane's count of records before this one */
	__u32 length_bytes;  /* whole record, a multiple of RECORD_ALIGN_BYTES */
	__u16 kind;          /* enum record_kind */
	__u16 hook;          /* enum tcp_hook: where it was written */
};

enum record_kind {
	RECORD_TCP_STATE = 1,
	RECORD_TCP_FLOW = 2,      /* facts of a flow: first sight, and again when one became known */
	RECORD_TCP_FLOW_END = 3,  /* the flow's account, when its socket is destroyed or the log ends */
	RECORD_PACKET = 4,        /* struct capture_record and the packet's bytes */
	RECORD_PATH = 5,          /* struct path_record */
	RECORD_READ = 6,          /* struct path_read_record */
};

enum tcp_hook {
	HOOK_TCP_INGRESS = 0,
	HOOK_TCP_EGRESS = 1,
	HOOK_TCP_RETRANSMIT = 2,
	HOOK_TCP_CONGESTION_STATE = 3,
	HOOK_TCP_CLOSE = 4,
	HOOK_TCP_FLOW = 5,        /* flow facts and flow accounts */
	TCP_HOOK_COUNT = 6,
};

/*
 * Per hook and CPU. Where packets are thinned, seen - filtered - failed - due were thinned out, so
 * that each of these many packets costs one count and each of the few others two. Written records
 * are not counted here: the lanes count them, and the readers compare.
 */
struct hook_counters {
	__u64 seen;
	__u64 filtered;
	__u64 due;       /* not thinned out; 0 where nothing is thinned */
	__u64 dropped;   /* no room: see lane_header */
	__u64 unowned;   /* not TCP, or no connection that we follow: outside "seen" */
	__u64 failed;    /* no memory for a flow's storage: its events cannot be assigned to it */
	__u64 pad[2];
};

/* The readers of one lane; the kernel reads it under slow-reader preference only. */
struct lane_readers {
	__u64 active;                        /* bit r: position_bytes[r] counts */
	__u64 position_bytes[RING_READERS_MAX];
};

/* Constants of one ring; the loader sets them before the verifier sees a program. */
struct ring_layout {
	__u64 size_bytes;        /* data bytes of a lane, a power of two */
	__u64 part_shift;        /* log2 of size_bytes / LANE_INDEX_SLOTS */
	__u64 secret;
	__u64 wait_for_readers;  /* slow-reader preference */
	__u64 slack_bytes;       /* behind the data: no record is longer */
	__u64 writers_alone;     /* no writer of a lane is ever interrupted by another one, see ring.h */
};

/*
 * The packet ring of the TCP instrument has two lanes a CPU: one for inbound packets, whose program
 * runs with bottom halves disabled and so is never interrupted by itself, and one for all that may
 * be. Elements cpu * TCP_LANES_PER_CPU + enum tcp_lane.
 */
enum tcp_lane { TCP_LANE_INBOUND = 0, TCP_LANE_SHARED = 1 };
#define TCP_LANES_PER_CPU 2

#define FILTER_PORTS_MAX 16
#define FILTER_HOSTS_MAX 16
#define FILTER_PIDS_MAX 16

/* Options of the TCP programs; constants once they are loaded. */
struct tcp_options {
	struct ring_layout inbound_layout;     /* of the packet ring's lanes for inbound packets */
	struct ring_layout packet_layout;      /* of its other lanes: the same, but for writers_alone */
	struct ring_layout flow_layout;
	__u64 cgroup_id;                       /* 0: all */
	__u64 handshake_silence_ns;            /* a handshake that is silent for longer has failed */
	__u64 hosts[FILTER_HOSTS_MAX][2];      /* either end is one of these; network byte order */
	__u16 ports[FILTER_PORTS_MAX];         /* either end is one of these */
	__u32 host_count;                      /* 0: all */
	__u32 port_count;                      /* 0: all */
	__u32 packets_per_log;                 /* every n-th packet of a flow */
	__u32 on_change;                       /* when cwnd or ssthresh changed */
	__u32 outbound_only;                   /* no inbound packet is seen, so no SYN at a listener */
	__u32 netns_inode;                     /* only connections of this network namespace; 0: all */
	__u32 pids[FILTER_PIDS_MAX];           /* only sockets of these processes */
	__u32 pid_count;                       /* 0: all */
	__u32 pid_namespace;                   /* inode of the one whose process IDs these are; 0: the first one */
	__u32 adapts;                          /* packets_per_log is that of struct tcp_control */
	__u32 pad;
};

/* What may change while the TCP programs are attached. */
struct tcp_control {
	__u32 enabled;
	__u32 packets_per_log;                 /* a power of two */
};

/* Softirq time charged to the reader's thread, where the kernel charges threads with it. */
struct reader_time {
	__u32 thread;               /* the kernel's number of the reader's thread; 0: none */
	__u32 pad;
	__u64 softirq_from_ns;      /* CLOCK_MONOTONIC; 0: no softirq is running while the reader is on its CPU */
	__u64 softirq_ns;           /* of all that have ended */
};

enum direction { DIRECTION_IN = 0, DIRECTION_OUT = 1, DIRECTION_NONE = 2 };

enum tcp_event {
	EVENT_PACKET = 0,
	EVENT_RETRANSMIT = 1,
	EVENT_CONGESTION_STATE = 2,
	EVENT_CLOSE = 3,
	EVENT_DSACK = 4,            /* the peer reports that it got the bytes pkt_seq, payload_bytes more than once */
};

/*
 * tcp_state_record.loss_state, 0 at packets: bits of it. The timer is icsk_pending, which is 0 (none) while the
 * retransmission timer's handler runs.
 */
#define LOSS_STATE_TIMER 0x07        /* mask */
#define LOSS_STATE_CAN_UNDO 0x08     /* undo_marker is set */
#define LOSS_STATE_REORDERED 0x10    /* reord_seen: reordering was detected on this connection */
#define LOSS_STATE_ORIGINAL 0x20     /* the last ACK echoes a time stamp from before the first retransmission */
#define LOSS_STATE_KNOWN 0x80

/*
 * The state of one connection at one event. Fields are those of struct tcp_sock and its parents
 * unless a unit says otherwise. Before the connection has a socket of its own (SYN on a listener)
 * the state fields are 0 (ssthresh and min_rtt: none yet) and state is 12, TCP_NEW_SYN_RECV.
 */
struct tcp_state_record {
	struct record_header header;
	__u64 time_ns;              /* CLOCK_MONOTONIC */
	__u64 flow_seq;             /* packets of this flow seen up to now, this one included */
	__u64 pacing_rate_Bps;      /* ~0: not limited */
	__u32 flow;
	__u32 cwnd_segments;
	__u32 ssthresh_segments;    /* 0x7fffffff: not yet set */
	__u32 mss_bytes;
	__u32 srtt_us_x8;           /* the kernel keeps it times 8 */
	__u32 mdev_us_x4;           /* mdev_us: what tcp_info and ss show, divided by 4, as rttvar */
	__u32 min_rtt_us;           /* ~0: no sample yet */
	__u32 rto_jiffies;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_wnd_bytes;
	__u32 rcv_nxt;
	__u32 rcv_wnd_bytes;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 total_retrans;
	__u32 rate_delivered;       /* delivery rate = rate_delivered * mss / rate_interval_us */
	__u32 rate_interval_us;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 sndbuf_bytes;
	__u32 sndbuf_used_bytes;
	__u32 rcvbuf_bytes;
	__u32 rcvbuf_used_bytes;
	__u32 pkt_seq;
	__u32 pkt_ack;
	__u32 payload_bytes;
	__u16 gso_segs;             /* wire packets in this skb, at least 1 for a packet */
	__u16 pkt_flags;            /* the 12 bits behind the data offset: AE CWR ECE URG ACK PSH RST SYN FIN */
	__u8 direction;
	__u8 event;
	__u8 state;
	__u8 ca_state;
	__u8 window_scales;         /* snd_wscale in the low 4 bits, rcv_wscale in the high 4 */
	__u8 app_limited;           /* in the low 4 bits; of a close, its enum tcp_ending in the high 4 */
	__u8 loss_state;
	__u8 dupthresh_segments;    /* reordering; 254: more, or it does not count; 0 at packets */
};

#define FLOW_IS_IPV6 1u
#define FLOW_BEGAN_BEFORE 2u     /* there was no SYN: the connection is older than the log */
#define FLOW_PASSIVE 4u          /* accepted, not connected */
#define FLOW_SACK 8u
#define FLOW_TIMESTAMPS 16u
#define FLOW_ECN 32u
#define FLOW_WINDOW_SCALING 64u

/* What does not change in a flow's life, as far as it is known at the time of writing. */
struct tcp_flow_record {
	struct record_header header;
	__u64 time_ns;
	__u64 socket_cookie;
	__u64 cgroup_id;
	__u64 netns_cookie;
	__u32 flow;
	__u32 netns_inode;
	__u32 flags;
	__u32 pid;                  /* 0: no process has been seen to own it yet */
	__u32 uid;
	__u32 mss_clamp_bytes;      /* the MSS option of the peer */
	__u32 advmss_bytes;         /* the MSS option of ours */
	__u16 local_port;
	__u16 remote_port;
	__u8 local_address[16];
	__u8 remote_address[16];
	char congestion_control[16];
	char command[16];
	__u32 mptcp_token;          /* of the MPTCP connection that it is a subflow of; 0: plain TCP */
	__u32 pad;
};

#define FLOW_END_DESTROYED 1u    /* else: alive when the log ended */

/* How a connection ended. */
enum tcp_ending {
	ENDING_UNKNOWN = 0,
	ENDING_OPEN = 1,           /* it has not */
	ENDING_FIN = 2,            /* both ends sent a FIN, and this host's was acknowledged */
	ENDING_FIN_SENT = 3,       /* this host's FIN was acknowledged, and the socket did not wait for the peer's */
	ENDING_RESET_RECEIVED = 4,
	ENDING_ABORTED = 5,        /* by this host: close(2) with unread data, SO_LINGER 0, ss -K, a listener that is closed, ... */
	ENDING_TIMEOUT = 6,        /* no answer to retransmissions, window probes or keepalives */
	ENDING_UNREACHABLE = 7,    /* an ICMP error came while the connection was opened */
};

/* Which of the segments that end a connection there were. */
#define CLOSING_FIN_SENT 1u
#define CLOSING_FIN_RECEIVED 2u
#define CLOSING_FINS (CLOSING_FIN_SENT | CLOSING_FIN_RECEIVED)
#define CLOSING_RST_SENT 4u
#define CLOSING_RST_RECEIVED 8u

/*
 * The flow's account: seen = filtered + thinned + dropped + written, of packets and of events. And that of the segments
 * that were sent again: retransmits_total = retransmits_seen + retransmits_failed; what is missing had no event.
 */
struct tcp_flow_end_record {
	struct record_header header;
	__u64 time_ns;
	__u64 packets_seen;
	__u64 packets_filtered;
	__u64 packets_thinned;
	__u64 packets_dropped;
	__u64 events_seen;
	__u64 events_dropped;
	__u32 flow;
	__u16 flags;
	__u8 ending;                   /* enum tcp_ending */
	__u8 closing;               /* CLOSING_FIN_SENT and others; unknown where the end is */
	__u32 retransmits_total;    /* segments: total_retrans of the kernel, less what it was when the log began */
	__u32 retransmits_seen;     /* of these, segments of events */
	__u32 retransmits_failed;   /* of these, segments that a filter or a full queue of this host took */
	__u32 retransmits_refused;  /* attempts that failed before the kernel counted them: no route, no memory */
	__u64 bytes_acked;          /* that of the kernel, less what it was when the log first saw the connection */
	__u64 bytes_received;       /* likewise */
};

/*
 * A listener and its accept queue, in a table by the socket's cookie. Refused is what the kernel counts as ListenOverflows:
 * SYNs, and segments that would have completed a handshake.
 */
struct tcp_listener {
	__u64 syns_refused;
	__u64 acks_refused;
	__u64 first_refused_ns;     /* CLOCK_MONOTONIC; 0: nothing was refused */
	__u64 last_refused_ns;
	__u64 socket_cookie;
	__u64 cgroup_id;
	__u64 netns_cookie;
	__u8 local_address[16];
	__u32 listener;             /* number, from 1 */
	__u32 netns_inode;
	__u32 pid;                  /* 0: no process has been seen to own it */
	__u32 backlog;              /* sk_max_ack_backlog; one connection more than this waits at most */
	__u32 queue_last;           /* sk_ack_backlog when the last segment of a handshake came */
	__u32 queue_longest;
	__u16 local_port;
	__u8 is_ipv6;
	__u8 has_ended;
	char command[16];
	__u32 pad;
};

/*
 * What we keep at a socket. Both directions may run at once on two CPUs: counts, and what is done
 * once, change by atomics. What was logged or reported last is stored plainly: if two CPUs meet
 * there, facts are written once more, or a window once more or less. The kernel starts it 8 bytes
 * into a cache line, and a packet may have to fetch that line from another CPU: all that a packet
 * reads lies in the first 56 bytes.
 */
struct flow_state {
	__u64 packets_seen;
	__u64 packets_due;     /* not thinned out; 0 where nothing is thinned */
	__u64 packets_dropped;
	union {
		__u64 congestion_ops; /* that of the facts written last */
		__u64 last_packet_ns; /* of a handshake */
	};
	__u32 flow;            /* 0: being created; FLOW_IGNORED: the filters reject it */
	__u32 marks;
	__u32 has_ended;       /* its account was written */
	union {
		__u32 syn_seq; /* of a handshake: distinguishes a repeated SYN from that of another connection */
		__u32 has_retransmitted; /* of a connection: its ACKs may report duplicates */
	};
	union {
		__u32 last_cwnd_segments;
		__u32 gets_cookie; /* of a handshake: the answer to its SYN is a SYN cookie */
	};
	__u32 last_ssthresh_segments;
	__u64 events_seen;
	__u64 events_dropped;
	__u64 bytes_acked;     /* those of the kernel when they were last read */
	__u64 bytes_received;
	__u64 bytes_acked_before; /* the log */
	__u64 bytes_received_before;
	__u32 has_closed;       /* its last state was written */
	__u32 is_summed_up;     /* by a sweep, of which more than one may come to its socket */
	__u32 retransmits_seen; /* segments, as in struct tcp_flow_end_record */
	__u32 retransmits_failed;
	__u32 retransmits_refused;
	__u32 total_retrans;    /* that of the kernel when it was last read; of a handshake, its SYN-ACKs */
	__u32 total_retrans_before; /* the log */
	__u8 ending;               /* enum tcp_ending; ENDING_UNKNOWN until it is closed. It and the next change under the socket's lock */
	__u8 closing;
	__u16 unused;
};

/* ---- the generator ------------------------------------------------------------------------ */

/*
 * One packet of the plan, a ring of them: user space draws ahead, the program takes. When packets
 * are paced, the program replaces the due time by the send time. Several senders have a ring each:
 * the packets of the one plan go to them round robin.
 */
struct planned_packet {
	__u64 time_ns;              /* since the start: due, then sent */
	__u16 flow;
	__u16 ip_bytes;
	__be16 ip_checksum;
	__be16 transport_checksum;  /* with a stamp: the sum without the send time, not complemented */
};

#define HEADER_WORDS_MAX 10

/* The first bytes of every frame of a flow: header, and as much payload as fills the last word. */
struct flow_header {
	__u64 words[HEADER_WORDS_MAX];
};

/* What the frames of a workload have in common, as long as the longest of them. */
#define FRAME_IMAGE_BYTES 4096

struct frame_image {
	__u8 bytes[FRAME_IMAGE_BYTES];
};

enum transport { TRANSPORT_NONE = 0, TRANSPORT_UDP = 1, TRANSPORT_TCP = 2 };

/* Constants of a run of the generator. */
struct generate_options {
	__u32 plan_mask;            /* places in the plan's ring - 1 */
	__u32 buffer_bytes;         /* length of a frame before it is cut to its packet's: longer than any */
	__u32 written_bytes;        /* what is written at the start of a frame, at most */
	__u32 header_words;         /* 0: that of the only flow lies in the image */
	__u32 ip_offset;
	__u32 transport_offset;
	__u32 payload_offset;
	__u32 frame_bytes_min;
	__u32 transport;
	__u32 is_ipv6;
	__u32 is_stamped;
	__u32 is_paced;
	__u32 is_replay;
	__u32 batch_runs;            /* paced: runs of the program before the kernel passes frames on */
	__u32 first_sequence;       /* number in the plan of this ring's first packet ... */
	__u32 sequence_step;        /* ... and the distance to its next one */
};

/* Why the program failed. */
enum generate_failure {
	GENERATE_FAILURE_PLACE = 1,     /* no place in the plan, or a frame that is too short for a header */
	GENERATE_FAILURE_CONTENT = 2,   /* no such flow, or no such frame in the trace */
	GENERATE_FAILURE_CUT = 3,       /* the frame cannot be cut to the packet's length */
	GENERATE_FAILURE_INTERFACE = 4, /* the interface is no longer there */
};

/*
 * Where a run is. User space writes the first cache line; so does a program that fails, to stop
 * itself. The program writes the second.
 */
struct generate_state {
	__u64 drawn;       /* packets that are in the ring, or were */
	__u64 end;         /* packets in all */
	__u64 stop;
	__u64 start_ns;    /* CLOCK_MONOTONIC from which packets are due; not paced: of the first; 0: not yet */
	__u64 pad_user[4];
	__u64 taken;       /* packets sent, reported from time to time */
	__u64 next;        /* packets sent, exact; valid when the program does not run */
	__u64 waited;      /* runs that found nothing due */
	__u64 starved;     /* runs that found nothing drawn */
	__u64 failure;     /* enum generate_failure; 0: none */
	__u64 first_sent_ns;   /* CLOCK_MONOTONIC of the first packet of this batch; 0: it was not sent */
	__u32 batch_ns;     /* duration of a batch, mean of the last */
	__u32 run;         /* number of the next run in its batch */
	__u64 replayed;    /* position of the trace's frame that is sent next */
};

/*
 * A trace that is replayed lies in blocks, frame behind frame. One begins in a block's first
 * TRACE_BLOCK_BYTES and may end in the slack behind them; positions do not count the slack. Before a
 * frame's bytes stands, as a __u64, the position of the frame that its sender sends next.
 */
#define TRACE_BLOCK_BYTES (1 << 20)
#define TRACE_SLACK_BYTES 4096

struct trace_block {
	__u8 bytes[TRACE_BLOCK_BYTES + TRACE_SLACK_BYTES];
};

/*
 * Capture. A hook is one interface in one direction; every hook has a program of its own, generated
 * from the filters of all subscribers, which leaves its verdict here and goes on to the program that
 * copies the packet. One element for each CPU: programs of one hook do not interrupt each other.
 */
#define CAPTURE_SUBSCRIBERS_MAX 64
#define CAPTURE_SNAPLEN_MAX 262144
#define CAPTURE_SLACK_BYTES (CAPTURE_SNAPLEN_MAX + 4096)
#define CAPTURE_JUMP_COPY 0      /* the slot of the copying program in the generated one's jump table */

struct capture_verdict {
	__u64 seen;
	__u64 subscribers;   /* bit s: the filter of subscriber s matches */
	__u32 snaplen;       /* the largest of theirs */
	__u32 unfiltered_snaplen; /* 0 unless a subscriber gets every packet at this moment */
};

/*
 * What became of the packets that subscribers wanted; one element for each CPU. Runs of packets that
 * the same subscribers want are counted as one: run_records belongs to each in run_subscribers and
 * is not yet in matched. So another subscriber costs nothing while the packets stay of one kind.
 */
struct capture_account {
	__u64 run_subscribers;
	__u64 run_records;
	__u64 matched[CAPTURE_SUBSCRIBERS_MAX];
	__u64 dropped[CAPTURE_SUBSCRIBERS_MAX];  /* of matched: no room in the ring, see lane_header */
};

/* Constants of one hook's copying program. */
struct capture_options {
	struct ring_layout layout;
	__u16 hook;          /* number in the ring */
	__u16 interface;     /* number in the ring */
	__u16 direction;     /* enum direction */
	__u16 discard;       /* XDP: packets are dropped after the copy */
};

/* One packet; captured_length_bytes bytes of it follow, from the link layer's header on. */
struct capture_record {
	struct record_header header;
	__u64 time_ns;                /* CLOCK_MONOTONIC */
	__u64 subscribers;
	__u32 wire_length_bytes;      /* without a tag that is in vlan_tci */
	__u32 captured_length_bytes;
	__u16 gso_segs;               /* wire packets in this one, at least 1 */
	__u16 vlan_tci;               /* the tag that the kernel keeps beside the packet */
	__u16 vlan_protocol;          /* its type, host byte order; 0: there is no such tag */
	__u8 interface;               /* number in the ring */
	__u8 direction;
};

/*
 * The path instrument. A packet is followed by the address of its sk_buff from its first stage to its
 * end. Stages are in the order in which packets pass them. The time of a stage is that since the stage
 * before which the packet passed.
 */
enum path_stage {
	STAGE_XDP,             /* native XDP: the driver has the packet, and there is no sk_buff yet */
	STAGE_GRO,             /* napi_gro_receive_entry, napi_gro_frags_entry */
	STAGE_NETIF_RX,
	STAGE_RECEIVE,         /* netif_receive_skb */
	STAGE_TCX_INGRESS,
	STAGE_PRE_ROUTING,
	STAGE_LOCAL_IN,
	STAGE_SOCKET_IN,       /* cgroup_skb/ingress: the socket is found */
	STAGE_TCP_RECEIVE,     /* tcp_probe */
	STAGE_DATA_READY,      /* sk_data_ready */
	STAGE_COPY,            /* skb_copy_datagram_iovec */
	STAGE_FORWARD,
	STAGE_LOCAL_OUT,
	STAGE_POST_ROUTING,
	STAGE_SOCKET_OUT,      /* cgroup_skb/egress */
	STAGE_QUEUE,           /* net_dev_queue */
	STAGE_QDISC_ENQUEUE,
	STAGE_QDISC_DEQUEUE,
	STAGE_START_XMIT,      /* net_dev_start_xmit */
	STAGE_XMIT,            /* net_dev_xmit */
	STAGE_DROP,            /* kfree_skb */
	STAGE_CONSUME,         /* consume_skb */
	STAGE_PAD,             /* no stage */
	PATH_STAGE_COUNT,
};

/* Elements of an array of 4 bytes each, behind which there is no padding. */
#define EVEN(count) (((count) + 1) / 2 * 2)

/* How a packet's path through this host ended. */
enum path_code {
	PATH_FORWARDED = 0,
	PATH_DELIVERED = 1,
	PATH_SENT = 2,
	PATH_DROPPED = 3,
	PATH_CONSUMED = 4,         /* used up by the kernel: ARP, a packet that a tunnel unpacks */
	PATH_MERGED = 5,           /* GRO or the reassembly of fragments put it into another packet */
	PATH_SEGMENTED = 6,        /* by software GSO; its segments are packets of their own */
	PATH_UNKNOWN = 7,          /* its sk_buff was used again, and no end was seen */
	PATH_DISPLACED = 8,        /* another packet took its place in the table */
	PATH_OPEN = 9,             /* under way when measuring ended */
	PATH_CODE_COUNT = 10,
};

/* What histograms are kept for, beside the code path. */
enum path_group { GROUP_NONE = 0, GROUP_INTERFACE = 1, GROUP_CONNECTION = 2, GROUP_CGROUP = 3, GROUP_COMMAND = 4 };

#define PATH_FILTER_MAX 4096
/* A thread's program is interrupted by a softirq's, that by an interrupt's, that by an NMI's. A power of two. */
#define PATH_HEADS_PER_CPU 4

/* An instruction of classic BPF, which libpcap compiles expressions to. */
struct classic_instruction {
	__u16 code;
	__u8 jt;
	__u8 jf;
	__u32 k;
};

#define PATH_INTERFACES_MAX 16

/* Options of the path programs; constants once they are loaded. */
struct path_options {
	struct ring_layout layout;
	__u64 cgroup_id;                       /* only packets of sockets below it; 0: all */
	__u32 interfaces[PATH_INTERFACES_MAX]; /* only packets that begin at one of these */
	__u32 interface_count;                 /* 0: all */
	__u32 netns_inode;                     /* only packets of this network namespace; 0: all */
	__u32 every;                           /* every n-th packet that passes the filter */
	__u32 filter_length;                   /* instructions of path_filter; 0: no filter */
	__u32 stages;                          /* bit s: stage s is attached */
	__u32 table_bits;                      /* log2 of the packets that are followed at once */
	__u32 writes_records;                  /* 0: histograms only */
	__u32 group;                           /* enum path_group */
	__u32 groups_max;                      /* groups that have histograms of their own */
	__u32 reads_headers;                   /* identities are wanted */
	__u32 follows_readers;                 /* what reads from sockets is followed, too */
	__u16 delivered_reasons[3];            /* of drops that are none behind STAGE_LOCAL_IN; ~0: no reason */
	__u16 refused_reason;                  /* of what a full accept queue refuses */
	__u16 queue_reasons[2];                /* of drops of queue disciplines: the first one, and the one behind the last */
};

/* Who a packet is: what its headers said at its first stage, and where that was. */
struct path_identity {
	__u64 socket_cookie;        /* 0: not known */
	__u64 cgroup_id;            /* of its socket; 0: not known */
	__u32 netns_inode;
	__u32 interface;            /* at its first stage; 0: none yet */
	__u32 length_bytes;         /* from the network header on */
	__u32 tcp_seq;
	__u32 tcp_ack;
	__u32 payload_bytes;
	__u32 poll;                 /* number of the NAPI poll on its CPU */
	__u16 poll_index;           /* which packet of that poll it is, from 1; 0: not in a poll */
	__u16 gso_segs;             /* wire packets in it, at least 1 */
	__u16 source_port;          /* ICMP: type * 256 + code */
	__u16 destination_port;
	__u16 ip_id;
	__u8 ip_version;            /* 0: not IP */
	__u8 protocol;
	__u16 tcp_flags;
	__u16 ethernet_protocol;
	__u32 in_cgroup;            /* its socket is below the control group that is asked for */
	__u8 source[16];
	__u8 destination[16];
};

/* One packet, written at its end. */
struct path_record {
	struct record_header header;
	__u64 time_ns;              /* CLOCK_MONOTONIC, of its first stage */
	__u32 offset_ns[EVEN(STAGE_PAD)]; /* since then; valid where `seen` says so; at most 4.29 s */
	__u32 seen;                 /* bit s: it passed stage s */
	__u32 stolen_ns;            /* hardware interrupts on its CPU since STAGE_RECEIVE; ~0: it changed its CPU */
	__u32 interface_out;        /* 0: it did not leave */
	__u32 reason;               /* enum skb_drop_reason of the kernel; 0: not dropped */
	__u16 first_cpu;
	__u16 last_cpu;
	__u8 code;                  /* enum path_code */
	__u8 first_stage;
	__u8 last_stage;
	__u8 pad;
	struct path_identity identity;
};

/* One call that read from a socket, or waited for it: the reader's side of a delivery. */
struct path_read_record {
	struct record_header header;
	__u64 time_ns;              /* CLOCK_MONOTONIC, when the call returned the data */
	__u64 ready_ns;             /* first sk_data_ready since the last read; 0: none */
	__u64 waking_ns;            /* the reader was woken; 0: it was not waiting */
	__u64 running_ns;           /* it got a CPU */
	__u64 socket_cookie;
	__u32 bytes;
	__u32 pid;
	char command[16];
};

/* Per CPU: seen = filtered + thinned + failed + the sum of ended + those that are under way. */
struct path_account {
	__u64 seen;                 /* packets at their first stage */
	__u64 filtered;
	__u64 thinned;
	__u64 failed;               /* two CPUs wanted the same place in the table at once */
	__u64 ended[PATH_CODE_COUNT];
	__u64 dropped;              /* records without room in the ring */
	__u64 ungrouped;            /* ended packets whose group found no histograms */
	__u64 reads;
	__u64 reads_dropped;
	__u64 uncounted_drops;      /* of all packets: their reason found no room in path_drops */
	__u64 without_histogram;    /* ended packets on a CPU that came online after the start */
	__u64 pad[4];               /* cache lines of its own */
};

#define PATH_BUCKETS 256

/*
 * Times of the stages of one group of packets. Buckets are log-linear: 8 to each power of two, so at
 * most 12.5 % wide. STAGE_PAD has the whole, from the first stage to the last.
 */
struct path_histogram {
	__u64 packets;
	__u64 sum_ns[PATH_STAGE_COUNT];
	__u32 max_ns[EVEN(PATH_STAGE_COUNT)];
	__u32 counts[PATH_STAGE_COUNT][PATH_BUCKETS];
};

/* Code paths whose packets were seen from the first stage to the end: PATH_FORWARDED to PATH_DROPPED. */
#define PATH_WAIT_CODES 4
/* Of how many ended packets one counts in a path_wait: odd, since packets come in lists of 8 and polls of 64. */
#define PATH_WAIT_EVERY 7

/* Times of the packets whose whole lies in one bucket: where slow packets wait, and where fast ones. */
struct path_wait {
	__u64 packets;
	__u64 sum_ns[PATH_STAGE_COUNT]; /* STAGE_PAD has the whole */
};

/* What takes a CPU from the packets. */
enum path_noise {
	NOISE_SOFTIRQ = 0,          /* + the number of the vector, 0 to 9: HI TIMER NET_TX NET_RX BLOCK ... */
	NOISE_IRQ = 10,
	NOISE_TIMER = 11,           /* local timer interrupt */
	NOISE_NET_RX_DELAY = 12,    /* from softirq_raise to softirq_entry */
	NOISE_POLL_PACKETS = 13,    /* packets of a NAPI poll, not ns */
	NOISE_COUNT = 14,
};

struct path_noise_histogram {
	__u64 events;
	__u64 sum_ns;
	__u64 max_ns;
	__u64 sum_gap_ns;           /* between the starts of events */
	__u64 sum_gap_squared_us;   /* in us^2 */
	__u32 counts[PATH_BUCKETS];
};

/* Of reads from sockets: from the first moment to the second, in the same histograms as noise. */
enum path_read_time {
	READ_TIME_WAKING = 0,       /* data ready, the reader is woken */
	READ_TIME_RUNNING = 1,      /* woken, it has a CPU */
	READ_TIME_READ = 2,         /* the last of these, the data is returned */
	READ_TIME_WHOLE = 3,        /* data ready, returned */
	READ_TIME_COUNT = 4,
};

/* A group of packets that has histograms of its own; what does not belong to the kind of group is 0. */
struct path_key {
	__u8 source[16];    /* or the name of a command */
	__u8 destination[16];
	__u16 source_port;
	__u16 destination_port;
	__u32 protocol;
	__u64 number;       /* of the interface, or the control group */
	__u32 netns_inode;  /* others have interfaces with its numbers, and connections with its addresses */
	__u32 code;
};

#define PATH_REASONS_MAX 256

/* Drops for one reason, of all packets and of those that are followed; at most PATH_REASONS_MAX reasons are counted. */
struct path_drops {
	__u64 all;
	__u64 followed[PATH_STAGE_COUNT]; /* by the last stage before */
};

/* Constants of an edge: a place at an interface where the times of stamped packets are recorded. */
struct edge_options {
	__u32 capacity;       /* sequence numbers below it are recorded */
	__u32 port;           /* UDP destination port of the stamped packets, host byte order */
	__u32 is_recording;   /* 0: counts only */
	__u32 is_discarding;  /* XDP: packets go no further than here */
	__u32 link_bytes;     /* header of the link before the IP packet */
	__u32 pad;
};

/* One stamped packet; all 0: it did not pass. */
struct edge_time {
	__u64 time_ns;        /* CLOCK_MONOTONIC */
	__u32 bytes;          /* of the frame */
	__u32 pad;
};

/* What passed; one element for each CPU. */
struct edge_account {
	__u64 packets;
	__u64 bytes;
	__u64 recorded;
	__u64 duplicates;     /* sequence number recorded before */
	__u64 beyond;         /* sequence number of at least the capacity */
	__u64 other;          /* not a stamped packet */
	__u64 first_timed_ns; /* CLOCK_MONOTONIC, of the first packet whose time is taken, and of the last one */
	__u64 last_timed_ns;
	__u64 timed;          /* packets between the two, the last one among them */
};

#pragma clang diagnostic pop

_Static_assert(sizeof(struct lane_header) <= LANE_HEADER_BYTES, "lane_header: within its page");
_Static_assert(sizeof(struct hook_counters) == 64, "hook_counters: one cache line");
_Static_assert(sizeof(struct generate_state) == 128, "generate_state: two cache lines");

#endif
