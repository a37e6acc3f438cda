//! `cargo xtask xdp`: the sequencers' conformance suite against the XDP sequencer, whose clients
//! and members are in namespaces of this machine, joined by veths; and what sequencing adds to the
//! latency of multicast between them. Needs root on Linux, and Debian to install clang; where it
//! can't run it says why and is left out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::debian;

#[derive(clap::Args)]
pub struct Arguments {
    /// Where the compiled program is put.
    #[arg(long, default_value = "target/xdp")]
    folder: PathBuf,
    /// Fail, instead of leaving it out, where it can't run.
    #[arg(long)]
    required: bool,
}

const PACKAGES: &[&str] = &["clang", "libbpf-dev", "linux-libc-dev", "iproute2"];
const SOURCE: &str = "sequencer/xdp/sequencer.bpf.c";

/// Compiles and tests.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(reason) = obstacle()? {
        ensure!(!arguments.required, "the XDP sequencer can't run here: {reason}");
        println!("LEFT OUT: the XDP sequencer can't run here: {reason}");
        return Ok(());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent")?;
    std::fs::create_dir_all(&arguments.folder)?;
    let object = arguments.folder.canonicalize()?.join("sequencer.bpf.o");
    let status = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
        .arg("-c")
        .arg(root.join(SOURCE))
        .arg("-o")
        .arg(&object)
        .status()
        .context("cannot run clang")?;
    ensure!(status.success(), "{SOURCE} cannot be compiled");
    test_sequencer("xdp", "xdp", ("SEQUENCER_OBJECT", &object))
}

/// Runs a test of the sequencers that needs a feature, and is told where its program is.
pub fn test_sequencer(feature: &str, test: &str, (name, program): (&str, &Path)) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["test", "--package", "sequencer", "--features", feature, "--test", test])
        .args(["--", "--test-threads", "1", "--nocapture"])
        .env(name, program)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "a test of the sequencer in {feature} has failed");
    Ok(())
}

/// Why it can't run here, after what can be installed has been.
fn obstacle() -> Result<Option<String>> {
    if !cfg!(target_os = "linux") {
        return Ok(Some("it needs Linux".into()));
    }
    if !debian::is_root()? {
        return Ok(Some("it needs root".into()));
    }
    if let Some(reason) = debian::provide(PACKAGES)? {
        return Ok(Some(reason));
    }
    Ok(no_namespaces())
}

/// A container's root may make neither namespaces nor veths.
pub fn no_namespaces() -> Option<String> {
    let space = format!("lockstep-{}-try", std::process::id());
    let tries =
        [&["netns", "add", &space][..], &["-n", &space, "link", "add", "try", "type", "veth"]];
    let can = tries.iter().all(|arguments| ip(arguments));
    ip(&["netns", "del", &space]);
    (!can).then(|| "it may make neither network namespaces nor veths (a container?)".into())
}

fn ip(arguments: &[&str]) -> bool {
    let quiet = Command::new("ip").args(arguments).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}
