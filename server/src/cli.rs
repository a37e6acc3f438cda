//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A replicated key-value store that speaks the protocols of Redis and memcached.
#[derive(Parser)]
#[command(name = "lockstep", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Action,
}

#[derive(Subcommand)]
pub enum Action {
    /// Run a group of replicas on this machine, to try it
    Demo(Demo),
    /// Run one replica, or with --standalone a server without replicas
    #[command(after_long_help = SERVE_HELP)]
    Serve(Box<Serve>),
    /// Show the state of a group
    Status(Status),
    /// Measure a server of the Redis protocol, this store's durabilities, or its index
    Bench(Box<Bench>),
    /// Kill or pause replicas of a demo, or kill its sequencer, under checked load
    Chaos(bench::chaos::ChaosOptions),
    /// Start a group over, empty, after it has lost its state (durability memory)
    Bootstrap(Bootstrap),
    /// Run a sequencer: number the requests of groups that order by the network
    #[command(after_long_help = SEQUENCER_HELP)]
    Sequencer(Sequencer),
    /// Run a controller: watch sequencers, and begin a new session elsewhere when one fails
    #[command(after_long_help = CONTROLLER_HELP)]
    Controller(Controller),
    /// Change who counts for a majority in a group that orders by mu or nopaxos, while it serves
    Member(Member),
}

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// In memory at a quorum; a crash of the whole group loses the state, and the group says so
    Memory,
    /// In memory at a quorum, on disk a moment later; a crash of the whole group loses at most the
    /// last moment, and clients that saw it are told
    Lazy,
    /// On disk at a quorum
    Sync,
}

impl Durability {
    /// What is meant where nothing is said.
    pub fn by_default(order: Order) -> Durability {
        match order {
            Order::Vsr => Durability::Sync,
            Order::Mu | Order::Nopaxos => Durability::Memory,
        }
    }
}

impl From<Durability> for smr::Durability {
    fn from(durability: Durability) -> smr::Durability {
        match durability {
            Durability::Memory => smr::Durability::Memory,
            Durability::Lazy => smr::Durability::Lazy,
            Durability::Sync => smr::Durability::Sync,
        }
    }
}

/// How a group orders requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Viewstamped replication, by messages: replicas on any machines
    #[default]
    Vsr,
    /// Mu, through shared memory: all replicas on one machine; durability memory where nothing is
    /// said
    Mu,
    /// NOPaxos, by messages that a sequencer in the network has numbered; durability memory where
    /// nothing is said
    Nopaxos,
}

impl Order {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Order::Vsr => "vsr",
            Order::Mu => "mu",
            Order::Nopaxos => "nopaxos",
        }
    }
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    pub study: Option<Study>,
    #[command(flatten)]
    pub load: bench::load::LoadOptions,
}

/// A measurement of what it starts itself.
#[derive(Subcommand)]
pub enum Study {
    /// Durability lazy against sync and memory, as tables, plots and JSON
    Lazy(bench::lazy::LazyOptions),
    /// Replication over shared memory: latency, fail-over and throughput, as tables, plots and JSON
    Mu(bench::mu::MuOptions),
    /// A process that `bench mu` starts
    #[command(hide = true)]
    MuProcess { job: String },
    /// NOPaxos beside its rivals on one transport: latency, loss, scale and fail-over, as tables,
    /// plots and JSON
    Order(Box<bench::order::OrderOptions>),
    /// The index beside other ordered maps, in this process, as tables, plots and JSON
    Index(Box<bench::index::StudyOptions>),
    /// The single-node store beside a Redis, and while checkpoints run; recovery after a kill
    Store(bench::store::StoreOptions),
}

const SEQUENCER_HELP: &str = "\
Senders send each message to this sequencer, which writes the next number of the message's group and
session into it and sends it on to every member of the group: a copy to each, or one to the group's
multicast address, through the interface that --listen is on. Sessions are opened by the controller;
without one (`lockstep controller`) nothing is forwarded. It needs no disk and no privileges and
forgets everything when it ends: the controller then begins a higher session, here or elsewhere.

Anybody who reaches the address can send and open sessions: keep it on a network of your own.
SIGTERM or Ctrl-C ends it; it then says what it has stamped, and what it has refused.";

#[derive(Args)]
pub struct Sequencer {
    /// Where to listen, over UDP, for messages and for the controller: address:port
    #[arg(long, default_value = "127.0.0.1:7700")]
    pub listen: String,
    /// How long to look for more before sleeping, in microseconds. With a core of its own, 50 takes
    /// a quarter off what a lone client waits; without one it takes throughput from the others
    #[arg(long, default_value_t = 0)]
    pub spin_us: u64,
    /// End when the process with this id, which started this one, ends
    #[arg(long, hide = true)]
    pub die_with_parent: Option<i32>,
}

const CONTROLLER_HELP: &str = "\
One controller is enough to try it; 2f+1 of them go on without f, since sessions are replicated by
viewstamped replication, on disk at a majority. Start every one once with --bootstrap. One leads: it
probes the sequencers, commits the next session of a group when its sequencer is silent, was
restarted or is not heard by so many members that the others are no majority, opens it at another
one and tells the members.

Members and clients ask any controller, over UDP, at its address in --peers: there the controllers
also reach each other, over TCP. Operators give commands over TCP at --listen, a line each:

  $ printf 'show\\n' | nc -q1 127.0.0.1 7800
  all 10.0.0.1:7700,10.0.0.2:7700;a1 3 10.0.0.2:7700 9c27f1d0a4b85e63 10.0.1.1:7500,10.0.1.2:7500

  show                       sequencers; then each group: id, session, sequencer, its life, members
  status                     of this controller
  sequencer ADDRESS          this sequencer may be chosen
  forget ADDRESS             it may no longer be chosen (take it out of --sequencers, too)
  group ID MEMBER,MEMBER,..  create a group; one that exists stays as it is
  alter ID MEMBER,MEMBER,..  the same replicas at other addresses, from a new session on
                             (both: ..,MEMBER@MULTICAST with a multicast address)
  count ID REPLICA,..        of its replicas these count, by id (`lockstep member` asks for that)
  quit                       end the connection

Anybody who reaches the addresses can change sessions: keep them on a network of your own.";

#[derive(Args)]
pub struct Controller {
    /// This controller's place among the controllers, from 0
    #[arg(long)]
    pub id: u8,
    /// Where the controllers are reached, by id, this one included: host:port,host:port,... By each
    /// other over TCP, by members, clients and sequencers over UDP
    #[arg(long, value_delimiter = ',', required = true)]
    pub peers: Vec<String>,
    /// Where to listen for operators' commands: address:port
    #[arg(long, default_value = "127.0.0.1:7800")]
    pub listen: String,
    /// The data directory; made if missing
    #[arg(long)]
    pub dir: PathBuf,
    /// Sequencers that may be chosen: host:port,host:port,...
    #[arg(long, value_delimiter = ',')]
    pub sequencers: Vec<String>,
    /// A group to create if it does not exist, its id in hexadecimal and its members' sockets for
    /// multicast messages by replica id: ID=host:port,host:port,... With @address:port after them,
    /// an IPv4 multicast address, sequencers that can send one copy there, and the members hear it
    /// through the interfaces of their own addresses. May be given several times
    #[arg(long = "group", value_name = "ID=MEMBER,...[@MULTICAST]")]
    pub groups: Vec<String>,
    /// How often a sequencer is probed, in milliseconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub probe_ms: u64,
    /// A sequencer that has been silent for so long has failed, in milliseconds; longer than
    /// --probe-ms
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..=60_000))]
    pub suspect_ms: u64,
    /// Create the controllers' state; only for the first start of all of them
    #[arg(long)]
    pub bootstrap: bool,
    /// End when the process with this id, which started this one, ends
    #[arg(long, hide = true)]
    pub die_with_parent: Option<i32>,
}

const SERVE_HELP: &str = "\
The file given with --config has the same settings, in TOML; flags go before it:

  standalone = false                  # --standalone
  threads = 2                         # --threads, with --standalone
  checkpoint_log_bytes = 536870912    # --checkpoint-log-bytes, with --standalone
  id = 0                              # --id
  peers = [\"a:7500\", \"b:7500\", \"c:7500\"]  # --peers
  resp = \"0.0.0.0:6379\"               # --resp
  memcached_port = 11211              # --memcached-port
  advertise = \"a:6379\"                # --advertise
  dir = \"/var/lib/lockstep\"           # --dir
  durability = \"sync\"                 # --durability: sync, lazy or memory
  order = \"vsr\"                       # --order: vsr, mu or nopaxos
  memory = \"/run/lockstep\"            # --memory, for order mu
  heartbeat_us = 10000                # --heartbeat-us, for order mu
  slot_bytes = 67584                  # --slot-bytes, for order mu
  multicast = \"10.0.0.1:7600\"         # --multicast, for order nopaxos
  controllers = [\"10.0.0.9:7800\"]     # --controllers, for order nopaxos
  datagram_bytes = 1300               # --datagram-bytes, for order nopaxos
  members = [0, 1, 2]                 # --members, for order mu
  bootstrap = false                   # --bootstrap
  group = \"00000000000000a1\"          # --group, 16 hexadecimal digits
  max_clients = 10000                 # --max-clients
  command_timeout_ms = 10000          # --command-timeout-ms
  max_command_bytes = 33554432        # --max-command-bytes, at most 60 MiB
  window = 8                          # --window
  spin_us = 0                         # --spin-us

Start every replica of a new group once with --bootstrap. Later starts find their data in the
directory. A replica that starts with an empty directory and without --bootstrap takes the place of
one that has lost its disk: it learns the group from the others and recovers from them.";

#[derive(Args, Default)]
pub struct Serve {
    /// A server without replicas: query threads on one tree, a log for each of them, checkpoints.
    /// Of the other flags it takes --resp, --memcached-port, --dir, --durability, --max-clients,
    /// --command-timeout-ms and --max-command-bytes
    #[arg(long)]
    pub standalone: bool,
    /// With --standalone: query threads [default: one for each processor]
    #[arg(long)]
    pub threads: Option<usize>,
    /// With --standalone: a checkpoint is made when the logs have grown by so many bytes, or after
    /// five minutes [default: 512 MiB]
    #[arg(long)]
    pub checkpoint_log_bytes: Option<u64>,
    /// This replica's place in the group, from 0
    #[arg(long)]
    pub id: Option<u8>,
    /// Where the replicas reach each other, by id, this one included: host:port,host:port,...
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<String>,
    /// Where to listen for Redis clients: address:port [default: 127.0.0.1:6379]
    #[arg(long)]
    pub resp: Option<String>,
    /// Listen for memcached clients, too, on this port of the address in --resp [default: do not]
    #[arg(long)]
    pub memcached_port: Option<u16>,
    /// What to tell others of where clients come in [default: as --resp]
    #[arg(long)]
    pub advertise: Option<String>,
    /// The data directory; made if missing
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// What an acknowledgement means [default: sync; memory with --order mu and nopaxos; lazy with
    /// --standalone]
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,
    /// How requests are ordered [default: vsr]
    #[arg(long, value_enum)]
    pub order: Option<Order>,
    /// With --order mu: the directory where the group's replicas meet to share memory, the same for
    /// all of them and at most 90 bytes long [default: `memory` beside the data directory]
    #[arg(long)]
    pub memory: Option<PathBuf>,
    /// With --order mu: the period of heartbeats. A replica that stands still for 14 of them loses
    /// the lead; one that ends or is stopped loses it at once [default: 10000]
    #[arg(long)]
    pub heartbeat_us: Option<u64>,
    /// With --order mu: bytes of a slot of the log, which the longest command has to fit with 160
    /// bytes to spare; the same for all replicas, at most 8 MiB [default: 66 KiB]
    #[arg(long)]
    pub slot_bytes: Option<usize>,
    /// With --order nopaxos: where sequencers and controllers reach this replica over UDP:
    /// address:port, as the controllers know it. A multicast address that the group has at the
    /// controllers is heard through the interface of this address
    #[arg(long)]
    pub multicast: Option<String>,
    /// With --order nopaxos: the controllers, host:port,host:port,...
    #[arg(long, value_delimiter = ',')]
    pub controllers: Vec<String>,
    /// With --order nopaxos: longer requests go to the replicas directly, and only their digests
    /// are numbered, 64 to 60000; the same for all replicas [default: 1300]
    #[arg(long)]
    pub datagram_bytes: Option<usize>,
    /// With --order mu: the ids of the members that the group begins with, of those in --peers. The
    /// others follow, and count once `lockstep member` has added them [default: all]
    #[arg(long, value_delimiter = ',')]
    pub members: Vec<u8>,
    /// Create the group; only for the first start of all its replicas
    #[arg(long)]
    pub bootstrap: bool,
    /// The id of the group that --bootstrap creates, in hexadecimal; the same for all its replicas
    /// [default: from --peers]
    #[arg(long)]
    pub group: Option<String>,
    /// A TOML file with settings
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// The most client connections [default: 10000]
    #[arg(long)]
    pub max_clients: Option<usize>,
    /// When a command that is not answered gets an error [default: 10000]
    #[arg(long)]
    pub command_timeout_ms: Option<u64>,
    /// The longest command, in bytes, at most 60 MiB [default: 32 MiB]
    #[arg(long)]
    pub max_command_bytes: Option<usize>,
    /// How many batches of commands are under way to the group, 1 to 32 [default: 8]
    #[arg(long)]
    pub window: Option<usize>,
    /// How long to look for work before sleeping, in microseconds; with --order mu a primary that
    /// hears of several clients more often than every 25 does so that long anyhow [default: 0]
    #[arg(long)]
    pub spin_us: Option<u64>,
    /// Never wait for the disk: acknowledged writes are lost by a power cut. For tests alone
    #[arg(long, hide = true)]
    pub unsafe_no_fsync: bool,
    /// End when the process with this id, which started this one, ends
    #[arg(long, hide = true)]
    pub die_with_parent: Option<i32>,
    /// Bytes of a log segment. For tests
    #[arg(long, hide = true)]
    pub segment_bytes: Option<u64>,
    /// Bytes of log between checkpoints. For tests
    #[arg(long, hide = true)]
    pub checkpoint_bytes: Option<usize>,
    /// Bytes that may be acknowledged and not on disk (durability lazy). For tests
    #[arg(long, hide = true)]
    pub lag_bytes: Option<usize>,
    /// EMULATED, for measurements: each forced write of the log takes so many microseconds longer
    #[arg(long, hide = true, value_name = "MICROS")]
    pub emulate_disk_latency: Option<u64>,
    /// EMULATED, for measurements: forced writes of the log, and nothing else, stand still for so
    /// many milliseconds in every so many: 50/1000
    #[arg(long, hide = true, value_name = "MS/MS", value_parser = parse_stall)]
    pub emulate_disk_stall: Option<(u64, u64)>,
}

fn parse_stall(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/').map(|(stall, every)| (stall.parse(), every.parse()));
    match parts {
        Some((Ok(stall), Ok(every))) if stall < every => Ok((stall, every)),
        _ => Err("expected STALL/EVERY in milliseconds, as 50/1000".to_owned()),
    }
}

#[derive(Args)]
pub struct Demo {
    /// How many replicas, 1 to 9
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub replicas: u8,
    /// What an acknowledgement means [default: sync, or memory with --order mu and nopaxos]
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,
    /// How requests are ordered
    #[arg(long, value_enum, default_value = "vsr")]
    pub order: Order,
    /// Keep the data here, and go on with what is there [default: a temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Replica i serves Redis clients on this port plus i, and replicas on this plus 100 plus i
    #[arg(long, default_value_t = 7400)]
    pub port: u16,
    /// Replica i serves memcached clients on this port plus i [default: none do]
    #[arg(long)]
    pub memcached_port: Option<u16>,
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Args)]
pub struct Status {
    /// The Redis port of any replica of the group
    #[arg(long, default_value_t = 7400)]
    pub port: u16,
    /// The machine that it runs on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Format,
}

#[derive(Args)]
pub struct Bootstrap {
    /// Yes, what the group held is lost
    #[arg(long, required = true)]
    pub accept_loss: bool,
    /// Where a controller listens for operators, host:port: it is told of the new group (needed if
    /// the group orders by nopaxos)
    #[arg(long)]
    pub controller: Option<String>,
    /// The Redis port of any replica of the group
    #[arg(long, default_value_t = 7400)]
    pub port: u16,
    /// The machine that it runs on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
}

#[derive(Args)]
pub struct Member {
    #[command(subcommand)]
    pub change: MemberChange,
    /// Where a controller listens for operators, host:port (needed if the group orders by nopaxos)
    #[arg(long, global = true)]
    pub controller: Option<String>,
    /// The Redis port of any replica of the group
    #[arg(long, default_value_t = 7400, global = true)]
    pub port: u16,
    /// The machine that it runs on
    #[arg(long, default_value = "127.0.0.1", global = true)]
    pub host: String,
    /// How many seconds it may take
    #[arg(long, default_value_t = 30, global = true)]
    pub patience: u64,
}

/// A change of membership. A replica that is to be added has its place in `--peers`, runs already
/// and has caught up.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum MemberChange {
    /// Make a replica a member
    Add {
        /// Its id
        id: u8,
    },
    /// Let a member be none; its process can be stopped then
    Remove {
        /// Its id
        id: u8,
    },
    /// Add a replica, then remove another: the group never counts on fewer
    Replace {
        /// The member that goes
        old: u8,
        /// The replica that comes
        new: u8,
    },
}
