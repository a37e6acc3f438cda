//! A replica whatever its protocol: what users of this crate see.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fabric::shm::Endpoint;

use crate::attached::Application;
use crate::event::Event;
use crate::face::Face;
use crate::family::Vsr;
use crate::introduce::{self, Introductions};
use crate::member::Member;
use crate::options::{Multicast, Ordering, SharedMemory};
use crate::replica::{Core, Exit};
use crate::shared::{OwnMemory, Shared};
use crate::start::Setting;
use crate::{Error, Options};

/// One replica with its network, disk and clock.
pub struct Node<F: Face>(Kind<F>);

enum Kind<F: Face> {
    Vsr(Box<Core<F, Vsr>>),
    Mu(Box<Core<F, Shared>>),
    Nopaxos(Box<Core<F, Member>>),
}

impl<F: Face> Node<F> {
    /// Opens the data directory (or makes it, as [`Options::birth`] says), loads its state into
    /// `service` and listens. `events` is told what an operator should know.
    ///
    /// # Errors
    /// If the directory cannot be used or is another replica's, an address is taken, or the options
    /// do not go together.
    pub fn open(
        options: Options,
        face: F,
        service: F::Service,
        events: Box<dyn FnMut(&Event)>,
    ) -> Result<Node<F>, Error> {
        let kind = match options.order.clone() {
            Ordering::Vsr { timing, limits } => {
                let core = Core::open(options, face, service, events, |setting| {
                    Ok((Vsr, vsr_replica(setting, timing, limits)))
                });
                Kind::Vsr(Box::new(core?))
            }
            Ordering::Mu(shared) => {
                shared.check(options.peers.len())?;
                let core = Core::open(options, face, service, events, |setting| {
                    mu_replica(setting, &shared)
                });
                Kind::Mu(Box::new(core?))
            }
            Ordering::Nopaxos(multicast) => {
                multicast.check()?;
                let core = Core::open(options, face, service, events, |setting| {
                    nopaxos_replica(setting, &multicast)
                });
                Kind::Nopaxos(Box::new(core?))
            }
        };
        Ok(Node(kind))
    }

    /// Connects a thread of this process, which speaks the face's protocol through memory instead
    /// of a socket ([Mu] 3.3, 6: "handover"). It counts as a client of the first entrance. Where
    /// both threads have a core of their own, [`Options::spin`] saves a system call per request; on
    /// one that they share it only keeps the thread waiting.
    pub fn attach(&mut self) -> Application {
        match &mut self.0 {
            Kind::Vsr(core) => core.attach(),
            Kind::Mu(core) => core.attach(),
            Kind::Nopaxos(core) => core.attach(),
        }
    }

    /// Runs the replica until `stop` is set or a face orders its end.
    ///
    /// # Errors
    /// A disk that fails, or a newer life of the replica. The replica must not go on then.
    pub fn run(self, stop: &Arc<AtomicBool>) -> Result<Exit, Error> {
        match self.0 {
            Kind::Vsr(core) => core.run(stop),
            Kind::Mu(core) => core.run(stop),
            Kind::Nopaxos(core) => core.run(stop),
        }
    }
}

fn vsr_replica(setting: &Setting<'_>, timing: vsr::Timing, limits: vsr::Limits) -> vsr::Replica {
    let Setting { options, hello, now, .. } = setting;
    let (identity, replicas) = (hello.identity, hello.replicas);
    let config = vsr::Config::new(identity, replicas, options.durability, now.micros);
    vsr::Replica::new(vsr::Config { timing, limits, ..config })
}

fn nopaxos_replica(
    setting: &Setting<'_>,
    multicast: &Multicast,
) -> Result<(Member, nopaxos::Replica), Error> {
    let Setting { options, hello, now, .. } = setting;
    let (identity, replicas) = (hello.identity, hello.replicas);
    let config = nopaxos::Config::new(identity, replicas, options.durability, now.micros);
    let limits = Multicast::limits(replicas);
    let member = Member::join(identity, multicast, setting.poll, *now)?;
    Ok((member, nopaxos::Replica::new(nopaxos::Config { limits, ..config })))
}

fn mu_replica(
    setting: &Setting<'_>,
    shared: &SharedMemory,
) -> Result<(Shared, mu::Replica<OwnMemory>), Error> {
    let hello = setting.hello.clone();
    let (me, replicas) = (hello.identity.replica, hello.replicas);
    let mut config = mu::Config {
        timing: shared.timing(),
        limits: shared.limits(),
        durability: setting.options.durability,
        ..mu::Config::new(hello.identity, replicas)
    };
    if !shared.members.is_empty() {
        config.members = shared.members.iter().fold(0, |set, member| set | 1 << member.0);
    }
    let endpoint = Endpoint::new(mu::geometry(&config), me).map_err(Error::Fabric)?;
    let directory = &shared.directory;
    let listener = introduce::bind(directory, me)?;
    let (introduction, waker) = (endpoint.introduction(), setting.poll.waker());
    let introductions = Introductions::start(hello, directory, listener, introduction, waker)
        .map_err(|error| Error::Os("meet the other replicas", error))?;
    let family = Shared::new(endpoint, introductions, &config);
    let memory = family.memory();
    Ok((family, mu::Replica::new(config, memory)))
}
