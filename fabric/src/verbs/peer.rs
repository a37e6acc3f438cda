//! A process that has been attached: what leads to it, and what it is let do here.

use super::channel::Channel;
use super::frame::Hello;
use super::link::Link;
use super::owner::Target;

pub(crate) struct Peer {
    pub(crate) link: Link,
    pub(crate) hello: Hello,
    /// By channel number: to its regions.
    pub(crate) channels: Vec<Channel>,
    /// By channel number: the ends of its channels to the regions here.
    pub(crate) targets: Vec<Target>,
    /// Its end has been taken note of.
    pub(crate) is_over: bool,
}
