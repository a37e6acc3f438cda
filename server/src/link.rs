//! A blocking connection to a replica's Redis port, for the program's own questions.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use resp::{ReplyParser, Value, write};
use serde_json::Value as Json;

/// A connection.
pub struct Link {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Link {
    /// Connects; every later call gives up after `patience`.
    pub fn connect(address: &str, patience: Duration) -> Result<Link> {
        let target = address.to_socket_addrs()?.next();
        let target = target.with_context(|| format!("{address}: no such host"))?;
        let stream = TcpStream::connect_timeout(&target, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Link { stream, input: Vec::new() })
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, command: &[&str]) -> Result<Value> {
        let argv: Vec<&[u8]> = command.iter().map(|argument| argument.as_bytes()).collect();
        let mut request = Vec::new();
        write::command(&mut request, &argv);
        self.stream.write_all(&request)?;
        let mut parser = ReplyParser::new();
        loop {
            if parser.parse(&self.input)?.is_some() {
                let (value, length) = Value::parse(&self.input)?;
                self.input.drain(..length);
                return Ok(value);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk)? {
                0 => bail!("the connection was closed"),
                count => self.input.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// LOCKSTEP.STATUS.
    pub fn status(&mut self) -> Result<Json> {
        match self.call(&["LOCKSTEP.STATUS"])? {
            Value::Bulk(text) => Ok(serde_json::from_slice(&text)?),
            _ => bail!("it is no Lockstep replica"),
        }
    }
}

/// One question to one replica.
pub fn ask_status(address: &str, patience: Duration) -> Result<Json> {
    Link::connect(address, patience)?.status()
}
