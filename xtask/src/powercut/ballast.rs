//! Long values beside the checked load, so that log records span sectors and checkpoints take time
//! to write. Nobody looks at these keys.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bench::client::Client;

/// Keys that are set in turn.
const KEYS: u64 = 48;

/// Values get up to so many bytes.
const MOST_BYTES: u64 = 48 << 10;

/// Between two values.
const PAUSE: Duration = Duration::from_millis(15);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A client that sets long values until this is dropped.
pub struct Ballast {
    stop: Arc<AtomicBool>,
    client: Option<JoinHandle<()>>,
}

impl Ballast {
    /// Starts the client; it goes from replica to replica as they fail.
    pub fn start(addresses: Vec<SocketAddr>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let client = std::thread::spawn(move || run(&addresses, &stopped));
        Self { stop, client: Some(client) }
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(client) = self.client.take() {
            let _ = client.join();
        }
    }
}

fn run(addresses: &[SocketAddr], stop: &AtomicBool) {
    let mut connection: Option<Client> = None;
    let mut address = addresses.iter().cycle();
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let Some(client) = &mut connection else {
            let next = address.next().expect("a group has replicas");
            connection = Client::connect(*next, PATIENCE).ok();
            continue;
        };
        number += 1;
        let key = format!("ballast:{}", number % KEYS);
        // An odd factor visits all lengths.
        let length = number.wrapping_mul(7919) % MOST_BYTES;
        let value = vec![number as u8; length as usize];
        if client.request(&[b"SET", key.as_bytes(), &value]).is_err() {
            connection = None;
        }
    }
}
