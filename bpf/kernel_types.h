/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The fields of kernel structures that our programs read, and no others. libbpf relocates every
 * access to the running kernel (CO-RE), so order, size and neighbours do not matter here. If a kernel lacks
 * a field, the load fails with the field's name, unless the program checks for the field first. Building
 * needs no BTF of a kernel.
 */
#ifndef PARSHALL_KERNEL_TYPES_H
#define PARSHALL_KERNEL_TYPES_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct { int counter; } atomic_t;
typedef struct { int owned; } socket_lock_t;
typedef struct { __u32 val; } kuid_t;

struct ns_common { unsigned int inum; };
struct netns_ipv4 { __u8 sysctl_tcp_recovery; __u8 sysctl_tcp_syncookies; };
struct net { struct ns_common ns; __u64 net_cookie; struct netns_ipv4 ipv4; };
typedef struct { struct net *net; } possible_net_t;
struct kernfs_node { __u64 id; };
struct cgroup;
struct cgroup_subsys_state { struct cgroup_subsys_state *parent; };
struct cgroup { struct cgroup_subsys_state self; struct kernfs_node *kn; };
struct sock_cgroup_data { struct cgroup *cgroup; };

/* What follows ___ in a name is not compared: linux/in6.h has a struct in6_addr of its own. */
struct in6_addr___kernel { struct { __u32 u6_addr32[4]; } in6_u; };

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr___kernel skc_v6_daddr;
	struct in6_addr___kernel skc_v6_rcv_saddr;
	struct { __s64 counter; } skc_cookie;
	__u32 skc_rcv_wnd;
	unsigned long skc_flags;
};

struct sock {
	struct sock_common __sk_common;
	struct { atomic_t rmem_alloc; } sk_backlog;
	int sk_rcvbuf;
	int sk_sndbuf;
	int sk_wmem_queued;
	int sk_err;
	int sk_err_soft;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
	socket_lock_t sk_lock;
	unsigned long sk_pacing_rate;
	kuid_t sk_uid;
	__u16 sk_protocol;
	__u8 sk_shutdown;
	struct sock_cgroup_data sk_cgrp_data;
};

struct tcp_congestion_ops { char name[16]; };
struct inet_sock { struct sock sk; __be16 inet_sport; };

struct request_sock_queue { __u8 rskq_defer_accept; atomic_t qlen; };

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct request_sock_queue icsk_accept_queue;
	__u32 icsk_rto;
	const struct tcp_congestion_ops *icsk_ca_ops;
	void *icsk_ulp_data;
	__u8 icsk_ca_state : 5;
	__u8 icsk_pending;
};

struct minmax_sample { __u32 t; __u32 v; };
struct minmax { struct minmax_sample s[3]; };

struct tcp_options_received {
	__u32 rcv_tsecr;
	__u16 saw_tstamp : 1;
	__u16 tstamp_ok : 1;
	__u16 wscale_ok : 1;
	__u16 sack_ok : 3;
	__u16 snd_wscale : 4;
	__u16 rcv_wscale : 4;
	__u16 mss_clamp;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_wnd;
	__u32 mss_cache;
	__u32 snd_cwnd;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 retrans_out;
	__u16 advmss;
	__u32 snd_ssthresh;
	struct minmax rtt_min;
	__u32 mdev_us;
	__u8 ecn_flags;
	__u8 rate_app_limited : 1;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 srtt_us;
	__u32 packets_out;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 rcv_wnd;
	struct tcp_options_received rx_opt;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 total_retrans;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u32 reordering;
	__u32 reord_seen;
	__u32 undo_marker;
	__u32 retrans_stamp;
	__u32 write_seq;
	int linger2;
	_Bool is_mptcp;
};

/* The socket of an MPTCP connection. Its subflows are sockets of TCP, with the second structure in icsk_ulp_data. */
struct mptcp_sock { struct inet_connection_sock sk; __u32 token; struct sock *first; };
struct mptcp_subflow_context { __u32 mp_capable : 1; __u32 mp_join : 1; struct sock *conn; };

/* A handshake of a passive open, which has no socket of its own. */
struct request_sock { struct sock_common __req_common; __u8 num_timeout : 7; };
struct inet_request_sock { struct request_sock req; };
struct tcp_request_sock { struct inet_request_sock req; __u32 rcv_isn; __u32 snt_isn; __u32 rcv_nxt; };

struct tcp_skb_cb {
	__u32 seq;
	__u32 end_seq;
	__u16 tcp_gso_segs;
	__u8 tcp_flags;
};

struct net_device { possible_net_t nd_net; int ifindex; unsigned char lower_level; struct bpf_prog *xdp_prog; };
struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	struct sock *sk;
	char cb[48];
	unsigned int len;
	unsigned int data_len;
	__be16 protocol;
	__u16 network_header;
	__u16 mac_header;
	int skb_iif;
	__u8 cloned : 1;
	unsigned int tail;
	unsigned int end;
	unsigned char *head;
	unsigned char *data;
};
struct skb_shared_info { unsigned short gso_size; unsigned short gso_segs; struct sk_buff *frag_list; };
struct nf_hook_state { struct net_device *in, *out; struct net *net; };
struct bpf_nf_ctx { const struct nf_hook_state *state; struct sk_buff *skb; };
/* Kernels have this field if the tracepoint reports failed attempts, too, with the error as its third argument. */
struct trace_event_raw_tcp_retransmit_skb { int err; };
/* Kernels have this field if they account for interrupts separately: CONFIG_IRQ_TIME_ACCOUNTING. */
struct rq { __u64 prev_irq_time; };
struct socket { struct sock *sk; };
struct file { void *private_data; };
struct pid_namespace { struct ns_common ns; };
struct upid { int nr; struct pid_namespace *ns; };
struct pid { unsigned int level; struct upid numbers[]; };
struct task_struct { unsigned int flags; int pid; int tgid; char comm[16]; struct task_struct *group_leader; struct pid *thread_pid; };

struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; __u64 session_id; __u64 seq_num; };
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};
struct bpf_map;
struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

#pragma clang attribute pop

#define AF_INET 2
#define AF_INET6 10
#define AF_PACKET 17
#define IPPROTO_TCP 6
#define IPPROTO_MPTCP 262
#define IPPROTO_FRAGMENT 44
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define SOCK_STREAM 1

enum {
	TCP_ESTABLISHED = 1,
	TCP_SYN_SENT = 2,
	TCP_SYN_RECV = 3,
	TCP_FIN_WAIT1 = 4,
	TCP_FIN_WAIT2 = 5,
	TCP_TIME_WAIT = 6,
	TCP_CLOSE = 7,
	TCP_LAST_ACK = 9,
	TCP_LISTEN = 10,
	TCP_CLOSING = 11,
	TCP_NEW_SYN_RECV = 12,
};

#define TCP_ECN_RFC3168 1   /* ECN was agreed on */
#define TCP_ECN_ACCURATE 16 /* Accurate ECN was; kernels before it do not use this bit */

#endif
