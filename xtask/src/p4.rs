//! `cargo xtask p4`: the sequencers' conformance suite against `sequencer/p4/sequencer.p4`, as the
//! P4 compiler makes it and bmv2's switch runs it, between namespaces of this machine joined by
//! veths. Needs root on Linux and the P4 tools, which Debian does not have; where it can't run it
//! says why and is left out. (Without the tools the program's text is run by the tests of the
//! crate `sequencer`.)

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{debian, xdp};

#[derive(clap::Args)]
pub struct Arguments {
    /// Where the compiled program is put.
    #[arg(long, default_value = "target/p4")]
    folder: PathBuf,
    /// Fail, instead of leaving it out, where it can't run.
    #[arg(long)]
    required: bool,
}

const TOOLS: &[&str] = &["p4c-bm2-ss", "simple_switch", "simple_switch_CLI"];
const PACKAGES: &[&str] = &["iproute2", "ethtool"];
const SOURCE: &str = "sequencer/p4/sequencer.p4";

/// Compiles and tests.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(reason) = obstacle()? {
        ensure!(!arguments.required, "the P4 sequencer can't run here: {reason}");
        println!("LEFT OUT: the P4 sequencer can't run here: {reason}");
        return Ok(());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent")?;
    std::fs::create_dir_all(&arguments.folder)?;
    let program = arguments.folder.canonicalize()?.join("sequencer.json");
    let status = Command::new("p4c-bm2-ss")
        .args(["--p4v", "16", "-o"])
        .arg(&program)
        .arg(root.join(SOURCE))
        .status()
        .context("cannot run p4c-bm2-ss")?;
    ensure!(status.success(), "{SOURCE} cannot be compiled");
    xdp::test_sequencer("p4", "switch", ("SWITCH_PROGRAM", &program))
}

/// Why it can't run here, after what can be installed has been.
fn obstacle() -> Result<Option<String>> {
    let there = |tool: &&str| {
        let mut tried = Command::new(tool);
        tried.arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let missing: Vec<&str> = TOOLS.iter().filter(|tool| !there(tool)).copied().collect();
    if !missing.is_empty() {
        return Ok(Some(format!("there is no {} on the PATH", missing.join(", "))));
    }
    if !debian::is_root()? {
        return Ok(Some("it needs root".into()));
    }
    if let Some(reason) = debian::provide(PACKAGES)? {
        return Ok(Some(reason));
    }
    Ok(xdp::no_namespaces())
}
