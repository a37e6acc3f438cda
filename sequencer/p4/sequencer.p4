// The sequencer as a P4-16 program for switches of the model v1model ([NOPaxos] 4.2.1): stamps
// messages on their way through the switch and replicates them to the members of their group. All
// other frames are switched by their hardware address. IPv4 without options; no fragments.
//
// A session is one entry of `groups`: its number, its place in `counters` and its multicast group.
// The next session has another place and another multicast group, prepared before the entry is
// replaced, which the switch does as a whole: a message gets the next number of the old session or
// the first of the new one, never a mixture, and no number twice. A place is read and written
// within one action, which v1model does not interleave with others.
//
// Tables are filled by sequencer/src/p4.rs; sequencer/tests/p4.rs compares names and layouts.

#include <core.p4>
#include <v1model.p4>

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> UDP_HEADER_BYTES = 8;

// oum/src/header.rs
const bit<8> OUM_MAGIC = 0x4f;
const bit<8> OUM_VERSION = 1;
const bit<32> OUM_HEADER_BYTES = 32;

// Two places for each of 256 groups.
const bit<32> PLACES = 512;
// The multicast group of all ports.
const bit<16> ALL_PORTS = 4095;

// Places in `counts`.
const bit<32> STAMPED = 0;
const bit<32> UNREADABLE = 1;
const bit<32> RESTAMPED = 2;
const bit<32> UNKNOWN_GROUP = 3;
const bit<32> COUNTS = 4;

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> ethertype;
}

header ipv4_t {
    bit<4> version;
    bit<4> header_words;
    bit<8> service;
    bit<16> total_length;
    bit<16> identification;
    bit<1> reserved;
    bit<1> dont_fragment;
    bit<1> more_fragments;
    bit<13> fragment_offset;
    bit<8> time_to_live;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

header udp_t {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

header oum_t {
    bit<8> magic;
    bit<8> version;
    bit<16> checksum;
    bit<32> session;
    bit<64> group;
    bit<64> sequence;
    bit<32> payload_crc;
    bit<32> length;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    oum_t oum;
}

struct metadata_t {
    // It is addressed to the sequencer.
    bit<1> entered;
    // It has its number.
    bit<1> stamped;
}

parser SequencerParser(
    packet_in packet,
    out headers_t hdr,
    inout metadata_t meta,
    inout standard_metadata_t standard_metadata)
{
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(
            hdr.ipv4.header_words,
            hdr.ipv4.more_fragments,
            hdr.ipv4.fragment_offset,
            hdr.ipv4.protocol)
        {
            (4w5, 1w0, 13w0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(packet.lookahead<bit<8>>()) {
            OUM_MAGIC: parse_oum;
            default: accept;
        }
    }

    // What is too short for the header goes on without one, and is no message.
    state parse_oum {
        packet.extract(hdr.oum);
        transition accept;
    }
}

control SequencerVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(
            hdr.oum.isValid(),
            {
                hdr.oum.magic,
                hdr.oum.version,
                hdr.oum.session,
                hdr.oum.group,
                hdr.oum.sequence,
                hdr.oum.payload_crc,
                hdr.oum.length
            },
            hdr.oum.checksum,
            HashAlgorithm.csum16);
    }
}

control SequencerIngress(
    inout headers_t hdr,
    inout metadata_t meta,
    inout standard_metadata_t standard_metadata)
{
    register<bit<64>>(PLACES) counters;
    counter(COUNTS, CounterType.packets) counts;

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action flood() {
        standard_metadata.mcast_grp = ALL_PORTS;
    }

    action enter() {
        meta.entered = 1;
    }

    action refuse(bit<32> reason) {
        counts.count(reason);
        mark_to_drop(standard_metadata);
    }

    action stamp(bit<32> session, bit<32> place, bit<16> members) {
        bit<64> last;
        counters.read(last, place);
        last = last + 1;
        counters.write(place, last);
        hdr.oum.session = session;
        hdr.oum.sequence = last;
        // None: the payload has a checksum of its own.
        hdr.udp.checksum = 0;
        meta.stamped = 1;
        standard_metadata.mcast_grp = members;
        counts.count(STAMPED);
    }

    table forwarding {
        key = { hdr.ethernet.destination: exact; }
        actions = { forward; flood; }
        default_action = flood();
        size = 1024;
    }

    // Where senders send to.
    table entrances {
        key = {
            hdr.ipv4.destination: exact;
            hdr.udp.destination: exact;
        }
        actions = { enter; NoAction; }
        default_action = NoAction();
        size = 16;
    }

    table groups {
        key = { hdr.oum.group: exact; }
        actions = { stamp; refuse; }
        default_action = refuse(UNKNOWN_GROUP);
        size = 256;
    }

    apply {
        meta.entered = 0;
        meta.stamped = 0;
        if (hdr.oum.isValid()) {
            entrances.apply();
        }
        if (meta.entered == 0) {
            forwarding.apply();
        } else if (standard_metadata.checksum_error == 1
            || hdr.oum.version != OUM_VERSION
            || (bit<32>)(hdr.udp.length - UDP_HEADER_BYTES) != OUM_HEADER_BYTES + hdr.oum.length)
        {
            refuse(UNREADABLE);
        } else if (hdr.oum.session != 0 || hdr.oum.sequence != 0) {
            refuse(RESTAMPED);
        } else {
            groups.apply();
        }
    }
}

control SequencerEgress(
    inout headers_t hdr,
    inout metadata_t meta,
    inout standard_metadata_t standard_metadata)
{
    action drop() {
        mark_to_drop(standard_metadata);
    }

    action address(bit<48> hardware, bit<32> host, bit<16> port) {
        hdr.ethernet.destination = hardware;
        hdr.ipv4.destination = host;
        hdr.udp.destination = port;
    }

    // By the copy's number, which no two members of any sessions share.
    table members {
        key = { standard_metadata.egress_rid: exact; }
        actions = { address; drop; }
        default_action = drop();
        size = 4096;
    }

    apply {
        if (meta.stamped == 1) {
            members.apply();
        } else if (standard_metadata.egress_port == standard_metadata.ingress_port) {
            // A flooded frame does not go back.
            drop();
        }
    }
}

control SequencerCompute(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            meta.stamped == 1,
            {
                hdr.oum.magic,
                hdr.oum.version,
                hdr.oum.session,
                hdr.oum.group,
                hdr.oum.sequence,
                hdr.oum.payload_crc,
                hdr.oum.length
            },
            hdr.oum.checksum,
            HashAlgorithm.csum16);
        update_checksum(
            meta.stamped == 1,
            {
                hdr.ipv4.version,
                hdr.ipv4.header_words,
                hdr.ipv4.service,
                hdr.ipv4.total_length,
                hdr.ipv4.identification,
                hdr.ipv4.reserved,
                hdr.ipv4.dont_fragment,
                hdr.ipv4.more_fragments,
                hdr.ipv4.fragment_offset,
                hdr.ipv4.time_to_live,
                hdr.ipv4.protocol,
                hdr.ipv4.source,
                hdr.ipv4.destination
            },
            hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

control SequencerDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.oum);
    }
}

V1Switch(
    SequencerParser(),
    SequencerVerify(),
    SequencerIngress(),
    SequencerEgress(),
    SequencerCompute(),
    SequencerDeparser()
) main;
