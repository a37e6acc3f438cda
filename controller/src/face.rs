//! The controllers' commands as a face of a node: a line each, answered in their order.

use std::io::Write;

use node::{ConnectionId, Desk, Face, Failure, Note, Step};
use smr::Now;

use crate::config::Config;
use crate::text::{Command, MAX_LINE};

/// The face.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lines;

fn refuse(desk: &mut Desk<'_, Config>, why: &str) {
    desk.answer(|out| error(out, why));
}

fn error(out: &mut Vec<u8>, why: &str) {
    // Into memory.
    let _ = writeln!(out, "error {why}");
}

fn status(desk: &Desk<'_, Config>) -> String {
    let status = desk.status();
    let leader = status.report.view.primary().0;
    format!(
        "status controller {} role {} view {} leader {leader} commit {}\n",
        status.identity.replica.0,
        status.report.role.name(),
        status.view_number,
        status.report.commit.0,
    )
}

impl Face for Lines {
    type Service = Config;
    type Session = ();

    fn open(&mut self, _: ConnectionId, _: usize, _: &str, _: Now) {}

    fn take(&mut self, (): &mut (), input: &[u8], desk: &mut Desk<'_, Config>) -> Step {
        let front = &input[..input.len().min(MAX_LINE)];
        let Some(end) = front.iter().position(|&byte| byte == b'\n') else {
            if front.len() < MAX_LINE {
                return Step::More(1);
            }
            refuse(desk, "the line is too long");
            return Step::Close;
        };
        let taken = Step::Taken(end + 1);
        let line = String::from_utf8_lossy(&input[..end]);
        let command = match line.trim() {
            "" => return taken,
            "quit" => return Step::Close,
            "status" => {
                let line = status(desk);
                desk.answer(|out| out.extend_from_slice(line.as_bytes()));
                return taken;
            }
            line => Command::parse(line),
        };
        let command = match command {
            Ok(command) => command,
            Err(why) => {
                refuse(desk, &why.to_string());
                return taken;
            }
        };
        let push = |body: &mut Vec<u8>| body.extend_from_slice(format!("{command}\n").as_bytes());
        let reads = command.reads();
        let fits = if reads { desk.read(Note(0), push) } else { desk.write(Note(0), push) };
        if fits { taken } else { Step::Wait }
    }

    fn items(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
        answer.split_inclusive(|&byte| byte == b'\n')
    }

    fn answer(&mut self, (): &mut (), _: Note, item: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(item);
    }

    fn fail(&mut self, (): &mut (), _: Note, why: Failure, out: &mut Vec<u8>) {
        error(
            out,
            match why {
                Failure::Unavailable | Failure::Interrupted => {
                    "unavailable: fewer than a majority of the controllers answer; not executed"
                }
                Failure::Unknown | Failure::Lost { .. } => {
                    "timeout: it may have been executed; see `show`"
                }
                Failure::StateLost => "the controllers' state is lost",
                Failure::Retired => "this controller has been started elsewhere, too",
                Failure::Garbled => "executed, but the answer is garbled; see `show`",
                Failure::TooLong { .. } => unreachable!("lines are short"),
            },
        );
    }

    fn reject(&mut self, _: usize, out: &mut Vec<u8>) {
        error(out, "too many connections");
    }

    fn close(&mut self, _: ConnectionId, (): ()) {}
}
