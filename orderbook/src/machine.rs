//! The engine as a service that can be replicated. A request holds commands one after the other;
//! its answer holds an answer for each, in their order.

use smr::{BadCheckpoint, Context, ReadOutcome, StateMachine};

use crate::engine::{Engine, Undo};
use crate::frame::{self, Answered, Front, push_numbers};
use crate::order::{Command, MAX_DEPTH, OrderId, Refusal, Side, Symbol};

impl StateMachine for Engine {
    type Undo = Undo;

    fn apply(&mut self, _: Context, request: &[u8], reply: &mut Vec<u8>) -> Undo {
        let totals = self.totals;
        let mut rest = request;
        while !rest.is_empty() {
            let Front::Command(command, length) = frame::front(rest) else {
                frame::push_refusal(reply, Refusal::Malformed);
                break;
            };
            self.execute(&command, reply);
            rest = &rest[length..];
        }
        self.take_undo(totals)
    }

    fn undo(&mut self, undo: Undo) {
        self.take_back(undo);
    }

    fn read(&self, _: u64, request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        let mut rest = request;
        while !rest.is_empty() {
            let Front::Command(command, length) = frame::front(rest) else {
                frame::push_refusal(reply, Refusal::Malformed);
                break;
            };
            self.answer(&command, reply);
            rest = &rest[length..];
        }
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {
        self.begin_checkpoint();
    }

    fn checkpoint_next(&mut self, budget: usize, out: &mut Vec<u8>) -> bool {
        self.next_chunk(budget, out)
    }

    fn checkpoint_abort(&mut self) {
        self.checkpoint = None;
    }

    fn restore_begin(&mut self) {
        *self = Engine::new(self.limits);
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        self.add_chunk(chunk)
    }
}

impl Engine {
    #[inline]
    fn execute(&mut self, command: &Command, reply: &mut Vec<u8>) {
        match *command {
            Command::Enter(new) => {
                frame::push_report(reply, |mut fill| self.enter(&new, &mut fill))
            }
            Command::Cancel(order) => frame::push_report(reply, |_| self.cancel(order)),
            Command::Modify { order, quantity, price } => {
                frame::push_report(reply, |mut fill| {
                    self.modify(order, quantity, price, &mut fill)
                });
            }
            // A read may be logged behind writes.
            _ => self.answer(command, reply),
        }
    }

    /// Answers a command that reads.
    fn answer(&self, command: &Command, reply: &mut Vec<u8>) {
        let start = reply.len();
        let answered = match *command {
            Command::Top(symbol) => self.answer_top(symbol, reply),
            Command::Depth(symbol, levels) => self.answer_depth(symbol, levels, reply),
            Command::Status(order) => self.answer_status(order, reply),
            Command::Digest => {
                self.answer_digest(reply);
                Ok(())
            }
            Command::Enter(_) | Command::Cancel(_) | Command::Modify { .. } => {
                Err(Refusal::Malformed)
            }
        };
        if let Err(refusal) = answered {
            reply.truncate(start);
            frame::push_refusal(reply, refusal);
        }
    }

    fn answer_top(&self, symbol: Symbol, reply: &mut Vec<u8>) -> Result<(), Refusal> {
        let book = &self.books[usize::from(self.book_of(symbol)?)];
        frame::push_answer(reply, Answered::Top as u8, |out| {
            out.extend_from_slice(&symbol.padded());
            for side in [Side::Buy, Side::Sell] {
                let (price, quantity) = book.touch(side, &self.levels);
                push_numbers(out, [price.0, quantity]);
            }
        });
        Ok(())
    }

    fn answer_depth(&self, symbol: Symbol, most: u16, reply: &mut Vec<u8>) -> Result<(), Refusal> {
        let book = &self.books[usize::from(self.book_of(symbol)?)];
        let most = usize::from(most.clamp(1, MAX_DEPTH));
        frame::push_answer(reply, Answered::Depth as u8, |out| {
            out.extend_from_slice(&symbol.padded());
            for side in [Side::Buy, Side::Sell] {
                let place = out.len();
                out.extend_from_slice(&[0; 2]);
                let mut count = 0_u16;
                for (_, slot) in book.ladder(side).iter().take(most) {
                    let level = &self.levels[slot];
                    push_numbers(out, [level.price.0, level.quantity]);
                    out.extend_from_slice(&level.count.to_le_bytes());
                    count += 1;
                }
                out[place..place + 2].copy_from_slice(&count.to_le_bytes());
            }
        });
        Ok(())
    }

    fn answer_status(&self, id: OrderId, reply: &mut Vec<u8>) -> Result<(), Refusal> {
        let order = &self.orders[self.slot_of(id)?];
        let symbol = self.books[usize::from(order.book)].symbol;
        frame::push_answer(reply, Answered::Status as u8, |out| {
            push_numbers(out, [id.0]);
            out.extend_from_slice(&symbol.padded());
            out.push(order.side as u8);
            push_numbers(out, [order.price.0, order.remaining, order.filled]);
        });
        Ok(())
    }

    fn answer_digest(&self, reply: &mut Vec<u8>) {
        let (accepted, trades) = (self.totals.next_order - 1, self.totals.next_trade - 1);
        let counts = [u64::from(self.orders()), self.books.len() as u64, accepted, trades];
        frame::push_answer(reply, Answered::Digest as u8, |out| {
            push_numbers(out, [self.digest()]);
            push_numbers(out, counts);
        });
    }
}
