//! Network namespaces of this machine, for as long as a test runs. Needs root.

#![allow(missing_docs)]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub struct Spaces {
    prefix: String,
    names: Vec<String>,
}

/// Asks iproute2.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}

impl Spaces {
    pub fn new(test: &str, names: Vec<String>) -> Spaces {
        let prefix = format!("lockstep-{}-{test}", std::process::id());
        let spaces = Spaces { prefix, names };
        for space in &spaces.names {
            let space = spaces.name(space);
            ip(&format!("netns add {space}"));
            ip(&format!("-n {space} link set lo up"));
        }
        spaces
    }

    /// A namespace, as the system calls it.
    pub fn name(&self, of: &str) -> String {
        format!("{}-{of}", self.prefix)
    }

    /// Does something in a namespace.
    pub fn within<T: Send>(&self, of: &str, what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter(of);
                what()
            });
            inside.join().expect("no panic")
        })
    }

    /// Moves this thread into a namespace.
    pub fn enter(&self, of: &str) {
        let file = File::open(format!("/run/netns/{}", self.name(of))).expect("a namespace");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root");
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for space in &self.names {
            let _ = Command::new("ip").args(["netns", "del", &self.name(space)]).status();
        }
    }
}
