//! The engine's protocols as a face of a node. This and `serve.rs` are the whole of the glue
//! between the engine and its replication.
//!
//! A connection may mix both protocols: the first byte of a command says which one it is in, and it
//! is answered in the same.

use std::io::Write;

use node::{ConnectionId, Desk, Face, Failure, Note, Step};
use smr::Now;

use crate::engine::Engine;
use crate::frame::{self, Front};
use crate::order::{Command, Refusal};
use crate::text::{self, Line, MAX_LINE};

const BINARY: Note = Note(0);
const TEXT: Note = Note(1);

/// The face.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchange;

impl Exchange {
    /// Sends a command of `length` bytes to the group.
    fn submit(command: &Command, length: usize, note: Note, desk: &mut Desk<'_, Engine>) -> Step {
        // A full disk must not keep anybody from getting out of the market.
        if desk.status().disk_full && matches!(command, Command::Enter(_)) {
            desk.answer(|out| refuse(out, note, Refusal::DiskFull));
            return Step::Taken(length);
        }
        let push = |body: &mut Vec<u8>| frame::push_command(body, command);
        let taken = if command.writes() { desk.write(note, push) } else { desk.read(note, push) };
        if taken { Step::Taken(length) } else { Step::Wait }
    }

    fn take_line(input: &[u8], desk: &mut Desk<'_, Engine>) -> Step {
        let front = &input[..input.len().min(MAX_LINE)];
        let Some(end) = front.iter().position(|&byte| byte == b'\n') else {
            if front.len() < MAX_LINE {
                return Step::More(1);
            }
            desk.answer(|out| text::push_refusal(out, Refusal::Malformed));
            return Step::Close;
        };
        match text::read_line(&input[..end]) {
            Line::Command(command) => return Self::submit(&command, end + 1, TEXT, desk),
            Line::Empty => {}
            Line::Ping => desk.answer(|out| out.extend_from_slice(b"PONG\n")),
            Line::Status => {
                let line = status_line(desk);
                desk.answer(|out| out.extend_from_slice(line.as_bytes()));
            }
            Line::Nonsense => desk.answer(|out| text::push_refusal(out, Refusal::Malformed)),
            Line::Quit => return Step::Close,
        }
        Step::Taken(end + 1)
    }
}

fn status_line(desk: &Desk<'_, Engine>) -> String {
    let status = desk.status();
    format!(
        "STATUS REPLICA {} ROLE {} VIEW {} COMMIT {} CHECKPOINT {} ORDERS {}\n",
        status.identity.replica.0,
        status.report.role.name(),
        status.report.view.0,
        status.report.commit.0,
        status.report.checkpoint.op.0,
        desk.service().orders(),
    )
}

fn refuse(out: &mut Vec<u8>, note: Note, refusal: Refusal) {
    match note {
        TEXT => text::push_refusal(out, refusal),
        _ => frame::push_refusal(out, refusal),
    }
}

impl Face for Exchange {
    type Service = Engine;
    type Session = ();

    fn open(&mut self, _: ConnectionId, _: usize, _: &str, _: Now) {}

    #[inline]
    fn take(&mut self, (): &mut (), input: &[u8], desk: &mut Desk<'_, Engine>) -> Step {
        if input[0].is_ascii() {
            return Self::take_line(input, desk);
        }
        match frame::front(input) {
            Front::Command(command, length) => Self::submit(&command, length, BINARY, desk),
            Front::Short(missing) => Step::More(missing),
            Front::Nonsense(length) => {
                desk.answer(|out| frame::push_refusal(out, Refusal::Malformed));
                Step::Taken(length)
            }
            Front::Lost => {
                desk.answer(|out| frame::push_refusal(out, Refusal::Malformed));
                Step::Close
            }
        }
    }

    fn items(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
        frame::answers(answer)
    }

    #[inline]
    fn answer(&mut self, (): &mut (), note: Note, item: &[u8], out: &mut Vec<u8>) {
        match note {
            TEXT => text::push_answer(out, item),
            _ => out.extend_from_slice(item),
        }
    }

    fn fail(&mut self, (): &mut (), note: Note, why: Failure, out: &mut Vec<u8>) {
        let refusal = match why {
            Failure::Unavailable | Failure::Interrupted => Refusal::Unavailable,
            Failure::Unknown | Failure::Lost { .. } => Refusal::Timeout,
            Failure::StateLost => Refusal::StateLost,
            Failure::Retired => Refusal::Retired,
            Failure::Garbled => Refusal::Garbled,
            Failure::TooLong { .. } => unreachable!("orders are short"),
        };
        refuse(out, note, refusal);
    }

    fn reject(&mut self, _: usize, out: &mut Vec<u8>) {
        // Nobody knows yet which protocol this client speaks; people read this one.
        let _ = writeln!(out, "ERR {}", Refusal::TooManyClients);
    }

    fn close(&mut self, _: ConnectionId, (): ()) {}
}
