//! Whether a process runs, as the kernel says. The end of a process shows here before its memory is
//! taken apart, milliseconds before its socket is closed; that it was stopped shows nowhere else.
//!
//! Good enough for a suspicion, and for nothing else: a process whose end has begun may still be in
//! the middle of a store (see `docs/fabric.md`, "The end of a process is known").

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

/// Bits of a task's flags (proc(5), field 9 of `stat`): it is ending; a signal ends it.
const PF_EXITING: u64 = 0x4;
const PF_SIGNALED: u64 = 0x400;

/// A process's `/proc/N/stat`. It stays that process's: an id that is used again is not seen.
pub(crate) struct Vigil(Option<File>);

impl Vigil {
    /// Watches the process at the other end. Where `/proc` does not show it, nothing is seen.
    pub(crate) fn over(stream: &UnixStream) -> Vigil {
        let peer = rustix::net::sockopt::socket_peercred(stream).ok();
        let open = |pid: i32| File::open(format!("/proc/{pid}/stat")).ok();
        Vigil(peer.and_then(|peer| open(peer.pid.as_raw_nonzero().get())))
    }

    /// Whether the process does not run and will not by itself. Takes about a microsecond or five.
    pub(crate) fn sees_halt(&self) -> bool {
        let Some(file) = &self.0 else { return false };
        let mut text = [0; 512];
        match file.read_at(&mut text, 0) {
            Ok(length) => is_halted(&text[..length]),
            // There is no such process any more.
            Err(_) => true,
        }
    }
}

/// Of a line of `stat`.
fn is_halted(line: &[u8]) -> bool {
    // The second field is the program's name in parentheses, with whatever characters it has.
    let Some(end) = line.iter().rposition(|&byte| byte == b')') else { return false };
    let text = String::from_utf8_lossy(&line[end + 1..]);
    let mut fields = text.split_ascii_whitespace();
    // Stopped by a signal, stopped by a debugger, ended and not waited for, gone.
    let stands = fields.next().is_some_and(|state| matches!(state, "T" | "t" | "Z" | "X"));
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    stands || flags & (PF_EXITING | PF_SIGNALED) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_flags_are_told_apart() {
        let line = |state: &str, flags: u64| {
            format!("17 (a) b) {state} 1 17 17 0 -1 {flags} 120 0 0 0 5 2 0 0 20 0 1 0 9\n")
        };
        for state in ["R", "S", "D"] {
            assert!(!is_halted(line(state, 0x0040_0100).as_bytes()), "{state}");
            assert!(is_halted(line(state, 0x0040_0104).as_bytes()), "its end has begun");
            assert!(is_halted(line(state, 0x0040_0500).as_bytes()), "it has been killed");
        }
        for state in ["T", "t", "Z", "X"] {
            assert!(is_halted(line(state, 0x0040_0100).as_bytes()), "{state}");
        }
        assert!(!is_halted(b""), "nothing says so");
    }
}
