//! The services that are measured, and the requests that they get.

use bytes::Bytes;
use orderbook::feed::{Feed, Shape};
use orderbook::tape::Tape;
use smr::{BadCheckpoint, Context, ReadOutcome, StateMachine};

use super::job::{COMMAND, Service};

const KEYS: u64 = 100_000;

/// Sums the first words of commands of 64 bytes: about nothing to do, and yet each is looked at.
#[derive(Default)]
pub(super) struct Sum(u64);

impl StateMachine for Sum {
    type Undo = ();

    fn apply(&mut self, _context: Context, request: &[u8], reply: &mut Vec<u8>) {
        for command in request.chunks(COMMAND) {
            let word = command.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            self.0 = self.0.wrapping_add(word);
        }
        reply.extend_from_slice(&self.0.to_le_bytes());
    }

    fn undo(&mut self, (): ()) {}

    fn read(&self, _unix_ms: u64, _request: &[u8], _reply: &mut Vec<u8>) -> ReadOutcome {
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {}

    fn checkpoint_next(&mut self, _budget: usize, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.0.to_le_bytes());
        true
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {
        self.0 = 0;
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        self.0 = u64::from_le_bytes(chunk.try_into().map_err(|_| BadCheckpoint)?);
        Ok(())
    }
}

/// The bytes of the n-th command, from 1, of a load whose order is checked.
pub(super) fn numbered(number: u64) -> [u8; COMMAND] {
    let mut bytes = [0; COMMAND];
    for (word, chunk) in (0..).zip(bytes.chunks_exact_mut(8)) {
        let mixed = (number + word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes());
    }
    bytes
}

/// Takes the commands of [`numbered`] in their order, without gaps and repetitions.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) taken: u64,
    /// Commands that were not the next one.
    pub(super) wrong: u64,
}

impl StateMachine for Ledger {
    type Undo = ();

    fn apply(&mut self, _context: Context, request: &[u8], _reply: &mut Vec<u8>) {
        self.taken += 1;
        self.wrong += u64::from(request != numbered(self.taken));
    }

    fn undo(&mut self, (): ()) {
        unreachable!("Mu executes what is decided");
    }

    fn read(&self, _unix_ms: u64, _request: &[u8], _reply: &mut Vec<u8>) -> ReadOutcome {
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {}

    fn checkpoint_next(&mut self, _budget: usize, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.taken.to_le_bytes());
        out.extend_from_slice(&self.wrong.to_le_bytes());
        true
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {
        *self = Ledger::default();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        let (taken, wrong) = chunk.split_first_chunk().ok_or(BadCheckpoint)?;
        self.taken = u64::from_le_bytes(*taken);
        self.wrong = u64::from_le_bytes(wrong.try_into().map_err(|_| BadCheckpoint)?);
        Ok(())
    }
}

/// The requests of a service's clients, until they end.
pub(super) type Requests = Box<dyn FnMut() -> Option<Bytes> + Send>;

/// Requests of `batch` commands each: at least `count`, and of the order book no more, since its
/// commands mean something in their order alone.
pub(super) fn requests(service: Service, bytes: usize, batch: usize, count: u64) -> Requests {
    match service {
        Service::Sum => {
            let body = Bytes::from(vec![7; bytes]);
            Box::new(move || Some(body.clone()))
        }
        Service::Keys => {
            let value = vec![b'v'; bytes];
            let set = kv::lookup(b"set").expect("there is one");
            let mut key = 0_u64;
            Box::new(move || {
                let mut body = Vec::with_capacity(bytes + 64);
                for _ in 0..batch {
                    // Coprime to the number of keys: all of them, in an order without locality.
                    key = (key + 61_803) % KEYS;
                    let name = format!("key:{key:012}");
                    let argv: [&[u8]; 3] = [b"set", name.as_bytes(), &value];
                    kv::request::push_command(&mut body, resp::Protocol::V2, set, &argv);
                }
                Some(Bytes::from(body))
            })
        }
        Service::Orders => {
            let commands = Feed::new(Shape::default()).take(count as usize * batch);
            let tape = Tape::record(commands);
            let bodies: Vec<Bytes> = tape.batches(batch).map(Bytes::copy_from_slice).collect();
            let mut bodies = bodies.into_iter();
            Box::new(move || bodies.next())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smr::OpNumber;

    const CONTEXT: Context = Context { position: OpNumber(1), index: 0, unix_ms: 0 };

    #[test]
    fn a_ledger_sees_what_is_missing_or_different() {
        let ledger = |numbers: &[u64]| {
            let mut ledger = Ledger::default();
            numbers.iter().for_each(|&n| ledger.apply(CONTEXT, &numbered(n), &mut Vec::new()));
            (ledger.taken, ledger.wrong)
        };
        assert_eq!(ledger(&[1, 2, 3]), (3, 0));
        assert_eq!(ledger(&[1, 3]), (2, 1), "one is missing");
        assert_eq!(ledger(&[1, 1, 2]), (3, 2), "one is there twice");
        let mut damaged = Ledger::default();
        damaged.apply(CONTEXT, &numbered(1)[1..], &mut Vec::new());
        assert_eq!(damaged.wrong, 1);
    }

    #[test]
    fn requests_make_sense_to_their_services() {
        let mut store = kv::Store::default();
        let mut source = requests(Service::Keys, 64, 2, 10);
        let mut reply = Vec::new();
        store.apply(CONTEXT, &source().expect("without end"), &mut reply);
        assert_eq!(reply, b"\x05\0\0\0+OK\r\n\x05\0\0\0+OK\r\n", "two, each behind its length");
        let mut engine = orderbook::Engine::default();
        let mut source = requests(Service::Orders, 64, 3, 10);
        let mut count = 0;
        while let Some(request) = source() {
            assert!(request.len() <= 3 * COMMAND, "it fits");
            engine.apply(CONTEXT, &request, &mut reply);
            count += 1;
        }
        assert_eq!(count, 10);
        assert!(engine.orders() > 0);
    }
}
