//! The Redis protocol as a face of the key-value service. What changes or reads the state goes to
//! the group; what concerns only the connection or the process is answered here.
//!
//! Invariant: a command that is not answered at once leaves a note of how its answer is to be
//! changed on its way to the client, and nothing else.

mod clients;
mod command;
mod connection;
mod cursors;
mod durability;
mod info;
mod local;
mod multi;
mod session;
mod settings;
mod status;

use std::sync::{Arc, Mutex, MutexGuard};

use kv::{Place, Spec, Store};
use node::{ConnectionId, Desk, Failure, Note, Step};
use resp::{Command, write};
use smr::Now;

use clients::Clients;
use cursors::Cursors;
pub use session::Session;
use session::{Muted, State};
use settings::Settings;

/// The version of Redis whose behaviour is followed.
const REDIS_VERSION: &str = "7.0.15";

/// How an answer is to be changed.
const PLAIN: Note = Note(0);
const SILENT: Note = Note(1);
const CURSOR: Note = Note(2);
const WATCH: Note = Note(3);
const WAITAOF: Note = Note(4);

/// Bounds that an operator may choose.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest command, in bytes of its arguments; at most 60 MiB.
    pub command_bytes: usize,
    /// The most client connections, for CONFIG GET.
    pub max_clients: usize,
    /// What an acknowledgement of the group means.
    pub durability: smr::Durability,
    /// The size of the group.
    pub replicas: usize,
}

/// The face. A clone is the same one on another thread.
#[derive(Clone)]
pub struct Redis {
    bounds: Bounds,
    clients: Arc<Mutex<Clients>>,
    cursors: Arc<Mutex<Cursors>>,
    settings: Arc<Mutex<Settings>>,
    /// Where clients are told to turn to, for texts.
    port: u16,
    run_id: String,
}

impl Redis {
    /// A face for clients that come in at `port`. `nonce` should differ from process to process.
    pub fn new(bounds: Bounds, port: u16, nonce: u64) -> Redis {
        Redis {
            bounds,
            clients: Arc::default(),
            cursors: Arc::new(Mutex::new(Cursors::new(nonce))),
            settings: Arc::new(Mutex::new(Settings::new(&bounds, port))),
            port,
            run_id: format!("{nonce:016x}{:016x}{:08x}", nonce.rotate_left(21), nonce as u32),
        }
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().expect("nobody panics with it")
    }

    fn cursors(&self) -> MutexGuard<'_, Cursors> {
        self.cursors.lock().expect("nobody panics with it")
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().expect("nobody panics with it")
    }

    fn dispatch(
        &mut self,
        state: &mut State,
        command: Command<'_>,
        length: usize,
        desk: &mut Desk<'_, Store>,
    ) -> Step {
        let Some(name) = command.get(0) else { return Step::Taken(length) };
        let taken = match kv::lookup(name) {
            None => self.extension(state, &command, desk),
            Some(spec) if !spec.accepts(command.len()) => {
                state.spoil();
                let text = format!("ERR wrong number of arguments for '{}' command", spec.name);
                state.answer(desk, |out| write::error(out, &text));
                Taken::Yes
            }
            Some(spec) if desk.status().loading && needs_data(spec) => {
                state.spoil();
                state.answer(desk, |out| write::error(out, LOADING));
                Taken::Yes
            }
            Some(spec) if state.multi.is_some() && !multi::is_immediate(spec) => {
                self.queue(state, spec, &command, desk)
            }
            Some(spec) => match spec.place {
                Place::Local => self.local(state, spec, &command, desk),
                Place::Write if spec.grows && desk.status().disk_full => {
                    state.answer(desk, |out| write::error(out, DISK_FULL));
                    Taken::Yes
                }
                Place::Read | Place::Write => self.submit(state, spec, &command, desk),
            },
        };
        match taken {
            Taken::Yes => {
                state.after_command();
                Step::Taken(length)
            }
            Taken::No => Step::Wait,
            Taken::Last => Step::Close,
        }
    }

    /// Sends a command to the group.
    #[inline]
    fn submit(
        &mut self,
        state: &mut State,
        spec: &'static Spec,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> Taken {
        let protocol = state.protocol;
        if let Some(place) = spec.cursor {
            return self.submit_scan(state, spec, place, command, desk);
        }
        let note = if state.muted == Muted::No { PLAIN } else { SILENT };
        let push = |body: &mut Vec<u8>| {
            command.with_slices(|argv| kv::request::push_command(body, protocol, spec, argv));
        };
        let submitted = match spec.place {
            Place::Write => desk.write(note, push),
            _ => desk.read(note, push),
        };
        if submitted { Taken::Yes } else { Taken::No }
    }

    /// Sends a command whose argument at `place` is a cursor.
    fn submit_scan(
        &mut self,
        state: &mut State,
        spec: &'static Spec,
        place: usize,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> Taken {
        let given = command.get(place).unwrap_or_default();
        let Some(number) = std::str::from_utf8(given).ok().and_then(|text| text.parse().ok())
        else {
            state.answer(desk, |out| write::error(out, "ERR invalid cursor"));
            return Taken::Yes;
        };
        let protocol = state.protocol;
        let token = self.cursors().token(number).to_vec();
        let note = if state.muted == Muted::No { CURSOR } else { SILENT };
        let submitted = desk.read(note, |body| {
            let mut argv: Vec<&[u8]> = command.iter().collect();
            argv[place] = &token;
            kv::request::push_command(body, protocol, spec, &argv);
        });
        if submitted { Taken::Yes } else { Taken::No }
    }
}

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// It was answered or sent.
    Yes,
    /// It must wait.
    No,
    /// It was answered, and the connection ends.
    Last,
}

/// Whether a command is refused while the data is not there, as Redis does: a ping, too, so that
/// whoever looks after the server sees that it does not serve yet.
fn needs_data(spec: &Spec) -> bool {
    spec.place != Place::Local || matches!(spec.name, "ping" | "wait" | "waitaof")
}

/// What is answered while a server without replicas recovers, in Redis's words: clients know them.
const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// What is answered to a command that needs space where there is none.
pub const DISK_FULL: &str = "DISKFULL the disk of a replica is full: commands that need more space \
                             are refused until there is some; deletes and reads go on";

impl Redis {
    /// See [`node::Face::open`].
    pub fn open(&mut self, id: ConnectionId, from: &str, now: Now) -> Session {
        self.clients().open(id, from, now);
        Session::new(id, self.bounds.command_bytes)
    }

    /// See [`node::Face::take`].
    pub fn take(
        &mut self,
        session: &mut Session,
        input: &[u8],
        desk: &mut Desk<'_, Store>,
    ) -> Step {
        let Session { parser, state } = session;
        match parser.parse(input) {
            Ok(Some(length)) => self.dispatch(state, parser.command(input), length, desk),
            Ok(None) => {
                let missing = parser.needs(input.len());
                if input.len() + missing > self.bounds.command_bytes + COMMAND_OVERHEAD {
                    let text = "ERR Protocol error: the command is too long";
                    desk.answer(|out| write::error(out, text));
                    return Step::Close;
                }
                Step::More(missing.max(1))
            }
            Err(error) => {
                desk.answer(|out| write::error(out, &format!("ERR {error}")));
                Step::Close
            }
        }
    }

    /// See [`node::Face::answer`].
    #[inline]
    pub fn answer(&mut self, session: &mut Session, note: Note, item: &[u8], out: &mut Vec<u8>) {
        match note {
            PLAIN => out.extend_from_slice(item),
            CURSOR => self.cursors().replace(item, out),
            WATCH => session.state.watched(kv::reply::versions(item), out),
            _ => {}
        }
    }

    /// See [`node::Face::durable`].
    pub fn durable(&mut self, note: Note, reached: bool, out: &mut Vec<u8>) {
        if note == WAITAOF {
            self.synced(reached, out);
        }
    }

    /// See [`node::Face::fail`].
    pub fn fail(&mut self, session: &mut Session, note: Note, why: Failure, out: &mut Vec<u8>) {
        if note == WATCH {
            session.state.watch_failed();
        }
        if note != SILENT {
            write::error(out, &failure(why, self.port));
        }
    }

    /// See [`node::Face::reject`].
    pub fn reject(out: &mut Vec<u8>) {
        write::error(out, "ERR max number of clients reached");
    }

    /// See [`node::Face::close`].
    pub fn close(&mut self, id: ConnectionId) {
        self.clients().close(id);
    }
}

/// What framing adds to a command of few arguments.
const COMMAND_OVERHEAD: usize = 64 << 10;

/// What a client is told whose command came to nothing; `port` is where Redis clients come in.
pub fn failure(why: Failure, port: u16) -> String {
    match why {
        Failure::Unavailable => {
            "UNAVAILABLE the group has no quorum of replicas: the command was not executed"
                .to_owned()
        }
        Failure::Unknown => "TIMEOUT the outcome is unknown: the command was sent to the group \
                                 and not answered in time; it may have been executed"
            .to_owned(),
        Failure::StateLost => format!(
            "STATELOST more than f replicas crashed with durability memory, and the state is \
                 gone; to start over, empty: lockstep bootstrap --accept-loss --port {port}"
        ),
        Failure::Retired => {
            "RETIRED another process runs as this replica: the outcome is unknown".to_owned()
        }
        Failure::Interrupted => {
            "UNAVAILABLE a crash of the group has interrupted the command: it was not \
                 executed; send it again"
                .to_owned()
        }
        Failure::TooLong { bytes, most } => format!(
            "ERR the command takes {bytes} bytes and was not executed: this group takes {most} \
             at most; send less at a time, or start all its replicas with --order vsr, or with \
             --order mu and larger --slot-bytes"
        ),
        Failure::Lost { after, executed } => durability::lost(after, executed),
        Failure::Garbled => {
            "ERR the command was executed, but its reply was too large or damaged".to_owned()
        }
    }
}
