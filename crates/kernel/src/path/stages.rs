//! The stages of the path, and the programs behind them.

use libbpf_rs::{
    NF_INET_FORWARD, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING, NF_INET_PRE_ROUTING,
};

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageHook {
    /// A tracepoint of this name.
    Tracepoint(&'static str),
    /// A netfilter hook of the network namespace, for IPv4 and IPv6.
    Netfilter {
        /// Its number.
        number: i32,
        /// Whether before all others, or after them.
        is_first: bool,
    },
    /// The sockets below the root control group, in the direction of the program's section.
    Sockets,
    /// tcx ingress of each interface that is given.
    TcxIngress,
    /// XDP in the driver of each interface that is given.
    NativeXdp,
}

/// A program of a stage.
#[derive(Clone, Copy, Debug)]
pub struct StageProgram {
    /// The stage, see `enum path_stage`.
    pub stage: usize,
    /// Its program in the object.
    pub program: &'static str,
    /// Where that runs.
    pub hook: StageHook,
}

const fn tracepoint(stage: usize, program: &'static str, name: &'static str) -> StageProgram {
    StageProgram {
        stage,
        program,
        hook: StageHook::Tracepoint(name),
    }
}

const fn netfilter(
    stage: usize,
    program: &'static str,
    number: i32,
    is_first: bool,
) -> StageProgram {
    StageProgram {
        stage,
        program,
        hook: StageHook::Netfilter { number, is_first },
    }
}

const fn of(stage: usize, program: &'static str, hook: StageHook) -> StageProgram {
    StageProgram {
        stage,
        program,
        hook,
    }
}

/// All programs of stages. Ends come first, so that no packet that is followed misses one.
pub const STAGE_PROGRAMS: [StageProgram; 23] = [
    tracepoint(21, "path_consume", "consume_skb"),
    tracepoint(20, "path_drop", "kfree_skb"),
    tracepoint(19, "path_xmit", "net_dev_xmit"),
    tracepoint(18, "path_start_xmit", "net_dev_start_xmit"),
    tracepoint(17, "path_qdisc_dequeue", "qdisc_dequeue"),
    tracepoint(16, "path_qdisc_enqueue", "qdisc_enqueue"),
    tracepoint(15, "path_queue", "net_dev_queue"),
    of(14, "path_socket_out", StageHook::Sockets),
    netfilter(13, "path_post_routing", NF_INET_POST_ROUTING, false),
    netfilter(12, "path_local_out", NF_INET_LOCAL_OUT, true),
    netfilter(11, "path_forward", NF_INET_FORWARD, false),
    tracepoint(10, "path_copy", "skb_copy_datagram_iovec"),
    tracepoint(9, "path_data_ready", "sk_data_ready"),
    tracepoint(8, "path_tcp_receive", "tcp_probe"),
    of(7, "path_socket_in", StageHook::Sockets),
    netfilter(6, "path_local_in", NF_INET_LOCAL_IN, false),
    netfilter(5, "path_pre_routing", NF_INET_PRE_ROUTING, false),
    of(4, "path_tcx_ingress", StageHook::TcxIngress),
    tracepoint(3, "path_receive", "netif_receive_skb"),
    tracepoint(2, "path_netif_rx", "netif_rx"),
    tracepoint(1, "path_gro", "napi_gro_receive_entry"),
    tracepoint(1, "path_gro_frags", "napi_gro_frags_entry"),
    of(0, "path_xdp", StageHook::NativeXdp),
];

/// Programs that follow the readers of sockets; they build on the stage `data_ready`.
pub const READER_PROGRAMS: [(&str, &str); 3] = [
    ("path_read", "sock_recv_length"),
    ("path_switch", "sched_switch"),
    ("path_waking", "sched_waking"),
];

/// Programs that distinguish the threads that send packets from interrupts.
pub const COMMAND_PROGRAMS: [(&str, &str); 2] = [
    ("path_serving_exit", "softirq_exit"),
    ("path_serving_entry", "softirq_entry"),
];

/// Programs that measure what takes a CPU from the packets.
pub const NOISE_PROGRAMS: [(&str, &str); 8] = [
    ("path_poll", "napi_poll"),
    ("path_softirq_raise", "softirq_raise"),
    ("path_softirq_exit", "softirq_exit"),
    ("path_softirq_entry", "softirq_entry"),
    ("path_irq_exit", "irq_handler_exit"),
    ("path_irq_entry", "irq_handler_entry"),
    ("path_timer_exit", "local_timer_exit"),
    ("path_timer_entry", "local_timer_entry"),
];

/// Whether a packet may begin or end at a stage, so that it stays attached while the cost of the others is measured.
pub fn is_edge(stage: usize) -> bool {
    !matches!(stage, 4..=8 | 11 | 13 | 14 | 16 | 17)
}
