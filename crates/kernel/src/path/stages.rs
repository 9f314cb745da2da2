//! The stages of the path, and the programs behind them.

use libbpf_rs::{
    NF_INET_FORWARD, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING, NF_INET_PRE_ROUTING,
};
use parshall_core::stage::Stage;

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
    /// The stage.
    pub stage: Stage,
    /// Its program in the object.
    pub program: &'static str,
    /// Where that runs.
    pub hook: StageHook,
}

const fn tracepoint(stage: Stage, program: &'static str, name: &'static str) -> StageProgram {
    StageProgram {
        stage,
        program,
        hook: StageHook::Tracepoint(name),
    }
}

const fn netfilter(
    stage: Stage,
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

const fn of(stage: Stage, program: &'static str, hook: StageHook) -> StageProgram {
    StageProgram {
        stage,
        program,
        hook,
    }
}

/// All programs of stages. Ends come first, so that no packet that is followed misses one.
pub const STAGE_PROGRAMS: &[StageProgram] = &[
    tracepoint(Stage::consume, "path_consume", "consume_skb"),
    tracepoint(Stage::consume, "path_consume_2", "consume_skb"),
    tracepoint(Stage::drop, "path_drop", "kfree_skb"),
    tracepoint(Stage::drop, "path_drop_2", "kfree_skb"),
    tracepoint(Stage::xmit, "path_xmit", "net_dev_xmit"),
    tracepoint(Stage::start_xmit, "path_start_xmit", "net_dev_start_xmit"),
    tracepoint(Stage::qdisc_dequeue, "path_qdisc_dequeue", "qdisc_dequeue"),
    tracepoint(Stage::qdisc_enqueue, "path_qdisc_enqueue", "qdisc_enqueue"),
    tracepoint(Stage::queue, "path_queue", "net_dev_queue"),
    of(Stage::socket_out, "path_socket_out", StageHook::Sockets),
    netfilter(
        Stage::post_routing,
        "path_post_routing",
        NF_INET_POST_ROUTING,
        false,
    ),
    netfilter(Stage::local_out, "path_local_out", NF_INET_LOCAL_OUT, true),
    netfilter(Stage::forward, "path_forward", NF_INET_FORWARD, false),
    tracepoint(Stage::copy, "path_copy", "skb_copy_datagram_iovec"),
    tracepoint(Stage::data_ready, "path_data_ready", "sk_data_ready"),
    tracepoint(Stage::tcp_receive, "path_tcp_receive", "tcp_probe"),
    of(Stage::socket_in, "path_socket_in", StageHook::Sockets),
    netfilter(Stage::local_in, "path_local_in", NF_INET_LOCAL_IN, false),
    netfilter(
        Stage::pre_routing,
        "path_pre_routing",
        NF_INET_PRE_ROUTING,
        false,
    ),
    of(
        Stage::tcx_ingress,
        "path_tcx_ingress",
        StageHook::TcxIngress,
    ),
    tracepoint(Stage::receive, "path_receive", "netif_receive_skb"),
    tracepoint(Stage::netif_rx, "path_netif_rx", "netif_rx"),
    tracepoint(Stage::gro, "path_gro", "napi_gro_receive_entry"),
    tracepoint(Stage::gro, "path_gro_frags", "napi_gro_frags_entry"),
    of(Stage::xdp, "path_xdp", StageHook::NativeXdp),
];

/// Programs that follow the readers of sockets; they build on the stage `data_ready`.
pub const READER_PROGRAMS: &[(&str, &str)] = &[
    ("path_read", "sock_recv_length"),
    ("path_switch", "sched_switch"),
    ("path_waking", "sched_waking"),
];

/// Programs that distinguish the threads that send packets from interrupts.
pub const COMMAND_PROGRAMS: &[(&str, &str)] = &[
    ("path_serving_exit", "softirq_exit"),
    ("path_serving_entry", "softirq_entry"),
];

/// Programs that measure what takes a CPU from the packets.
pub const NOISE_PROGRAMS: &[(&str, &str)] = &[
    ("path_poll", "napi_poll"),
    ("path_softirq_raise", "softirq_raise"),
    ("path_softirq_exit", "softirq_exit"),
    ("path_softirq_entry", "softirq_entry"),
    ("path_irq_exit", "irq_handler_exit"),
    ("path_irq_entry", "irq_handler_entry"),
    ("path_timer_exit", "local_timer_exit"),
    ("path_timer_entry", "local_timer_entry"),
];

/// Stages at which packets begin.
pub const BEGINNINGS: &[Stage] = &[
    Stage::gro,
    Stage::netif_rx,
    Stage::receive,
    Stage::local_out,
    Stage::post_routing,
    Stage::queue,
    Stage::start_xmit,
];

/// Whether a stage of these lies between the first and the last one of every packet that passes it. Only then the whole of a
/// packet is the same time with its program and without, and the difference is what the program costs.
pub fn is_between(stage: Stage, stages: u32) -> bool {
    let any = |ends: &[Stage]| ends.iter().any(|end| end.is_in(stages));
    match stage {
        Stage::tcx_ingress | Stage::pre_routing => {
            // Those that are delivered end at the last of the first three; which one that is depends on their protocol.
            any(&[Stage::local_in, Stage::socket_in, Stage::tcp_receive])
                || any(&[Stage::queue, Stage::start_xmit])
        }
        Stage::forward | Stage::post_routing | Stage::socket_out => {
            any(&[Stage::queue, Stage::start_xmit])
        }
        Stage::qdisc_enqueue | Stage::qdisc_dequeue => any(&[Stage::start_xmit]),
        _ => false,
    }
}
