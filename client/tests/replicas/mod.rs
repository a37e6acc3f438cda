//! A group of replicas as child processes of the test, which can be killed.

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lockstep_client::{Client, Durability, Options};
use node::{Birth, ConnectionId, Desk, Face, Failure, Node, Note, Order, Step};
use smr::{GroupId, Now, ReplicaId};

const REPLICAS: usize = 3;

/// A face that turns everybody away: these replicas have native clients alone.
struct Closed;

impl Face for Closed {
    type Service = kv::Store;
    type Session = ();

    fn open(&mut self, _: ConnectionId, _: usize, _: &str, _: Now) {}

    fn take(&mut self, (): &mut (), _: &[u8], desk: &mut Desk<'_, kv::Store>) -> Step {
        desk.order(Order::Shutdown);
        Step::Close
    }

    fn items(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
        kv::reply::items(answer)
    }

    fn answer(&mut self, (): &mut (), _: Note, _: &[u8], _: &mut Vec<u8>) {}

    fn fail(&mut self, (): &mut (), _: Note, _: Failure, _: &mut Vec<u8>) {}

    fn reject(&mut self, _: usize, _: &mut Vec<u8>) {}

    fn close(&mut self, _: ConnectionId, (): ()) {}
}

/// The child: one replica, until its parent goes or kills it.
pub fn child(arguments: &[String]) {
    let [id, durability, directory, clients, peers @ ..] = arguments else {
        panic!("a child is told who it is: {arguments:?}");
    };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let durability = durability.parse().ok().and_then(Durability::from_u8).expect("a durability");
    let mut options = node::Options::new(
        directory.into(),
        ReplicaId(id.parse().expect("a number")),
        peers.to_vec(),
        clients.clone(),
        durability,
        Birth::Bootstrap(GroupId(7)),
    );
    options.disk.segment_bytes = 8 << 20;
    let id = id.clone();
    let events = Box::new(move |event: &node::Event| eprintln!("replica {id}: {event}"));
    let node = Node::open(options, Closed, kv::Store::default(), events).expect("it opens");
    if let Err(error) = node.run(&Arc::new(AtomicBool::new(false))) {
        eprintln!("replica stops: {error}");
    }
}

/// The group.
pub struct Replicas {
    directory: PathBuf,
    durability: Durability,
    pub peers: Vec<String>,
    clients: Vec<String>,
    children: Vec<Option<Child>>,
}

impl Replicas {
    /// Starts a group whose data are below `directory`.
    pub fn start(directory: &Path, durability: Durability) -> Replicas {
        // All are held until all are known, so that they differ.
        let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listeners: Vec<TcpListener> = (0..2 * REPLICAS).map(bind).collect();
        let address = |l: &TcpListener| l.local_addr().expect("bound").to_string();
        let addresses: Vec<String> = listeners.iter().map(address).collect();
        let (peers, clients) = addresses.split_at(REPLICAS);
        std::fs::create_dir_all(directory).expect("a directory");
        let mut replicas = Replicas {
            directory: directory.to_owned(),
            durability,
            peers: peers.to_vec(),
            clients: clients.to_vec(),
            children: (0..REPLICAS).map(|_| None).collect(),
        };
        drop(listeners);
        replicas.start_missing();
        replicas
    }

    /// Starts the replicas that do not run.
    pub fn start_missing(&mut self) {
        for index in 0..REPLICAS {
            if self.children[index].is_some() {
                continue;
            }
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command
                .arg("replica")
                .arg(index.to_string())
                .arg((self.durability as u8).to_string())
                .arg(self.directory.join(index.to_string()))
                .arg(&self.clients[index])
                .args(&self.peers)
                .stdin(Stdio::piped());
            self.children[index] = Some(command.spawn().expect("it starts"));
        }
    }

    /// Kills one, with SIGKILL.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.children[index].take() {
            child.kill().expect("killed");
            child.wait().expect("waited for");
        }
    }

    /// How many have ended by themselves. They can be started again.
    pub fn reap(&mut self) -> usize {
        let ended = |child: &mut Child| child.try_wait().expect("waited for").is_some();
        self.children.iter_mut().filter_map(|child| child.take_if(ended)).count()
    }

    pub fn kill_all(&mut self) {
        (0..REPLICAS).for_each(|index| self.kill(index));
    }

    pub fn client(&self, options: Options) -> Client {
        Client::connect(&self.peers, options).expect("a replica answers")
    }

    /// Bytes of memory that a replica's process has.
    pub fn memory(&self, index: usize) -> u64 {
        let child = self.children[index].as_ref().expect("it runs");
        let path = format!("/proc/{}/statm", child.id());
        let text = std::fs::read_to_string(path).expect("Linux tells");
        let pages: u64 = text.split(' ').nth(1).expect("a field").parse().expect("a number");
        pages * 4096
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.kill_all();
    }
}
