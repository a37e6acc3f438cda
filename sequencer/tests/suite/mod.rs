//! What every sequencer must do ([NOPaxos] 3.2, 4.2, 4.3), whatever it is made of: asked over its
//! sockets alone. Nothing is proven by silence: what must not be forwarded is followed by a message
//! that must be, and has to be the next one that arrives.

#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use oum::{Control, HEADER_BYTES, Header, Life, Sender, Session, Unreadable};
use smr::GroupId;

const PATIENCE: Duration = Duration::from_secs(5);
/// A control message is asked again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// A sequencer that has just started, and the sockets around it.
pub struct Site {
    pub sequencer: SocketAddr,
    /// Of senders, and of the controller.
    pub outside: UdpSocket,
    /// Two or more, each bound to an address of its own.
    pub members: Vec<UdpSocket>,
}

type Check = fn(&Site);

/// Runs the whole suite.
pub fn run(site: &Site) {
    site.prepare();
    let checks: [(&str, Check); 11] = [
        ("a group without a session", a_group_without_a_session_is_not_served),
        ("stamps", messages_are_numbered_from_one_and_reach_every_member),
        ("lengths", any_length_that_fits_a_datagram_arrives_as_it_was_sent),
        ("many groups", every_group_has_its_own_counter_and_members),
        ("opening twice", opening_a_session_twice_changes_nothing),
        ("sessions grow", a_later_session_begins_with_one_and_an_earlier_one_never_again),
        ("another life", what_is_meant_for_another_life_is_refused),
        ("members", a_new_session_may_have_other_members),
        ("nonsense", nonsense_takes_no_number),
        ("checksums", the_renewed_checksum_is_right_for_any_group_and_number),
        ("several senders", several_senders_get_one_order),
    ];
    for (name, check) in checks {
        let start = Instant::now();
        check(site);
        println!("  {name}: {:.0?}", start.elapsed());
    }
}

/// Tells a sequencer to end when it is dropped, by a panic, too.
#[allow(dead_code)] // one of the tests has another way
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Site {
    /// No socket waits for ever.
    pub fn prepare(&self) {
        for socket in self.members.iter().chain([&self.outside]) {
            socket.set_read_timeout(Some(AGAIN)).expect("a timeout");
        }
    }

    /// Asks until it is answered.
    fn ask(&self, question: &Control) -> (Session, Life, u64) {
        let mut datagram = Vec::new();
        question.encode(&mut datagram);
        let mut buffer = [0; 2048];
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.outside.send_to(&datagram, self.sequencer).expect("sent");
            let Ok((length, _)) = self.outside.recv_from(&mut buffer) else { continue };
            let answer = Control::decode(&Bytes::copy_from_slice(&buffer[..length]));
            if let Ok(Control::Opened { group, session, life, stamped }) = answer
                && group == question.group()
            {
                // Answers to what was asked twice would be taken for later ones.
                self.outside.set_nonblocking(true).expect("set");
                while self.outside.recv_from(&mut buffer).is_ok() {}
                self.outside.set_nonblocking(false).expect("set");
                return (session, life, stamped);
            }
        }
        panic!("the sequencer does not answer {question:?}");
    }

    fn probe(&self, group: GroupId) -> (Session, u64) {
        let (session, _, stamped) = self.ask(&Control::Probe { group });
        (session, stamped)
    }

    fn life(&self) -> Life {
        self.ask(&Control::Probe { group: GroupId(1) }).1
    }

    fn open_for(&self, group: GroupId, session: u32, members: &[usize]) -> (Session, u64) {
        let members = members.iter().map(|&m| self.members[m].local_addr().expect("bound"));
        let (session, life) = (Session(session), self.life());
        let open =
            Control::Open { group, session, life, members: members.collect(), multicast: None };
        let (session, _, stamped) = self.ask(&open);
        (session, stamped)
    }

    /// Begins a session with all members.
    pub fn open(&self, group: GroupId, session: u32) {
        let all: Vec<usize> = (0..self.members.len()).collect();
        assert_eq!(self.open_for(group, session, &all), (Session(session), 0));
    }

    fn send(&self, datagram: &[u8]) {
        self.outside.send_to(datagram, self.sequencer).expect("sent");
    }

    fn multicast(&self, group: GroupId, payload: &[u8]) {
        self.send(&message(group, payload));
    }

    /// What a member receives next, as it came.
    fn next(&self, member: usize) -> Bytes {
        let mut buffer = vec![0; 1 << 16];
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            match self.members[member].recv_from(&mut buffer) {
                Ok((length, _)) => return Bytes::copy_from_slice(&buffer[..length]),
                Err(error) if is_timeout(&error) => {}
                Err(error) => panic!("member {member}: {error}"),
            }
        }
        panic!("member {member} receives nothing");
    }

    /// A member's next datagram is this message with this number.
    fn expect(&self, member: usize, group: GroupId, stamp: (u32, u64), payload: &[u8]) {
        let (header, received) = Header::decode(&self.next(member)).expect("a message");
        assert_eq!((header.session, header.sequence), (Session(stamp.0), stamp.1), "{member}");
        assert_eq!((header.group, &received[..]), (group, payload), "{member}");
    }

    fn expect_all(&self, group: GroupId, stamp: (u32, u64), payload: &[u8]) {
        for member in 0..self.members.len() {
            self.expect(member, group, stamp, payload);
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn message(group: GroupId, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    Sender::new(group).message(payload, &mut message);
    message
}

fn a_group_without_a_session_is_not_served(site: &Site) {
    let (unknown, known) = (GroupId(0x100), GroupId(0x101));
    assert_eq!(site.probe(unknown), (Session(0), 0));
    site.open(known, 1);
    site.multicast(unknown, b"lost");
    site.multicast(known, b"kept");
    site.expect_all(known, (1, 1), b"kept");
    assert_eq!(site.probe(unknown), (Session(0), 0));
}

fn messages_are_numbered_from_one_and_reach_every_member(site: &Site) {
    let group = GroupId(0x200);
    site.open(group, 7);
    for number in 1..=200_u64 {
        site.multicast(group, &number.to_be_bytes());
        if number.is_multiple_of(20) {
            for expected in number - 19..=number {
                site.expect_all(group, (7, expected), &expected.to_be_bytes());
            }
        }
    }
    assert_eq!(site.probe(group), (Session(7), 200));
}

fn any_length_that_fits_a_datagram_arrives_as_it_was_sent(site: &Site) {
    let group = GroupId(0x300);
    site.open(group, 1);
    // 1500 bytes of Ethernet less 28 of IPv4 and UDP and the header.
    for (number, length) in
        [0, 1, 2, 31, 32, 33, 255, 1000, 1499 - 28 - HEADER_BYTES, 1440].into_iter().enumerate()
    {
        let payload: Vec<u8> = (0..length).map(|at| (at * 7 + number) as u8).collect();
        site.multicast(group, &payload);
        site.expect_all(group, (1, number as u64 + 1), &payload);
    }
}

fn every_group_has_its_own_counter_and_members(site: &Site) {
    let groups: Vec<GroupId> = (0..20).map(|n| GroupId(0x400 + (n << 40))).collect();
    let last = site.members.len() - 1;
    for (place, &group) in groups.iter().enumerate() {
        let members = if place % 2 == 0 { [0] } else { [last] };
        let session = place as u32 + 1;
        assert_eq!(site.open_for(group, session, &members), (Session(session), 0));
    }
    for number in 1..=5 {
        for (place, &group) in groups.iter().enumerate() {
            site.multicast(group, b"to one");
            let member = if place % 2 == 0 { 0 } else { last };
            site.expect(member, group, (place as u32 + 1, number), b"to one");
        }
    }
}

fn opening_a_session_twice_changes_nothing(site: &Site) {
    let group = GroupId(0x500);
    site.open(group, 3);
    site.multicast(group, b"first");
    site.expect_all(group, (3, 1), b"first");
    assert_eq!(site.open_for(group, 3, &[0]), (Session(3), 1));
    site.multicast(group, b"second");
    site.expect_all(group, (3, 2), b"second");
}

fn a_later_session_begins_with_one_and_an_earlier_one_never_again(site: &Site) {
    let group = GroupId(0x600);
    site.open(group, 5);
    site.multicast(group, b"old");
    site.expect_all(group, (5, 1), b"old");
    site.open(group, 9);
    site.multicast(group, b"new");
    site.expect_all(group, (9, 1), b"new");
    for earlier in [0, 5, 8] {
        assert_eq!(site.open_for(group, earlier, &[0]), (Session(9), 1));
    }
    site.multicast(group, b"newer");
    site.expect_all(group, (9, 2), b"newer");
}

fn what_is_meant_for_another_life_is_refused(site: &Site) {
    let group = GroupId(0x700);
    let members = vec![site.members[0].local_addr().expect("bound")];
    let life = site.life();
    assert_eq!(site.life(), life, "a life does not change");
    let other = Life(life.0 ^ 1);
    let open = Control::Open { group, session: Session(4), life: other, members, multicast: None };
    assert_eq!(site.ask(&open), (Session(0), life, 0));
    site.open(group, 3);
    assert_eq!(site.ask(&open), (Session(3), life, 0));
}

fn a_new_session_may_have_other_members(site: &Site) {
    let group = GroupId(0x800);
    assert_eq!(site.open_for(group, 1, &[0]), (Session(1), 0));
    site.multicast(group, b"to the first");
    site.expect(0, group, (1, 1), b"to the first");
    assert_eq!(site.open_for(group, 2, &[1]), (Session(2), 0));
    site.multicast(group, b"to the second");
    site.expect(1, group, (2, 1), b"to the second");
    site.open(group, 3);
    site.multicast(group, b"to all");
    site.expect_all(group, (3, 1), b"to all");
}

fn nonsense_takes_no_number(site: &Site) {
    let group = GroupId(0x900);
    site.open(group, 2);
    let good = message(group, b"payload");
    let mut bad: Vec<Vec<u8>> = Vec::new();
    for byte in 0..HEADER_BYTES {
        let mut damaged = good.clone();
        damaged[byte] ^= 0x40;
        bad.push(damaged);
    }
    bad.extend([1, 2, HEADER_BYTES - 1, HEADER_BYTES, good.len() - 1].map(|n| good[..n].to_vec()));
    bad.push([&good[..], b"more"].concat());
    bad.push(vec![0; 64]);
    bad.push(vec![0xff; 64]);
    bad.push(vec![oum::CONTROL_MAGIC; 64]);
    // What another sequencer has stamped, and what this one has.
    for (session, sequence) in [(1, 1), (2, 1), (2, 0), (0, 1)] {
        let header = Header::peek(&good).expect("a header");
        let stamped = Header { session: Session(session), sequence, ..header };
        bad.push([&stamped.encode()[..], b"payload"].concat());
    }
    for (number, nonsense) in bad.iter().enumerate() {
        site.send(nonsense);
        site.multicast(group, b"good");
        site.expect_all(group, (2, number as u64 + 1), b"good");
    }
    // The payload belongs to the ends: a switch cannot look at it.
    let mut damaged = good;
    *damaged.last_mut().expect("a payload") ^= 1;
    site.send(&damaged);
    for member in 0..site.members.len() {
        assert_eq!(Header::decode(&site.next(member)), Err(Unreadable::Damaged));
    }
    assert_eq!(site.probe(group), (Session(2), bad.len() as u64 + 1));
}

fn the_renewed_checksum_is_right_for_any_group_and_number(site: &Site) {
    let mut rng = smr::rng::Rng::new(5);
    for round in 0..40_u64 {
        // Sums with many carries, too.
        let id = if round.is_multiple_of(3) { u64::MAX - round } else { rng.next_u64() };
        let (group, session) = (GroupId(id), (rng.next_u64() as u32).max(1));
        assert_eq!(site.open_for(group, session, &[0]), (Session(session), 0));
        for number in 1..=8 {
            let payload = rng.next_u64().to_le_bytes();
            site.multicast(group, &payload);
            site.expect(0, group, (session, number), &payload);
        }
    }
}

fn several_senders_get_one_order(site: &Site) {
    const EACH: u64 = 40;
    let group = GroupId(0xb00);
    site.open(group, 1);
    let senders: Vec<UdpSocket> =
        (0..4).map(|_| site.outside.try_clone().expect("a socket")).collect();
    std::thread::scope(|scope| {
        for (sender, socket) in senders.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..EACH {
                    let payload = (sender as u64 * EACH + number).to_be_bytes();
                    socket.send_to(&message(group, &payload), site.sequencer).expect("sent");
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
        }
        // All at once: a queue is short.
        let members: Vec<_> = (0..site.members.len())
            .map(|member| scope.spawn(move || receive_all(site, member, group, 4 * EACH)))
            .collect();
        let orders = members.into_iter().map(|member| member.join().expect("it receives all"));
        let mut orders: Vec<Vec<Bytes>> = orders.collect();
        assert!(orders.iter().all(|order| *order == orders[0]), "two orders");
        let mut all = orders.swap_remove(0);
        all.sort();
        all.dedup();
        assert_eq!(all.len() as u64, 4 * EACH, "a message came twice");
    });
}

/// The payloads of a session's messages in the order of their numbers, which have no gap. They may
/// arrive in another one: a switch has many pipelines.
fn receive_all(site: &Site, member: usize, group: GroupId, count: u64) -> Vec<Bytes> {
    let mut received = BTreeMap::new();
    for _ in 0..count {
        let (header, payload) = Header::decode(&site.next(member)).expect("a message");
        assert_eq!((header.group, header.session), (group, Session(1)));
        let before = received.insert(header.sequence, payload);
        assert_eq!(before, None, "member {member} receives {} twice", header.sequence);
    }
    assert!(received.keys().copied().eq(1..=count), "member {member}: {:?}", received.keys());
    received.into_values().collect()
}
