//! Packages of Debian that a task needs.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Sees to it that these are installed; says why they cannot be.
pub fn provide(packages: &[&str]) -> Result<Option<String>> {
    let has = |program: &str| {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !has("apt-get") || !has("dpkg") {
        return Ok(Some("it needs Debian's apt-get and dpkg".into()));
    }
    let is_missing = |package: &&&str| {
        let query = ["--show", "--showformat=${db:Status-Status}", package];
        let shown = Command::new("dpkg-query").args(query).output();
        !shown.is_ok_and(|shown| shown.status.success() && shown.stdout == b"installed")
    };
    let missing: Vec<&str> = packages.iter().filter(is_missing).copied().collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let list = missing.join(" ");
    if !is_root()? {
        return Ok(Some(format!("install first, as root: {list} (and apt-get update)")));
    }
    if let Some(reason) = update()? {
        return Ok(Some(reason));
    }
    let install = [&["install", "-qy", "--no-install-recommends"], &missing[..]].concat();
    Ok((!quietly(&install)).then(|| format!("apt-get cannot install {list}")))
}

/// Has apt learn which packages there are; says why it cannot.
pub fn update() -> Result<Option<String>> {
    if !is_root()? {
        return Ok(Some("run first, as root: apt-get update".into()));
    }
    Ok((!quietly(&["update", "-q"])).then(|| "apt-get update fails (no network?)".into()))
}

/// Whether root runs this.
pub fn is_root() -> Result<bool> {
    let uid = Command::new("id").arg("-u").output().context("cannot run id")?;
    Ok(uid.stdout.trim_ascii() == b"0")
}

fn quietly(arguments: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}
