//! Which process has a UDP socket, as Linux tells in `/proc`: a sequencer is known by its address
//! alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};

/// The process on this machine that has a UDP socket bound to `address`, or to all addresses with
/// its port; `None` if no process that may be looked at has.
///
/// # Errors
/// If the address is not of IPv4, or `/proc` cannot be read.
pub fn owner(address: SocketAddr) -> Result<Option<i32>> {
    let IpAddr::V4(ip) = address.ip() else { bail!("{address}: only IPv4 is looked up") };
    let table = std::fs::read_to_string("/proc/net/udp").context("cannot read /proc/net/udp")?;
    let is_it = |at: (Ipv4Addr, u16)| {
        [(ip, address.port()), (Ipv4Addr::UNSPECIFIED, address.port())].contains(&at)
    };
    let lines = table.lines().skip(1).filter_map(entry);
    let links: Vec<String> =
        lines.filter(|(at, _)| is_it(*at)).map(|(_, inode)| format!("socket:[{inode}]")).collect();
    if links.is_empty() {
        return Ok(None);
    }
    for process in std::fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        // Those of other users cannot be looked at, and some have ended meanwhile.
        let Some((pid, files)) = pid.zip(std::fs::read_dir(process.path().join("fd")).ok()) else {
            continue;
        };
        let targets = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        if targets
            .into_iter()
            .any(|target| links.iter().any(|link| target.as_os_str() == link.as_str()))
        {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// A line's local address and inode.
fn entry(line: &str) -> Option<((Ipv4Addr, u16), u64)> {
    let mut words = line.split_whitespace();
    let (ip, port) = words.nth(1)?.split_once(':')?;
    let inode = words.nth(7)?.parse().ok()?;
    // The kernel prints the address as a number in the machine's order of bytes.
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some(((ip, u16::from_str_radix(port, 16).ok()?), inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_socket_is_its_processs_own_until_it_is_closed() {
        let own = Some(std::process::id() as i32);
        for ip in ["127.0.0.1", "0.0.0.0"] {
            let socket = UdpSocket::bind((ip, 0)).expect("bound");
            let port = socket.local_addr().expect("bound").port();
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            assert_eq!(owner(address).expect("readable"), own);
            drop(socket);
            assert_eq!(owner(address).expect("readable"), None);
        }
    }

    #[test]
    fn a_line_of_the_table_is_read() {
        let line = "  493: 0100007F:1E14 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    0        0 5117 2 0000000000000000 0";
        assert_eq!(entry(line), Some(((Ipv4Addr::LOCALHOST, 7700), 5117)));
        assert_eq!(entry("no line"), None);
    }
}
