//! `orderbook replay --address` and `orderbook load`: a client of the binary protocol on one
//! connection, in a closed loop. `orderbook serve --trade`: the same in the replica's own process.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use node::Application;
use orderbook::Command;
use orderbook::feed::{Feed, Shape};
use orderbook::frame::{self, Answer};
use orderbook::tape::{Tape, Transcript};

use crate::ShapeFlags;

/// Commands on their way during a replay.
const REPLAY_PIPELINE: usize = 1024;

/// What takes longer, in nanoseconds, is not told apart.
const LONGEST: u64 = 60_000_000_000;

#[derive(Args)]
pub struct Load {
    /// The replica; its group must be empty
    #[arg(long, default_value = "127.0.0.1:7600")]
    address: String,
    /// Commands on their way
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pipeline: u32,
    #[command(flatten)]
    shape: ShapeFlags,
}

/// So often an application looks for an answer before it lets others have its core: for some tens
/// of microseconds.
const LOOKS: u32 = 2_000;

/// An application's end, whose reads and writes wait.
struct Waiting(Application);

impl Waiting {
    fn wait<T>(&mut self, mut act: impl FnMut(&mut Application) -> io::Result<T>) -> io::Result<T> {
        let mut looks = 0_u32;
        loop {
            match act(&mut self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            looks = looks.saturating_add(1);
            if looks > LOOKS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

impl Read for Waiting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|application| application.read(buffer))
    }
}

impl Write for Waiting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|application| application.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection.
struct Client<S> {
    stream: S,
    input: Vec<u8>,
    /// How much of the input has been given out.
    read: usize,
}

impl Client<TcpStream> {
    fn connect(address: &str) -> Result<Client<TcpStream>> {
        let stream =
            TcpStream::connect(address).with_context(|| format!("cannot reach {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Client { stream, input: Vec::new(), read: 0 })
    }
}

impl<S: Read + Write> Client<S> {
    /// Waits until there is an answer, and hands all that are there to `take`.
    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> Result<()> {
        let mut chunk = [0; 1 << 16];
        let before = self.read;
        while self.read == before {
            let count = self.stream.read(&mut chunk).context("no answer")?;
            ensure!(count > 0, "the replica has closed the connection");
            self.input.extend_from_slice(&chunk[..count]);
            while let Some(length) = frame::answer_length(&self.input[self.read..]) {
                take(&self.input[self.read..self.read + length]);
                self.read += length;
            }
        }
        self.input.drain(..self.read);
        self.read = 0;
        Ok(())
    }

    /// The state's digest and how many orders it ever accepted.
    fn digest(&mut self) -> Result<(u64, u64)> {
        let mut request = Vec::new();
        frame::push_command(&mut request, &Command::Digest);
        self.stream.write_all(&request)?;
        let mut found = None;
        self.receive(|answer| found = frame::read_answer(answer))?;
        match found {
            Some(Answer::Digest(view)) => Ok((view.digest, view.accepted)),
            other => bail!("the replica answered {other:?}"),
        }
    }

    fn check_empty(&mut self) -> Result<()> {
        let (_, accepted) = self.digest()?;
        ensure!(accepted == 0, "the group has orders already: it must be empty");
        Ok(())
    }

    /// Sends a tape with `pipeline` commands on their way; `done` is told of each answer and when
    /// its command was sent.
    fn send(
        &mut self,
        tape: &Tape,
        pipeline: usize,
        mut done: impl FnMut(&[u8], Instant),
    ) -> Result<()> {
        let mut commands = tape.batches(1);
        let mut flying = VecDeque::with_capacity(pipeline);
        let mut output = Vec::new();
        loop {
            output.clear();
            let now = Instant::now();
            for command in commands.by_ref().take(pipeline - flying.len()) {
                output.extend_from_slice(command);
                flying.push_back(now);
            }
            if flying.is_empty() {
                return Ok(());
            }
            self.stream.write_all(&output)?;
            let mut surplus = 0;
            self.receive(|answer| match flying.pop_front() {
                Some(sent) => done(answer, sent),
                None => surplus += 1,
            })?;
            ensure!(surplus == 0, "more answers than commands");
        }
    }
}

fn connect_to_empty(address: &str) -> Result<Client<TcpStream>> {
    let mut client = Client::connect(address)?;
    client.check_empty()?;
    Ok(client)
}

/// Plays a tape to a replica; returns the digests of its state and of its answers.
pub fn replay(address: &str, tape: &Tape) -> Result<(u64, Transcript)> {
    let mut client = connect_to_empty(address)?;
    let mut transcript = Transcript::default();
    client.send(tape, REPLAY_PIPELINE, |answer, _| transcript.add(answer))?;
    Ok((client.digest()?.0, transcript))
}

/// Plays a feed to a replica and prints rate and latencies.
pub fn load(flags: &Load) -> Result<()> {
    let client = connect_to_empty(&flags.address)?;
    println!("{}", measure(client, &flags.shape.record(), flags.pipeline as usize)?);
    Ok(())
}

/// Trades from a thread of the replica's process, once there is somebody to answer, and says how
/// long that took.
pub fn trade(count: usize, application: Application) {
    std::thread::spawn(move || {
        let tape = Tape::record(Feed::new(Shape::default()).take(count));
        let mut client = Client { stream: Waiting(application), input: Vec::new(), read: 0 };
        match client.check_empty().and_then(|()| measure(client, &tape, 1)) {
            Ok(line) => println!("{line}"),
            Err(error) => eprintln!("orderbook: the trade has ended: {error:#}"),
        }
    });
}

/// Rate and latencies of a tape.
fn measure<S: Read + Write>(mut client: Client<S>, tape: &Tape, pipeline: usize) -> Result<String> {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST, 3)?;
    let start = Instant::now();
    client.send(tape, pipeline, |_, sent| {
        histogram.saturating_record(sent.elapsed().as_nanos() as u64);
    })?;
    let rate = histogram.len() as f64 / start.elapsed().as_secs_f64();
    let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Ok(format!(
        "{} commands, {pipeline} on their way: {rate:.0}/s, p50 {:.2} us, p99 {:.1} us, p99.9 \
         {:.1} us",
        histogram.len(),
        at(0.5),
        at(0.99),
        at(0.999),
    ))
}
