//! `p4/sequencer.p4` and its control plane without any P4 tool: the program's header is that of
//! `oum`, and the suite, on loopback, against a switch that runs the program's text.

mod suite;
mod v1model;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oum::{Header, Session};
use sequencer::p4::{self, Host};
use smr::GroupId;
use suite::{Ending, Site};
use v1model::Switch;
use v1model::syntax::{Expression, Statement};

const PROGRAM: &str = include_str!("../p4/sequencer.p4");
/// Bytes before a message: Ethernet, IPv4, UDP.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;

fn bits(bytes: &[u8], from: u32, width: u32) -> u128 {
    (from..from + width)
        .fold(0, |value, at| value << 1 | u128::from(bytes[at as usize / 8] >> (7 - at % 8) & 1))
}

#[test]
fn the_programs_header_is_that_of_oum() {
    let switch = Switch::new(PROGRAM);
    let header = Header {
        group: GroupId(0x0102_0304_0506_0708),
        session: Session(0xa1a2_a3a4),
        sequence: 0xf1f2_f3f4_f5f6_f7f8,
        payload_crc: 0xc1c2_c3c4,
        length: 0x1112_1314,
    };
    let bytes = header.encode();
    let constant = |name: &str| switch.constant(&Expression::Name(name.to_owned()));
    let mut at = 0;
    for (name, width) in switch.header("oum") {
        let found = bits(&bytes, at, *width);
        let expected = match name.as_str() {
            "magic" => constant("OUM_MAGIC"),
            "version" => constant("OUM_VERSION"),
            "checksum" => found, // proven by the suite
            "session" => u128::from(header.session.0),
            "group" => u128::from(header.group.0),
            "sequence" => u128::from(header.sequence),
            "payload_crc" => u128::from(header.payload_crc),
            "length" => u128::from(header.length),
            other => panic!("oum has no {other}"),
        };
        assert_eq!(found, expected, "{name} at bit {at}");
        at += width;
    }
    assert_eq!(at as usize, 8 * bytes.len());
    assert_eq!(constant("OUM_HEADER_BYTES") as usize, bytes.len());
}

/// A checksum covers each field but itself, and the two of messages the same ones.
#[test]
fn checksums_cover_the_whole_header() {
    let switch = Switch::new(PROGRAM);
    for control in ["SequencerVerify", "SequencerCompute"] {
        for statement in &switch.program.controls[control].apply {
            let Statement::Call(_, arguments) = statement else { panic!("{statement:?}") };
            let [_, Expression::List(fields), Expression::Name(own), _] = &arguments[..] else {
                panic!("{arguments:?}")
            };
            let header = own.strip_prefix("hdr.").and_then(|own| own.strip_suffix(".checksum"));
            let header = header.expect("a header's checksum");
            let covered = fields.iter().map(|field| match field {
                Expression::Name(name) => name.clone(),
                other => panic!("{other:?}"),
            });
            let all = switch.header(header).iter().map(|(name, _)| format!("hdr.{header}.{name}"));
            let all: Vec<String> = all.filter(|name| name != own).collect();
            assert_eq!(covered.collect::<Vec<_>>(), all, "{control}");
        }
    }
}

fn ip(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, host)
}

fn socket(host: u8) -> UdpSocket {
    UdpSocket::bind((ip(host), 0)).expect("a socket")
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => panic!("IPv6"),
    }
}

/// Behind the switch: the sequencer, three members, and whoever is outside.
const SEQUENCER: u8 = 1;
const OUTSIDE: u8 = 5;

fn host(number: u8) -> Host {
    Host { address: ip(number), port: u16::from(number), hardware: [2, 0, 0, 0, 0, number] }
}

fn internet_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The frame that carries a datagram to the sequencer.
fn frame(payload: &[u8], from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let (total, length) = (IPV4 + UDP + payload.len(), UDP + payload.len());
    let mut ipv4 = [0; IPV4];
    ipv4[0] = 0x45;
    ipv4[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    ipv4[6] = 0x40;
    (ipv4[8], ipv4[9]) = (64, 17);
    ipv4[12..16].copy_from_slice(&from.ip().octets());
    ipv4[16..20].copy_from_slice(&to.ip().octets());
    let sum = !internet_sum(&ipv4);
    ipv4[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::from(host(SEQUENCER).hardware);
    frame.extend_from_slice(&host(OUTSIDE).hardware);
    frame.extend_from_slice(&[0x08, 0x00]);
    frame.extend_from_slice(&ipv4);
    for word in [from.port(), to.port(), length as u16, 0xbeef] {
        frame.extend_from_slice(&word.to_be_bytes());
    }
    frame.extend_from_slice(payload);
    frame
}

/// The hosts behind the switch, as sockets of this machine.
struct Cable {
    switch: Arc<Mutex<Switch>>,
    /// Where senders and the controller send to, and what the control plane sees of it.
    entrance: UdpSocket,
    inside: UdpSocket,
    control: SocketAddr,
    /// Who has asked last.
    asker: Mutex<Option<SocketAddr>>,
    stop: AtomicBool,
}

impl Cable {
    /// Passes on what comes in until it is stopped.
    fn inward(&self) {
        self.pass(&self.entrance, |payload, from| {
            let to = v4(self.entrance.local_addr().expect("bound"));
            let frame = frame(payload, v4(from), to);
            let port = host(OUTSIDE).port;
            for (port, sent) in self.switch.lock().expect("no panic").frame(port, &frame) {
                self.arrive(port, &sent, to, from);
            }
        });
    }

    /// A frame leaves the switch.
    fn arrive(&self, port: u16, frame: &[u8], entrance: SocketAddrV4, from: SocketAddr) {
        let (ethernet, ipv4) = (&frame[..ETHERNET], &frame[ETHERNET..ETHERNET + IPV4]);
        let udp = &frame[ETHERNET + IPV4..ETHERNET + IPV4 + UDP];
        let payload = &frame[ETHERNET + IPV4 + UDP..];
        assert_eq!(internet_sum(ipv4), 0xffff, "the checksum of IPv4");
        let address = Ipv4Addr::new(ipv4[16], ipv4[17], ipv4[18], ipv4[19]);
        let to = SocketAddrV4::new(address, u16::from_be_bytes([udp[2], udp[3]]));
        let expected = host(address.octets()[3]);
        assert_eq!((port, &ethernet[..6]), (expected.port, &expected.hardware[..]), "{to}");
        if to == entrance {
            *self.asker.lock().expect("no panic") = Some(from);
            self.inside.send_to(payload, self.control).expect("sent");
        } else {
            assert_eq!(udp[6..], [0, 0], "no checksum of UDP");
            self.entrance.send_to(payload, to).expect("sent");
        }
    }

    /// Passes the control plane's answers on until it is stopped.
    fn outward(&self) {
        self.pass(&self.inside, |answer, _| {
            let asker = self.asker.lock().expect("no panic").expect("it was asked");
            self.entrance.send_to(answer, asker).expect("sent");
        });
    }

    fn pass(&self, from: &UdpSocket, each: impl Fn(&[u8], SocketAddr)) {
        let mut buffer = vec![0; 1 << 16];
        // Relaxed: the flag stands for itself.
        while !self.stop.load(Ordering::Relaxed) {
            match from.recv_from(&mut buffer) {
                Ok((length, sender)) => each(&buffer[..length], sender),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn the_switch_conforms() {
    let switch = Arc::new(Mutex::new(Switch::new(PROGRAM)));
    let control = socket(SEQUENCER);
    let cable = Cable {
        switch: Arc::clone(&switch),
        entrance: socket(SEQUENCER),
        inside: socket(SEQUENCER),
        control: control.local_addr().expect("bound"),
        asker: Mutex::new(None),
        stop: AtomicBool::new(false),
    };
    for socket in [&cable.entrance, &cable.inside] {
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    }
    let listen = cable.entrance.local_addr().expect("bound");
    let hosts: Vec<Host> = (SEQUENCER..=OUTSIDE).map(host).collect();
    let ask = Box::new(move |command: &str| Ok(switch.lock().expect("no panic").command(command)));
    let plane = p4::Switch::open(ask, v4(listen), hosts, control, Box::new(|_| ()));
    let plane = plane.expect("a sequencer");
    let site = Site {
        sequencer: listen,
        outside: socket(OUTSIDE),
        members: (2..OUTSIDE).map(socket).collect(),
    };
    let counts = std::thread::scope(|scope| {
        let running = scope.spawn(|| plane.run(&cable.stop).expect("no error"));
        scope.spawn(|| cable.inward());
        scope.spawn(|| cable.outward());
        let ending = Ending(&cable.stop);
        suite::run(&site);
        drop(ending);
        running.join().expect("no panic")
    });
    println!("{counts}");
    assert!(counts.stamped > 500 && counts.unreadable > 30, "{counts}");
    assert!(counts.restamped == 4 && counts.unknown_group == 1, "{counts}");
}

#[test]
fn what_is_not_for_the_sequencer_is_switched() {
    let mut switch = Switch::new(PROGRAM);
    for command in [
        "mc_mgrp_create 4095",
        "mc_node_create 0 1 2 3",
        "mc_node_associate 4095 1",
        "table_add SequencerIngress.forwarding SequencerIngress.forward 0x020000000001 => 1",
    ] {
        let answer = switch.command(command);
        assert!(!answer.starts_with("Error") && !answer.starts_with("Invalid"), "{answer}");
    }
    let mut message = Vec::new();
    oum::Sender::new(GroupId(1)).message(b"of another sequencer", &mut message);
    let (from, to) = (SocketAddrV4::new(ip(OUTSIDE), 7), SocketAddrV4::new(ip(SEQUENCER), 8));
    let known = frame(&message, from, to);
    assert_eq!(switch.frame(3, &known), [(1, known.clone())]);
    assert_eq!(switch.frame(1, &known), [], "it comes from there");
    let mut unknown = known;
    unknown[5] = 0xee;
    assert_eq!(switch.frame(3, &unknown), [(1, unknown.clone()), (2, unknown.clone())]);
    let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 5, 0x08, 0x06], &[1; 28]].concat();
    assert_eq!(switch.frame(2, &arp), [(1, arp.clone()), (3, arp.clone())]);
}
