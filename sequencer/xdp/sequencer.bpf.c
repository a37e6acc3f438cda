// The sequencer as an XDP program ([NOPaxos] 4.2): stamps messages where they come in and sends a
// copy out of every interface behind which the group has a member, without waking a process.
//
// `stamp` runs where messages arrive. `fan_out` runs for each copy on its way out: it addresses the
// copy to the member, or drops it where the group has none. `unsequenced` is `stamp` without
// numbers, to compare with. Sessions are opened by the loader, through the maps.
//
// A group's counter is one entry, replaced as a whole when a session begins: a message that is
// being stamped at that moment gets the next number of the old session, never a mixture.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAGIC 0x4f
#define VERSION 1
#define GROUPS 4096
#define INTERFACES 64

// oum/src/header.rs
struct oum {
    __u8 magic;
    __u8 version;
    __u16 checksum;
    __u32 session;
    __u64 group;
    __u64 sequence;
    __u32 payload_crc;
    __u32 length;
} __attribute__((packed));

struct counter {
    __u64 last;
    __u32 session;
    __u32 padding;
};

struct place {
    __u64 group; // as in the header
    __u32 interface;
    __u32 padding;
};

struct member {
    __u8 to[ETH_ALEN];
    __u8 from[ETH_ALEN];
    __u32 address; // network order
    __u16 port;    // network order
    __u16 padding;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC); // else an entry could be reused while it is read
    __uint(max_entries, GROUPS);
    __type(key, __u64);
    __type(value, struct counter);
} counters SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, GROUPS * 9);
    __type(key, struct place);
    __type(value, struct member);
} members SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
    __uint(max_entries, INTERFACES);
    __type(key, __u32);
    __type(value, struct bpf_devmap_val);
} interfaces SEC(".maps");

// The port that messages are sent to, in network order.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} port SEC(".maps");

// What was done: stamped, unreadable, stamped before, to unknown groups.
enum { STAMPED, UNREADABLE, RESTAMPED, UNKNOWN_GROUP, COUNTS };
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNTS);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

static __always_inline int refuse(__u32 what)
{
    __u64 *count = bpf_map_lookup_elem(&counts, &what);
    if (count)
        *count += 1;
    return XDP_DROP;
}

static __always_inline __u16 folded(__u32 sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

// RFC 1071, in the byte order of the memory, which the result has, too.
static __always_inline __u16 checksum(const void *header, int bytes)
{
    const __u16 *words = header;
    __u32 sum = 0;
#pragma unroll
    for (int at = 0; at < bytes / 2; at++)
        sum += words[at];
    return ~folded(sum);
}

struct packet {
    struct ethhdr *eth;
    struct iphdr *ip;
    struct udphdr *udp;
    struct oum *oum;
};

// Whether it is a whole datagram over IPv4 that could carry a message.
static __always_inline int parse(struct xdp_md *context, struct packet *packet)
{
    void *data = (void *)(long)context->data;
    void *end = (void *)(long)context->data_end;
    packet->eth = data;
    packet->ip = data + sizeof(struct ethhdr);
    packet->udp = (void *)packet->ip + sizeof(struct iphdr);
    packet->oum = (void *)packet->udp + sizeof(struct udphdr);
    if ((void *)packet->udp + sizeof(struct udphdr) > end)
        return 0;
    if (packet->eth->h_proto != bpf_htons(ETH_P_IP) || packet->ip->ihl != 5)
        return 0;
    if (packet->ip->frag_off & bpf_htons(0x3fff))
        return 0;
    return packet->ip->protocol == IPPROTO_UDP;
}

static __always_inline int sequence(struct xdp_md *context, int numbers)
{
    struct packet packet;
    void *end = (void *)(long)context->data_end;
    __u32 zero = 0;
    __u32 *listening = bpf_map_lookup_elem(&port, &zero);
    if (!listening || !parse(context, &packet) || packet.udp->dest != *listening)
        return XDP_PASS;
    struct oum *oum = packet.oum;
    // Control messages are the loader's; it also counts what is neither.
    if ((void *)(oum + 1) > end || oum->magic != MAGIC)
        return XDP_PASS;
    __u32 bytes = bpf_ntohs(packet.udp->len) - sizeof(struct udphdr);
    if (oum->version != VERSION || checksum(oum, sizeof(*oum)) != 0 ||
        bytes != sizeof(*oum) + bpf_ntohl(oum->length))
        return refuse(UNREADABLE);
    if (oum->session || oum->sequence)
        return refuse(RESTAMPED);
    __u64 group = oum->group;
    struct counter *counter = bpf_map_lookup_elem(&counters, &group);
    if (!counter)
        return refuse(UNKNOWN_GROUP);
    if (numbers) {
        oum->sequence = bpf_cpu_to_be64(__sync_fetch_and_add(&counter->last, 1) + 1);
        oum->session = bpf_htonl(counter->session);
        oum->checksum = 0;
        oum->checksum = checksum(oum, sizeof(*oum));
    }
    // None: the payload has a checksum of its own.
    packet.udp->check = 0;
    __u32 stamped = STAMPED;
    __u64 *count = bpf_map_lookup_elem(&counts, &stamped);
    if (count)
        *count += 1;
    return bpf_redirect_map(&interfaces, 0, BPF_F_BROADCAST);
}

SEC("xdp")
int stamp(struct xdp_md *context)
{
    return sequence(context, 1);
}

SEC("xdp")
int unsequenced(struct xdp_md *context)
{
    return sequence(context, 0);
}

SEC("xdp/devmap")
int fan_out(struct xdp_md *context)
{
    struct packet packet;
    void *end = (void *)(long)context->data_end;
    if (!parse(context, &packet) || (void *)(packet.oum + 1) > end)
        return XDP_DROP;
    struct place place = { .group = packet.oum->group, .interface = context->egress_ifindex };
    struct member *member = bpf_map_lookup_elem(&members, &place);
    if (!member)
        return XDP_DROP;
    __builtin_memcpy(packet.eth->h_dest, member->to, ETH_ALEN);
    __builtin_memcpy(packet.eth->h_source, member->from, ETH_ALEN);
    packet.ip->daddr = member->address;
    packet.ip->check = 0;
    packet.ip->check = checksum(packet.ip, sizeof(struct iphdr));
    packet.udp->dest = member->port;
    return XDP_PASS;
}

// For the far ends of veths: they take redirected packets only with a program of their own.
SEC("xdp")
int pass(struct xdp_md *context)
{
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
