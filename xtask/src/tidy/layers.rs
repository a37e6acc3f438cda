//! Which crate may look at which.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What a crate may depend on, of this workspace.
enum Rule {
    /// On these only.
    Only(&'static [&'static str]),
    /// On all but these.
    AllBut(&'static [&'static str]),
}

struct Layer {
    name: &'static str,
    rule: Rule,
    /// Names neither clock, socket, file, thread nor randomly seeded map.
    no_std: bool,
    /// Why it may contain `unsafe`; without a reason it forbids it.
    unsafe_because: Option<&'static str>,
}

const fn layer(name: &'static str, rule: Rule) -> Layer {
    Layer { name, rule, no_std: false, unsafe_because: None }
}

const fn no_std(name: &'static str, rule: Rule) -> Layer {
    Layer { name, rule, no_std: true, unsafe_because: None }
}

const LAYERS: &[Layer] = &[
    Layer {
        name: "masstree",
        rule: Rule::Only(&[]),
        no_std: false,
        unsafe_because: Some("readers without locks follow pointers into nodes that others change"),
    },
    Layer {
        name: "indexbench",
        rule: Rule::Only(&["masstree"]),
        no_std: false,
        unsafe_because: Some("has a B+tree whose readers take no locks, to compare Masstree with"),
    },
    no_std("smr", Rule::Only(&[])),
    no_std("vsr", Rule::Only(&["smr"])),
    no_std("mu", Rule::Only(&["smr", "fabric"])),
    no_std("oum", Rule::Only(&["smr"])),
    no_std("nopaxos", Rule::Only(&["smr", "oum"])),
    no_std("baselines", Rule::Only(&["smr"])),
    layer("sequencer", Rule::Only(&["smr", "oum"])),
    layer("controller", Rule::Only(&["smr", "oum", "node"])),
    layer("resp", Rule::Only(&[])),
    layer("memcached", Rule::Only(&[])),
    layer("kv", Rule::Only(&["smr", "masstree", "resp", "memcached"])),
    layer("wire", Rule::Only(&["smr"])),
    layer("io", Rule::Only(&["smr"])),
    Layer {
        name: "fabric",
        rule: Rule::Only(&["smr"]),
        no_std: false,
        unsafe_because: Some("maps memory that other processes change, and calls libibverbs"),
    },
    layer("faultfs", Rule::Only(&[])),
    layer("sim", Rule::Only(&["smr", "vsr"])),
    layer("node", Rule::Only(&["smr", "vsr", "mu", "oum", "nopaxos", "fabric", "wire", "io"])),
    layer("store", Rule::Only(&["smr", "kv", "io", "node"])),
    layer("lockstep-client", Rule::Only(&["smr", "oum", "nopaxos", "wire", "kv", "resp"])),
    layer(
        "bench",
        Rule::Only(&[
            "resp",
            "lockstep-client",
            "smr",
            "fabric",
            "vsr",
            "mu",
            "oum",
            "sequencer",
            "nopaxos",
            "baselines",
            "kv",
            "orderbook",
            "indexbench",
        ]),
    ),
    layer("orderbook", Rule::Only(&["smr", "node"])),
    layer("server", Rule::AllBut(&["sim", "faultfs", "xtask"])),
    layer("xtask", Rule::Only(&["sim", "bench", "faultfs"])),
];

/// A crate of the workspace.
pub struct Package {
    pub name: String,
    pub manifest: PathBuf,
    /// The root files of its targets.
    pub roots: Vec<PathBuf>,
    /// Crates of the workspace that it depends on, tests left out.
    dependencies: BTreeSet<String>,
    /// The same of its tests.
    dev_dependencies: BTreeSet<String>,
}

/// Asks Cargo for the crates of the workspace.
pub fn packages(root: &Path) -> Result<Vec<Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    Ok(packages.iter().map(package).collect())
}

fn package(value: &Value) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut package = Package {
        name: text(&value["name"]),
        manifest: text(&value["manifest_path"]).into(),
        roots: list(&value["targets"]).iter().map(|t| text(&t["src_path"]).into()).collect(),
        dependencies: BTreeSet::new(),
        dev_dependencies: BTreeSet::new(),
    };
    for dependency in list(&value["dependencies"]) {
        // Only crates of the workspace have a path.
        if dependency["path"].is_null() {
            continue;
        }
        let name = text(&dependency["name"]);
        if dependency["kind"] == "dev" {
            package.dev_dependencies.insert(name);
        } else {
            package.dependencies.insert(name);
        }
    }
    package
}

/// What a crate's manifest does wrong.
pub fn check(package: &Package) -> Vec<String> {
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == package.name) else {
        return vec![format!(
            "the crate {} has no place among the layers: give it one in xtask/src/tidy/layers.rs",
            package.name
        )];
    };
    let forbidden = |dependency: &&String| match layer.rule {
        Rule::Only(allowed) => !allowed.contains(&dependency.as_str()),
        Rule::AllBut(denied) => denied.contains(&dependency.as_str()),
    };
    let mut violations: Vec<String> = package
        .dependencies
        .iter()
        .filter(forbidden)
        .map(|dependency| format!("{} may not depend on {dependency}", package.name))
        .collect();
    // Tests may name the simulator and everything that the simulator stands on.
    let above = package
        .dev_dependencies
        .iter()
        .filter(|dependency| matches!(dependency.as_str(), "server" | "xtask"))
        .map(|dependency| format!("tests of {} may not depend on {dependency}", package.name));
    violations.extend(above);
    violations
}

/// What the root of a crate must say.
pub fn root_attributes(name: &str) -> Vec<&'static str> {
    let mut attributes = Vec::new();
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else { return attributes };
    if layer.unsafe_because.is_none() {
        attributes.push("#![forbid(unsafe_code)]");
    }
    if layer.no_std {
        attributes.push("#![no_std]");
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, dependencies: &[&str], dev_dependencies: &[&str]) -> Vec<String> {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        check(&Package {
            name: name.to_string(),
            manifest: PathBuf::new(),
            roots: Vec::new(),
            dependencies: set(dependencies),
            dev_dependencies: set(dev_dependencies),
        })
    }

    #[test]
    fn layers_are_enforced() {
        assert!(with("vsr", &["smr"], &["sim"]).is_empty());
        assert_eq!(with("vsr", &["smr", "sim"], &[]), ["vsr may not depend on sim"]);
        assert_eq!(with("kv", &["smr", "io"], &[]), ["kv may not depend on io"]);
        assert_eq!(with("smr", &["masstree"], &[]).len(), 1);
        assert_eq!(with("node", &["server"], &[]).len(), 1);
        assert_eq!(with("node", &["smr"], &["server"]).len(), 1);
        assert!(with("other", &[], &[])[0].contains("no place"));
    }

    #[test]
    fn roots_say_what_their_layer_asks() {
        assert_eq!(root_attributes("smr"), ["#![forbid(unsafe_code)]", "#![no_std]"]);
        assert_eq!(root_attributes("kv"), ["#![forbid(unsafe_code)]"]);
        assert!(root_attributes("masstree").is_empty());
    }
}
