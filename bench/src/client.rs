//! One blocking connection, one request at a time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub use resp::Value;
use resp::{ReplyParser, write};

/// A connection to a RESP server.
pub struct Client {
    socket: TcpStream,
    output: Vec<u8>,
    input: Vec<u8>,
}

impl Client {
    /// Connects; neither that nor any reply later may take longer than `patience`.
    pub fn connect(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, patience)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        Ok(Self { socket, output: Vec::new(), input: Vec::new() })
    }

    /// Sends a command and waits for its reply. After an error the connection is of no use: a
    /// late reply would be taken for that of the next command.
    pub fn request(&mut self, arguments: &[&[u8]]) -> io::Result<Value> {
        let mut replies = self.request_all(&[arguments])?;
        Ok(replies.pop().expect("one reply per command"))
    }

    /// Sends commands at once and waits for all their replies.
    pub fn request_all(&mut self, commands: &[&[&[u8]]]) -> io::Result<Vec<Value>> {
        let mut replies = Vec::with_capacity(commands.len());
        self.exchange(commands, &mut replies)?;
        Ok(replies)
    }

    /// As [`Client::request_all`]; but if the server has closed the connection behind some replies,
    /// those are returned.
    pub fn request_some(&mut self, commands: &[&[&[u8]]]) -> io::Result<Vec<Value>> {
        let mut replies = Vec::with_capacity(commands.len());
        match self.exchange(commands, &mut replies) {
            Err(error) if replies.is_empty() => Err(error),
            _ => Ok(replies),
        }
    }

    fn exchange(&mut self, commands: &[&[&[u8]]], replies: &mut Vec<Value>) -> io::Result<()> {
        self.output.clear();
        for arguments in commands {
            write::command(&mut self.output, arguments);
        }
        self.socket.write_all(&self.output)?;
        self.input.clear();
        let mut parser = ReplyParser::new();
        let mut start = 0;
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        let mut chunk = [0; 4096];
        while replies.len() < commands.len() {
            let Some(shape) = parser.parse(&self.input[start..]).map_err(invalid)? else {
                let count = self.socket.read(&mut chunk)?;
                if count == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                self.input.extend_from_slice(&chunk[..count]);
                continue;
            };
            let reply = &self.input[start..start + shape.len];
            replies.push(Value::parse(reply).map_err(invalid)?.0);
            start += shape.len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Lie};

    #[test]
    fn replies_come_in_the_order_of_the_commands() {
        let fake = Fake::start(1, Lie::None);
        let mut client = Client::connect(fake.addresses[0], Duration::from_secs(5)).unwrap();
        let large = vec![b'x'; 50_000];
        let replies = client
            .request_all(&[&[b"SET", b"a", &large], &[b"GET", b"a"], &[b"GET", b"b"]])
            .unwrap();
        assert_eq!(replies[0], Value::Simple(b"OK".to_vec()));
        assert_eq!(replies[1], Value::Bulk(large));
        assert_eq!(replies[2], Value::Null);
        assert_eq!(client.request(&[b"INCR", b"c"]).unwrap(), Value::Integer(1));
    }
}
