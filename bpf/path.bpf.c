// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The path instrument: when each packet passed which stage of the kernel. Every stage is a program of
 * its own, and only those that are asked for are attached. A stage looks up the packet, takes the
 * time, and notes it; at the packet's end the times go into histograms and, if asked for, a record.
 */
#include "path_filter.h"
#include "path_noise.h"
#include "path_read.h"

#define CGROUP_DEPTH_MAX 32

/* ---- the beginning of a packet ---------------------------------------------------------------- */

static __always_inline __u32 netns_of(const struct sk_buff *skb)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);

	return dev ? BPF_CORE_READ(dev, nd_net.net, ns.inum) : 0;
}

static __always_inline int is_wanted_interface(__u32 interface)
{
	for (int i = 0; i < PATH_INTERFACES_MAX; i++) {
		if (i >= options.interface_count)
			return 0;
		if (options.interfaces[i] == interface)
			return 1;
	}
	return 0;
}

/* Whose packet it is; sockets that are not full ones have no control group. */
static __noinline int describe_socket(struct path_identity *identity, struct sock *sk)
{
	struct cgroup *cgroup;
	__u8 state;

	if (!identity || !sk)
		return 0;
	state = BPF_CORE_READ(sk, __sk_common.skc_state);
	if (state == TCP_NEW_SYN_RECV || state == TCP_TIME_WAIT)
		return 0;
	identity->socket_cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	cgroup = BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
	if (!cgroup)
		return 0;
	identity->cgroup_id = BPF_CORE_READ(cgroup, kn, id);
	if (!options.cgroup_id)
		return 0;
	for (int depth = 0; depth < CGROUP_DEPTH_MAX && cgroup; depth++) {
		if (BPF_CORE_READ(cgroup, kn, id) == options.cgroup_id) {
			identity->in_cgroup = 1;
			return 0;
		}
		cgroup = (struct cgroup *)BPF_CORE_READ(cgroup, self.parent);
	}
	return 0;
}

/* Whether the filter wants a packet; fills in its identity where that is asked for. */
static __always_inline int is_wanted_head(struct sk_buff *skb, struct path_identity *identity, __u32 netns, __u32 number)
{
	struct packet_head *head = read_head(skb, number);
	struct net_device *dev;
	struct sock *sk;

	if (!identity || (options.filter_length && !accepts(head)))
		return 0;
	if (!options.reads_headers)
		return 1;
	__builtin_memset(identity, 0, sizeof(*identity));
	sk = BPF_CORE_READ(skb, sk);
	if (sk)
		describe_socket(identity, sk);
	dev = BPF_CORE_READ(skb, dev);
	identity->netns_inode = netns;
	identity->interface = dev ? BPF_CORE_READ(dev, ifindex) : 0;
	identity->ethernet_protocol = bpf_ntohs(BPF_CORE_READ(skb, protocol));
	identity->gso_segs = 1;
	if (head) {
		struct skb_shared_info *shared = (void *)(BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end));

		identity->gso_segs = BPF_CORE_READ(shared, gso_segs) ?: 1;
		identity->length_bytes = head->wire_bytes;
		describe_headers(identity, head);
	}
	return 1;
}

/* Whether a packet is wanted; fills in its identity where that is asked for. */
static __noinline int is_wanted(struct sk_buff *skb, struct path_identity *identity, __u32 netns)
{
	struct path_cpu *now = this_cpu();
	struct net_device *dev;
	__u32 in_use;
	int wanted;

	if (!skb || !now)
		return 0;
	if (options.netns_inode && netns != options.netns_inode)
		return 0;
	dev = BPF_CORE_READ(skb, dev);
	if (options.interface_count && !is_wanted_interface(dev ? BPF_CORE_READ(dev, ifindex) : 0))
		return 0;
	if (!options.filter_length && !options.reads_headers)
		return 1;
	/* A program that interrupts this one takes the next head, and gives it back before this one goes on. */
	in_use = now->heads_in_use;
	*(volatile __u32 *)&now->heads_in_use = in_use + 1;
	wanted = is_wanted_head(skb, identity, netns, in_use);
	*(volatile __u32 *)&now->heads_in_use = in_use;
	return wanted;
}

/*
 * When native XDP had a packet, by where its first byte is. The driver makes an sk_buff around that byte, on the same CPU
 * and in the same poll. Metadata in front of the packet would do as well, but GRO merges no packets whose metadata differ.
 */
struct path_arrival {
	__u64 time_ns; /* 0: none, or taken */
	__u32 address; /* low bits */
	__u32 interface;
};

#define ARRIVAL_BITS 8

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << ARRIVAL_BITS);
	__type(key, __u32);
	__type(value, struct path_arrival);
} path_arrivals SEC(".maps");

static __always_inline struct path_arrival *arrival_at(__u32 address)
{
	__u32 place = ((address >> 6) * 0x9e3779b1u) >> (32 - ARRIVAL_BITS);

	return bpf_map_lookup_elem(&path_arrivals, &place);
}

SEC("xdp.frags")
int path_xdp(struct xdp_md *ctx)
{
	struct path_arrival *arrival;
	__u32 address;

	/* The verifier takes no arithmetic on a pointer to a packet, but its copied low half is a number. */
	asm volatile("%[low] = %[pointer]" : [low] "=w"(address) : [pointer] "w"(ctx->data));
	arrival = arrival_at(address);
	if (arrival) {
		arrival->address = address;
		arrival->interface = ctx->ingress_ifindex;
		arrival->time_ns = bpf_ktime_get_ns();
	}
	return XDP_PASS;
}

/* Moves the beginning of a packet back to its arrival, if the driver has not copied it elsewhere since. */
static __always_inline void begin_at_arrival(struct path_packet *packet, struct sk_buff *skb, __u32 stage)
{
	__u32 address = (__u32)(__u64)BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, mac_header);
	struct path_arrival *arrival = arrival_at(address);
	__u64 past_ns;

	if (!arrival || !arrival->time_ns || arrival->address != address ||
	    arrival->interface != BPF_CORE_READ(skb, dev, ifindex))
		return;
	past_ns = packet->time_ns - arrival->time_ns;
	packet->time_ns = arrival->time_ns;
	packet->first_stage = STAGE_XDP;
	packet->seen |= BIT(STAGE_XDP);
	packet->offset_ns[STAGE_XDP] = 0;
	if (stage < STAGE_PAD)
		packet->offset_ns[stage] = past_ns < 0xffffffff ? past_ns : 0xffffffff;
	arrival->time_ns = 0;
}

/* A packet at its first stage. `netns` is 0 where only the packet's device knows it. */
static __noinline int begin_packet(struct sk_buff *skb, __u32 stage, __u32 netns)
{
	__u32 place, cpu = bpf_get_smp_processor_id();
	struct path_packet *packet;
	struct path_account *account = account_of(cpu);
	struct path_identity *identity;
	struct path_cpu *now;
	__u32 is_ignored = 0;

	if (!skb || !account)
		return 0;
	packet = make_room(skb, &place);
	if (!packet)
		return 0;
	count_in_softirq(&account->seen, stage <= STAGE_RECEIVE || stage >= STAGE_QUEUE);
	if (__sync_val_compare_and_swap(&packet->tag, TAG_FREE, TAG_TAKEN) != TAG_FREE) {
		count(&account->failed);
		return 0;
	}
	if (options.netns_inode || options.interface_count || options.filter_length || options.reads_headers) {
		identity = bpf_map_lookup_elem(&path_identities, &place);
		if (!identity || !is_wanted(skb, identity, netns ?: netns_of(skb))) {
			count(&account->filtered);
			is_ignored = 1;
		}
	}
	if (options.every > 1 && !is_ignored && __sync_fetch_and_add(&thinning_count, 1) % options.every) {
		count(&account->thinned);
		is_ignored = 1;
	}
	packet->is_ignored = is_ignored;
	packet->seen = BIT(stage);
	packet->first_stage = packet->last_stage = stage;
	if (!is_ignored) {
		packet->first_cpu = packet->stolen_cpu = cpu;
		packet->interface_out = 0;
		packet->reason = 0;
		if (stage < STAGE_PAD)
			packet->offset_ns[stage] = 0;
		if (options.group == GROUP_COMMAND)
			note_command(place, stage >= STAGE_LOCAL_OUT);
		if (options.writes_records) {
			now = this_cpu();
			identity = bpf_map_lookup_elem(&path_identities, &place);
			if (now && identity) {
				packet->stolen_from_ns = now->stolen_ns;
				identity->poll = now->poll;
				identity->poll_index = stage <= STAGE_RECEIVE ? ++now->poll_index : 0;
			}
		}
		packet->time_ns = bpf_ktime_get_ns();
		if (options.stages & BIT(STAGE_XDP) && stage <= STAGE_RECEIVE)
			begin_at_arrival(packet, skb, stage);
	}
	*(volatile __u64 *)&packet->tag = (__u64)skb;
	return 0;
}

/* ---- stages ------------------------------------------------------------------------------------ */

/* Notes the time of a stage. What passes it more than once, as parts of a GSO packet do, keeps the first. */
static __always_inline void pass(struct path_packet *packet, const __u32 stage)
{
	if (!packet->is_ignored && !(packet->seen & BIT(stage))) {
		__u64 past_ns = bpf_ktime_get_ns() - packet->time_ns;

		packet->offset_ns[stage] = past_ns < 0xffffffff ? past_ns : 0xffffffff;
		packet->seen |= BIT(stage);
	}
	packet->last_stage = stage;
}

/* A stage where packets come in: one that is there already is the same only before this stage. */
static __always_inline void arrive(struct sk_buff *skb, const __u32 stage)
{
	__u32 place;
	struct path_packet *packet = find_packet(skb, &place);

	if (!packet || packet->last_stage > STAGE_RECEIVE || (packet->last_stage == stage && stage != STAGE_RECEIVE) ||
	    (packet->last_stage > stage)) {
		begin_packet(skb, stage, 0);
		return;
	}
	pass(packet, stage);
}

/*
 * A stage on the way out. Packets of this host begin at the first one that is attached; those that are forwarded
 * have the number of the interface at which they came in.
 */
static __always_inline struct path_packet *leave(struct sk_buff *skb, const __u32 stage, __u32 netns, __u32 *place)
{
	struct path_packet *packet = find_packet(skb, place);
	int is_old = packet && (packet->seen & (DELIVERING | LEAVING));
	int is_ours = !skb->skb_iif;

	if (packet && !is_old && (!is_ours || !(packet->seen & ARRIVING))) {
		pass(packet, stage);
		return packet;
	}
	if (is_ours || !(options.stages & ARRIVING))
		begin_packet(skb, stage, netns);
	return 0;
}

/* A stage on the way in that neither begins nor ends a packet. */
static __always_inline struct path_packet *pass_if_known(const void *skb, const __u32 stage, __u32 *place)
{
	struct path_packet *packet = find_packet(skb, place);

	if (packet)
		pass(packet, stage);
	return packet;
}

static __always_inline void end_at(const void *skb, const __u32 stage)
{
	__u32 place;
	struct path_packet *packet = find_packet(skb, &place);

	if (!packet)
		return;
	pass(packet, stage);
	end_packet(packet, *(volatile __u64 *)&packet->tag, place, PATH_UNKNOWN, 0);
}

SEC("tp_btf/napi_gro_receive_entry")
int BPF_PROG(path_gro, struct sk_buff *skb)
{
	begin_packet(skb, STAGE_GRO, 0);
	return 0;
}

SEC("tp_btf/napi_gro_frags_entry")
int BPF_PROG(path_gro_frags, struct sk_buff *skb)
{
	begin_packet(skb, STAGE_GRO, 0);
	return 0;
}

SEC("tp_btf/netif_rx")
int BPF_PROG(path_netif_rx, struct sk_buff *skb)
{
	arrive(skb, STAGE_NETIF_RX);
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(path_receive, struct sk_buff *skb)
{
	arrive(skb, STAGE_RECEIVE);
	return 0;
}

/* All but path_local_out run behind the other programs of their hook, so that they see what is let through. */
#define NF_ACCEPT 1

SEC("netfilter")
int path_pre_routing(struct bpf_nf_ctx *ctx)
{
	__u32 place;

	pass_if_known(ctx->skb, STAGE_PRE_ROUTING, &place);
	return NF_ACCEPT;
}

/*
 * The packet has found its socket, if that is known; when its data is ready, it is still the last one of this CPU. A
 * socket has a cookie from the first question for it on, so the programs ask before the identity is filled in.
 */
static __always_inline void note_delivery(struct path_packet *packet, __u32 place, const void *skb, struct sock *sk)
{
	struct path_identity *identity;
	struct path_cpu *now;

	if (!packet || packet->is_ignored)
		return;
	if (options.reads_headers && sk) {
		identity = bpf_map_lookup_elem(&path_identities, &place);
		if (identity)
			describe_socket(identity, sk);
	}
	if (!(options.stages & BIT(STAGE_DATA_READY)))
		return;
	now = this_cpu();
	if (now) {
		now->delivering = (__u64)skb;
		now->delivering_to = (__u64)sk;
		now->ready_socket = 0;
	}
}

SEC("netfilter")
int path_local_in(struct bpf_nf_ctx *ctx)
{
	__u32 place;
	struct path_packet *packet = pass_if_known(ctx->skb, STAGE_LOCAL_IN, &place);

	note_delivery(packet, place, ctx->skb, 0);
	return NF_ACCEPT;
}

SEC("netfilter")
int path_forward(struct bpf_nf_ctx *ctx)
{
	__u32 place;

	pass_if_known(ctx->skb, STAGE_FORWARD, &place);
	return NF_ACCEPT;
}

SEC("netfilter")
int path_local_out(struct bpf_nf_ctx *ctx)
{
	begin_packet(ctx->skb, STAGE_LOCAL_OUT, BPF_CORE_READ(ctx->state, net, ns.inum));
	return NF_ACCEPT;
}

SEC("netfilter")
int path_post_routing(struct bpf_nf_ctx *ctx)
{
	__u32 place;

	leave(ctx->skb, STAGE_POST_ROUTING, BPF_CORE_READ(ctx->state, net, ns.inum), &place);
	return NF_ACCEPT;
}

void *bpf_cast_to_kern_ctx(void *) __ksym __weak;

SEC("tcx/ingress")
int path_tcx_ingress(struct __sk_buff *ctx)
{
	__u32 place;

	pass_if_known(bpf_cast_to_kern_ctx(ctx), STAGE_TCX_INGRESS, &place);
	return -1; /* TCX_NEXT */
}

SEC("cgroup_skb/ingress")
int path_socket_in(struct __sk_buff *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	__u32 place;
	struct path_packet *packet = pass_if_known(skb, STAGE_SOCKET_IN, &place);

	if (packet && options.reads_headers)
		bpf_get_socket_cookie(ctx);
	note_delivery(packet, place, skb, BPF_CORE_READ(skb, sk));
	return 1;
}

SEC("cgroup_skb/egress")
int path_socket_out(struct __sk_buff *ctx)
{
	__u32 place;
	struct path_packet *packet = leave(bpf_cast_to_kern_ctx(ctx), STAGE_SOCKET_OUT, 0, &place);
	struct path_identity *identity;

	if (!packet || packet->is_ignored || !options.reads_headers)
		return 1;
	identity = bpf_map_lookup_elem(&path_identities, &place);
	if (identity)
		identity->socket_cookie = bpf_get_socket_cookie(ctx);
	return 1;
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(path_tcp_receive, struct sock *sk, struct sk_buff *skb)
{
	__u32 place;
	struct path_packet *packet = pass_if_known(skb, STAGE_TCP_RECEIVE, &place);

	if (packet && options.reads_headers)
		bpf_get_socket_cookie(sk);
	note_delivery(packet, place, skb, sk);
	return 0;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(path_queue, struct sk_buff *skb)
{
	__u32 place;

	leave(skb, STAGE_QUEUE, 0, &place);
	return 0;
}

/* A queue discipline of another network namespace may have an sk_buff that was delivered before. */
static __always_inline void wait_in_queue(struct sk_buff *skb, const __u32 stage)
{
	__u32 place;
	struct path_packet *packet = find_packet(skb, &place);

	if (packet && !(packet->seen & (DELIVERING | LEAVING)))
		pass(packet, stage);
}

SEC("tp_btf/qdisc_enqueue")
int BPF_PROG(path_qdisc_enqueue, void *qdisc, const void *queue, struct sk_buff *skb)
{
	wait_in_queue(skb, STAGE_QDISC_ENQUEUE);
	return 0;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(path_qdisc_dequeue, void *qdisc, const void *queue, int packets, struct sk_buff *skb)
{
	if (skb)
		wait_in_queue(skb, STAGE_QDISC_DEQUEUE);
	return 0;
}

/* The interface by which a packet leaves: the last one, where one interface stands on another. */
static __always_inline void note_interface(struct path_packet *packet, const struct net_device *dev)
{
	if (!packet->is_ignored && options.writes_records)
		packet->interface_out = dev->ifindex;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(path_start_xmit, struct sk_buff *skb, struct net_device *dev)
{
	__u32 place;
	struct path_packet *packet = leave(skb, STAGE_START_XMIT, 0, &place);

	if (!packet)
		return 0;
	note_interface(packet, dev);
	if (!(options.stages & BIT(STAGE_XMIT)))
		end_packet(packet, *(volatile __u64 *)&packet->tag, place, PATH_UNKNOWN, 1);
	return 0;
}

/*
 * The driver has taken the packet, or not (NETDEV_TX_BUSY), and may have freed it, or given it to the peer, where it
 * has begun anew: then its last stage is another one.
 */
SEC("tp_btf/net_dev_xmit")
int BPF_PROG(path_xmit, struct sk_buff *skb, int status, struct net_device *dev, unsigned int length)
{
	__u32 place;
	struct path_packet *packet = find_packet(skb, &place);

	if (packet && packet->last_stage == STAGE_START_XMIT && !(status & 0xf0)) {
		pass(packet, STAGE_XMIT);
		end_packet(packet, *(volatile __u64 *)&packet->tag, place, PATH_UNKNOWN, 1);
	}
	return 0;
}

SEC("tp_btf/skb_copy_datagram_iovec")
int BPF_PROG(path_copy, const struct sk_buff *skb, int bytes)
{
	__u32 place;

	pass_if_known(skb, STAGE_COPY, &place);
	return 0;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(path_drop, struct sk_buff *skb, void *location, unsigned int reason)
{
	__u32 place, cpu = bpf_get_smp_processor_id();
	__u32 element = cpu * PATH_REASONS_MAX + (reason < PATH_REASONS_MAX ? reason : PATH_REASONS_MAX - 1);
	struct path_drops *drops = bpf_map_lookup_elem(&path_drops, &element);
	struct path_packet *packet = find_packet(skb, &place);

	if (drops)
		count(&drops->all);
	if (!packet)
		return 0;
	if (drops && !packet->is_ignored && packet->last_stage < PATH_STAGE_COUNT)
		count(&drops->followed[packet->last_stage]);
	packet->reason = reason;
	pass(packet, STAGE_DROP);
	end_packet(packet, *(volatile __u64 *)&packet->tag, place, PATH_DROPPED, 0);
	return 0;
}

SEC("tp_btf/consume_skb")
int BPF_PROG(path_consume, struct sk_buff *skb, void *location)
{
	end_at(skb, STAGE_CONSUME);
	return 0;
}

/* ---- sweeps -------------------------------------------------------------------------------------- */

/* From where the sweep goes on, and how many packets it ended: in and out of its only caller. */
__u32 sweep_from;
__u32 swept;
#define SWEEP_PLACES 8192u

static long sweep_place(__u64 step, void *context)
{
	__u32 place = (sweep_from + (__u32)step) & ((1u << options.table_bits) - 1);
	struct path_packet *packet = packet_at(place);
	__u64 tag = packet ? *(volatile __u64 *)&packet->tag : 0;

	if (tag > TAG_TAKEN && end_packet(packet, tag, place, PATH_OPEN, 0))
		swept++;
	return 0;
}

/* Run at the end, when nothing is attached: ends the packets of SWEEP_PLACES places. */
SEC("syscall")
int path_sweep(void *context)
{
	bpf_loop(SWEEP_PLACES, sweep_place, 0, 0);
	sweep_from += SWEEP_PLACES;
	return 0;
}

/* Brings the records into the object's type information, which the layout test reads. */
union {
	struct path_record record;
	struct path_read_record read;
} *described_records;

char LICENSE[] SEC("license") = "Dual MIT/GPL";
