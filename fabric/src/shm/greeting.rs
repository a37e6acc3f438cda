//! Passing the memory: each side sends one message with its segment's file descriptor attached,
//! looks at the other's, and then says that it agrees. Who is not agreed with uses nothing of the
//! other's memory. A process that is stopped and goes on meanwhile is interrupted if its stream has
//! a timeout (signal(7)): every call is made again then.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::error::Error;

const GREETING: [u8; 8] = *b"LSFABR01";

/// Hands a file to the other side.
pub(crate) fn send(stream: &UnixStream, file: &OwnedFd) -> Result<(), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)), "there is space for one");
    let greeting = [IoSlice::new(&GREETING)];
    let sent = retry_on_intr(|| {
        rustix::net::sendmsg(stream, &greeting, &mut control, SendFlags::NOSIGNAL)
    });
    let sent = sent.map_err(|e| Error::os("send the memory", e))?;
    // A fresh socket takes eight bytes at once.
    if sent == GREETING.len() { Ok(()) } else { Err(Error::NotAPeer { what: "it takes nothing" }) }
}

/// Takes the other side's file.
pub(crate) fn receive(stream: &UnixStream) -> Result<OwnedFd, Error> {
    let mut bytes = [0; GREETING.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = retry_on_intr(|| {
        rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
    });
    let received = received.map_err(|e| Error::os("receive the peer's memory", e))?;
    if received.bytes != GREETING.len() || bytes != GREETING {
        return Err(Error::NotAPeer { what: "it does not greet as one" });
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Error::NotAPeer { what: "its memory was not passed" });
    }
    let files = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files.and_then(|mut files| files.next()).ok_or(Error::NotAPeer { what: "it passes no memory" })
}

/// Agrees. A fresh socket takes a byte at once.
pub(crate) fn agree(mut stream: &UnixStream) -> Result<(), Error> {
    match stream.write_all(&[1]) {
        Err(e) if is_closed(&e) => Err(Error::NotAPeer { what: "it did not agree" }),
        sent => sent.map_err(|e| Error::os("agree with the peer", e)),
    }
}

/// Waits for the other side to agree.
pub(crate) fn is_agreed(mut stream: &UnixStream) -> Result<(), Error> {
    match stream.read_exact(&mut [0]) {
        Ok(()) => Ok(()),
        Err(e) if is_closed(&e) => Err(Error::NotAPeer { what: "it did not agree" }),
        Err(e) => Err(Error::os("hear from the peer", e)),
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    let (pipe, reset) = (ErrorKind::BrokenPipe, ErrorKind::ConnectionReset);
    [pipe, reset, ErrorKind::UnexpectedEof].contains(&error.kind())
}

/// Whether the other side has said something, or has gone.
pub(crate) fn has_spoken(stream: &UnixStream) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let heard = rustix::net::recv(stream, &mut [0_u8; 1], flags);
    !matches!(heard, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
}

/// Whether the other side's process has ended, or has let go of its memory.
pub(crate) fn has_ended(stream: &UnixStream) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match rustix::net::recv(stream, &mut [0_u8; 1], flags) {
        Ok((0, _)) => true,
        Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
        Err(_) => true,
    }
}
