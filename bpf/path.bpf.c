// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The path instrument: when each packet passed which stage of the kernel. Every stage is a program of
 * its own, and only those that are asked for are attached. A stage looks up the packet, takes the
 * time, and notes it; at the packet's end the times go into histograms and, if asked for, a record.
 */
#include "path_replaced.h"
#include "path_drop.h"
#include "path_noise.h"
#include "path_read.h"

/* ---- stages ------------------------------------------------------------------------------------ */

/*
 * A stage where packets come in. A packet that is there already is the same only if it came from a stage before, with its
 * data where it was. A bridge lets a packet pass `receive` twice: the first time, it gets the number of its interface.
 * Between both, br_netfilter lets it pass `pre_routing`.
 */
static __always_inline void arrive(struct sk_buff *skb, const __u32 stage)
{
	struct path_packet *packet;
	__u32 place;

	if (has_generic_xdp && skb->skb_iif)
		follow_replaced(skb);
	packet = find_packet(skb, &place);
	if (packet && (packet->last_stage < stage ? packet->head == head_of(skb) :
		       packet->last_stage <= STAGE_PRE_ROUTING && stage == STAGE_RECEIVE && skb->skb_iif))
		pass(packet, (__u64)skb, stage);
	else
		begin_packet(skb, stage, 0, 0, 0);
}

/* Whether an interface that stands on another one has given a packet on as it is; a tunnel puts headers before it. */
static __always_inline int is_given_on(const struct path_packet *packet, const struct sk_buff *skb)
{
	return packet->seen & STACKED && packet->stacked_bytes == (__u8)skb->len;
}

/* Whether a packet can be the one at a stage below the queue: nothing comes there twice, or past the queue. */
static __always_inline int is_leaving(const struct path_packet *packet, const struct sk_buff *skb, const __u32 stage)
{
	return (!(packet->seen & (DELIVERING | LEAVING)) || is_given_on(packet, skb)) &&
	       (stage <= STAGE_QUEUE || !(options.stages & BIT(STAGE_QUEUE)) || packet->seen & BIT(STAGE_QUEUE));
}

/*
 * A stage on the way out. Packets of this host begin at the first one that is attached; those that are forwarded
 * have the number of the interface at which they came in.
 */
static __always_inline struct path_packet *leave(struct sk_buff *skb, const __u32 stage, __u32 netns, __u32 *place)
{
	struct path_packet *packet;
	struct path_gso *gso;
	int is_ours = !skb->skb_iif;

	/* Not a copy that an interface mirrors. */
	if (has_generic_xdp && !is_ours && !BPF_CORE_READ_BITFIELD(skb, cloned))
		follow_replaced(skb);
	packet = find_packet(skb, place);
	if (packet && is_leaving(packet, skb, stage) && (!is_ours || !(packet->seen & ARRIVING))) {
		if (!pass(packet, (__u64)skb, stage))
			return 0;
		packet->head = head_of(skb);
		packet->seen &= ~JOINED; /* a forwarded datagram goes on as its fragments */
		return packet;
	}
	gso = stage == STAGE_START_XMIT ? gso_of(skb) : 0;
	if (!gso && !is_ours && options.stages & ARRIVING)
		return 0;
	begin_packet(skb, stage, netns, 0, gso);
	if (!gso && is_ours)
		return 0;
	packet = find_packet(skb, place);
	if (packet && !gso)
		packet->seen |= CAME_IN;
	return gso ? packet : 0;
}

/*
 * A stage on the way in, at which no packet begins. A packet that this host sends begins anew when it comes in, here or in
 * another network namespace: if its arrival was not seen, it has left, or something else has its sk_buff.
 */
static __always_inline struct path_packet *pass_if_known(const struct sk_buff *skb, const __u32 stage, __u32 *place)
{
	struct path_packet *packet;

	if (has_generic_xdp)
		follow_replaced(skb);
	packet = find_packet(skb, place);
	if (!packet)
		return 0;
	if (options.stages & ARRIVING && !(packet->seen & ARRIVING)) {
		end_packet(*place, tag_of(packet, skb), END_AS(PATH_UNKNOWN), 0, 0);
		return 0;
	}
	return pass(packet, (__u64)skb, stage) ? packet : 0;
}

/*
 * Some drivers give a packet to GRO whose headers are still in a page, which no program can read: where they are asked
 * for, it begins at `receive`, for which GRO has copied them.
 */
static __always_inline void begin_at_gro(struct sk_buff *skb, int has_headers)
{
	struct path_packet *packet;
	__u32 place;

	if (has_headers || (!options.filter_length && !options.reads_headers)) {
		begin_packet(skb, STAGE_GRO, 0, 0, 0);
		return;
	}
	packet = find_packet(skb, &place);
	if (packet)
		end_packet(place, tag_of(packet, skb), END_AS(PATH_UNKNOWN), 0, 1);
}

SEC("tp_btf/napi_gro_receive_entry")
int BPF_PROG(path_gro, struct sk_buff *skb)
{
	/* virtio_net copies the header of Ethernet only, of packets that fill their buffers. */
	begin_at_gro(skb, !skb->data_len || skb->len - skb->data_len >= IPV4_HEADER_BYTES);
	return 0;
}

SEC("tp_btf/napi_gro_frags_entry")
int BPF_PROG(path_gro_frags, struct sk_buff *skb)
{
	begin_at_gro(skb, 0);
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
	if (skb->dev->xdp_prog)
		note_replaceable(skb);
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

SEC("netfilter")
int path_local_in(struct bpf_nf_ctx *ctx)
{
	__u32 place;
	struct path_packet *packet = pass_if_known(ctx->skb, STAGE_LOCAL_IN, &place);

	/* IPv4 has joined fragments: the last one to come has the data of all. IPv6 is about to. */
	if (packet)
		packet->head = head_of(ctx->skb);
	if (packet && is_ipv6_fragment(ctx->skb)) {
		packet->head = 0;
		if (is_early_fragment(ctx->skb))
			packet->seen |= JOINED;
	}
	note_delivery(packet, place, ctx->skb, 0);
	if (packet && !packet->is_ignored && options.stages & BIT(STAGE_DATA_READY))
		note_addressee(ctx->skb, ctx->state->net);
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
	/* The packet itself gets its device behind this hook. */
	begin_packet(ctx->skb, STAGE_LOCAL_OUT, BPF_CORE_READ(ctx->state, net, ns.inum),
		     BPF_CORE_READ(ctx->state, out, ifindex), 0);
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
	if (packet && !packet->is_ignored && options.stages & BIT(STAGE_DROP) && is_refused(ctx))
		packet->seen |= REFUSED;
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
	note_reception(packet, skb, sk);
	return 0;
}

/*
 * Remembers a GSO packet. One of a network namespace that is not asked for would take the place of another; its segments
 * are left out without it.
 */
static __always_inline void remember(struct path_packet *packet, struct sk_buff *skb, __u32 place)
{
	if (!segments_of(skb) ||
	    (packet->is_ignored && options.netns_inode && netns_of(skb) != options.netns_inode))
		return;
	packet->seen |= REMEMBERED;
	remember_gso(packet, skb, place);
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(path_queue, struct sk_buff *skb)
{
	struct path_packet *packet;
	__u32 place;

	leave(skb, STAGE_QUEUE, 0, &place);
	if (!(options.stages & BIT(STAGE_START_XMIT)) || !segments_of(skb))
		return 0;
	packet = find_packet(skb, &place);
	if (packet)
		remember(packet, skb, place);
	return 0;
}

SEC("tp_btf/qdisc_enqueue")
int BPF_PROG(path_qdisc_enqueue, void *qdisc, const void *queue, struct sk_buff *skb)
{
	__u32 place;
	struct path_packet *packet = find_packet(skb, &place);

	/* A discipline of another network namespace may have an sk_buff that was delivered before. */
	if (packet && is_leaving(packet, skb, STAGE_QDISC_ENQUEUE))
		pass(packet, (__u64)skb, STAGE_QDISC_ENQUEUE);
	return 0;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(path_qdisc_dequeue, void *qdisc, const void *queue, int packets, struct sk_buff *skb)
{
	struct path_packet *packet;
	struct path_gso *gso;
	__u32 place;

	if (!skb)
		return 0;
	packet = find_packet(skb, &place);
	if (packet && is_leaving(packet, skb, STAGE_QDISC_DEQUEUE)) {
		if (pass(packet, (__u64)skb, STAGE_QDISC_DEQUEUE))
			remember(packet, skb, place);
		return 0;
	}
	/* Some queue disciplines segment what they queue. */
	gso = gso_of(skb);
	if (gso)
		begin_packet(skb, STAGE_QDISC_DEQUEUE, 0, 0, gso);
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
	if (segments_of(skb))
		forget_gso(packet, skb);
	else if (packet->seen & REMEMBERED)
		take_first_segment(packet, skb);
	note_interface(packet, dev);
	/* A bridge, bond, VLAN or MACVLAN gives it to the interface below, where it is sent. */
	if (dev->lower_level > 1) {
		packet->seen |= STACKED;
		packet->stacked_bytes = skb->len;
		return 0;
	}
	packet->seen &= ~STACKED;
	if (!(options.stages & BIT(STAGE_XMIT)))
		end_packet(place, tag_of(packet, skb), END_AS(PATH_UNKNOWN), 0, 1);
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
		if (pass(packet, (__u64)skb, STAGE_XMIT))
			end_packet(place, tag_of(packet, skb), END_AS(PATH_UNKNOWN), 0, 1);
	}
	return 0;
}

/* Data that is read from other sockets, such as AF_UNIX, are no packets. */
SEC("tp_btf/skb_copy_datagram_iovec")
int BPF_PROG(path_copy, const struct sk_buff *skb, int bytes)
{
	__u32 place;
	struct path_packet *packet = find_packet(skb, &place);

	if (packet && packet->seen & DELIVERING && is_same(packet, skb))
		pass(packet, (__u64)skb, STAGE_COPY);
	return 0;
}

/*
 * A queue discipline that segments what it queues, as tbf does, drops single segments, which have passed no stage. Only
 * its reasons count: a packet socket that frees a copy of a segment does so with another one.
 */
static __noinline int drop_segment(struct sk_buff *skb, __u32 reason)
{
	struct path_packet *packet;
	struct path_gso *gso;
	__u32 place;

	if (!skb || reason < options.queue_reasons[0] || reason >= options.queue_reasons[1])
		return 0;
	gso = gso_of(skb);
	if (!gso)
		return 0;
	begin_packet(skb, STAGE_QUEUE, 0, 0, gso);
	packet = find_packet(skb, &place);
	if (packet)
		end_packet(place, tag_of(packet, skb), END(PATH_DROPPED, STAGE_DROP, reason), 0, 0);
	return 0;
}

static __always_inline int drop_packet(struct sk_buff *skb, __u32 reason)
{
	struct path_packet *packet;
	__u32 place, marks = 0;
	__u64 end;

	if (!skb)
		return 0;
	if (has_generic_xdp)
		follow_replaced(skb);
	packet = find_packet(skb, &place);
	if (!packet) {
		count_drop(reason);
		return drop_segment(skb, reason);
	}
	/* The kernel gives none to some of what a full accept queue refuses. */
	if (packet->seen & REFUSED && reason == UNSPECIFIED && is_same(packet, skb))
		reason = options.refused_reason;
	count_drop(reason);
	if (!is_same(packet, skb) || is_copy(skb, reason) || is_of_another_netns(packet, skb) ||
	    has_another_header(packet, skb, place)) {
		end_packet(place, tag_of(packet, skb), END_AS(PATH_UNKNOWN), 0, 0);
		return drop_segment(skb, reason);
	}
	end_all_joined(skb);
	if (reason == UNSPECIFIED && was_joined(packet, skb)) {
		end = END_AS(PATH_UNKNOWN);
		marks = JOINED;
	} else if (is_delivered(packet, skb, reason)) {
		end = END(PATH_DELIVERED, STAGE_PAD, reason);
	} else if (may_be_delivered(packet, skb, reason)) {
		end = END(PATH_UNKNOWN, STAGE_PAD, reason);
	} else if (was_segmented_for_a_queue(packet, skb)) {
		end = END(PATH_UNKNOWN, STAGE_PAD, reason);
		marks = SEGMENTED;
	} else {
		end = END(PATH_DROPPED, STAGE_DROP, reason);
	}
	end_packet(place, tag_of(packet, skb), end, marks, 0);
	return 0;
}

static __always_inline int consume_packet(struct sk_buff *skb)
{
	__u64 end = END_AS(PATH_UNKNOWN);
	struct path_packet *packet;
	__u32 place, marks = 0;

	if (!skb)
		return 0;
	if (has_generic_xdp && !is_replaced(skb))
		follow_replaced(skb);
	packet = find_packet(skb, &place);
	if (!packet)
		return 0;
	if (is_same(packet, skb)) {
		end = END(PATH_UNKNOWN, STAGE_CONSUME, 0);
		if (packet->seen & REFUSED) {
			count_drop(options.refused_reason);
			end = END(PATH_DROPPED, STAGE_DROP, options.refused_reason);
		} else if (was_joined(packet, skb)) {
			marks = JOINED;
		} else if (was_segmented(packet, skb)) {
			marks = SEGMENTED;
		}
	}
	end_packet(place, tag_of(packet, skb), end, marks, 0);
	return 0;
}

/* In a function of its own: in sight of the comparison, the compiler would use the number in the place of the pointer. */
static __noinline int is_followed(const struct sk_buff *skb)
{
	__u32 place;

	return find_packet(skb, &place) != 0;
}

/*
 * Two programs for each event: the kernel does not run one that it interrupts, and packets come while other sockets free
 * their data. A packet whose end no program saw would be called delivered if it has passed `local_in`. The second program
 * finds no packet that the first has ended. Of other sk_buffs it counts the drop while the first is interrupted.
 */
SEC("tp_btf/kfree_skb")
int BPF_PROG(path_drop, struct sk_buff *skb, void *location, unsigned int reason)
{
	struct path_cpu *now = this_cpu();

	if (now)
		*(volatile __u32 *)&now->is_dropping = 1;
	drop_packet(skb, reason);
	if (now)
		*(volatile __u32 *)&now->is_dropping = 0;
	return 0;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(path_drop_2, struct sk_buff *skb, void *location, unsigned int reason)
{
	struct path_cpu *now = this_cpu();

	if ((now && *(volatile __u32 *)&now->is_dropping) || is_followed(skb))
		drop_packet(skb, reason);
	return 0;
}

SEC("tp_btf/consume_skb")
int BPF_PROG(path_consume, struct sk_buff *skb, void *location)
{
	return consume_packet(skb);
}

SEC("tp_btf/consume_skb")
int BPF_PROG(path_consume_2, struct sk_buff *skb, void *location)
{
	return consume_packet(skb);
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

	if (tag > TAG_TAKEN && end_packet(place, tag, END_AS(PATH_OPEN), 0, 0))
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
