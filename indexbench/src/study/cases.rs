//! Which lives make up which part of the evaluation.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{Part, StudyOptions};
use crate::{
    contestants::{Congee, Index, Locked, Ours, Scc, Skiplist},
    keys::Form,
    life::{Life, Work},
    plain::{Bytes, Fixed, Integers, Permuted, Plain, Prefetched},
    reference::{self, Test},
    skew,
};

/// The maps of the part `workloads`.
const MAPS: [&str; 7] = ["ours", "btreemap", "skiplist", "scc", "congee", "plain", "plain8"];

/// Maps whose keys have eight bytes.
const EIGHT_BYTES: [&str; 2] = ["congee", "plain8"];

/// The lengths of [Mao] figure 3-9.
const LENGTHS: [u8; 6] = [8, 16, 24, 32, 40, 48];

/// The skewnesses of [Mao] figure 3-11.
const DELTAS: [f64; 6] = [0.0, 1.0, 3.0, 5.0, 7.0, 9.0];

/// The steps of [Mao] figure 3-8 from "B-tree" on, each with all that went before, and at the end
/// ours without the huge pages.
const FACTORS: [&str; 7] =
    ["b-tree", "+superpage", "+intcmp", "+prefetch", "+permuter", "masstree", "m-superpage"];

/// What a map does with its life.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Plan {
    Works,
    Skew(Vec<f64>),
    Test(Test),
}

/// A map and its life.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// What it is called here.
    pub name: String,
    /// Which map it is in the program that plays it.
    map: String,
    plan: Plan,
    huge_pages: bool,
    /// How it lives.
    pub life: Life,
    /// Another program that plays it.
    #[serde(skip)]
    pub(super) program: Option<PathBuf>,
    /// The authors' program.
    #[serde(skip)]
    pub(super) authors: Option<PathBuf>,
}

/// Lives that are lived in turn and compared.
pub struct Group {
    pub part: Part,
    pub title: String,
    pub detail: String,
    pub threads: u64,
    pub cases: Vec<Case>,
}

impl Case {
    pub(super) fn test(&self) -> Option<Test> {
        match self.plan {
            Plan::Test(test) => Some(test),
            _ => None,
        }
    }

    /// Lives it, and returns what is to be told.
    pub(super) fn play(&self) -> Result<Vec<(String, f64)>> {
        if !self.huge_pages {
            rustix::thread::disable_transparent_huge_pages(true)
                .context("the system does not let a process do without huge pages")?;
        }
        if let Plan::Skew(deltas) = &self.plan {
            let rates = skew::measure(&self.life, self.map == "partitioned", deltas);
            let names = deltas.iter().map(|delta| format!("skewed {delta}"));
            return Ok(names.zip(rates).collect());
        }
        match self.map.as_str() {
            "ours" | "masstree" => self.play_with::<Ours>(),
            "btreemap" => self.play_with::<Locked>(),
            "skiplist" => self.play_with::<Skiplist>(),
            "scc" => self.play_with::<Scc>(),
            "congee" => self.play_with::<Congee>(),
            "b-tree" => self.play_with::<Plain<Bytes>>(),
            "+intcmp" => self.play_with::<Plain<Integers>>(),
            "+prefetch" => self.play_with::<Plain<Prefetched>>(),
            "plain" => self.play_with::<Plain<Permuted>>(),
            "plain8" => self.play_with::<Plain<Fixed>>(),
            other => bail!("there is no map {other}"),
        }
    }

    /// Lives it with a map of the caller's, whatever map it names, and returns what is to be told.
    ///
    /// # Errors
    /// If the system does not tell how much memory is in use.
    pub fn play_with<I: Index>(&self) -> Result<Vec<(String, f64)>> {
        let index = I::new();
        if let Plan::Test(test) = self.plan {
            return Ok(reference::play(&self.life, test, &index));
        }
        let before = resident()?;
        let mut filled = Ok(0);
        let rates = self.life.live(&index, || filled = resident());
        let mut told: Vec<(String, f64)> =
            rates.into_iter().map(|(work, rate)| (name(work), rate)).collect();
        told.push(("resident MB".to_string(), filled?.saturating_sub(before) as f64 / 1e6));
        Ok(told)
    }
}

fn name(work: Work) -> String {
    work.to_possible_value().expect("no work is hidden").get_name().to_string()
}

/// The process's resident memory in bytes.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("no memory is told")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("no memory is told")? * 1024)
}

/// All groups of the parts that are asked for.
pub fn groups(options: &StudyOptions) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for &part in &options.parts {
        for &threads in &options.threads {
            let made = match part {
                Part::Workloads => workloads(options, threads)?,
                Part::Prefix => prefixes(options, threads),
                Part::Factors => vec![factors(options, threads)],
                Part::Skew if threads < 2 => continue,
                Part::Skew => vec![skewed(options, threads)],
                Part::Reference => tests(options, threads)?,
            };
            groups.extend(made);
        }
    }
    ensure!(!groups.is_empty(), "the part `skew` needs --threads of at least 2");
    Ok(groups)
}

fn life(options: &StudyOptions, threads: u64, form: Form, works: &[Work]) -> Life {
    let (keys, clock, pin) = (options.keys, options.clock, options.pin);
    Life { form, keys, threads, clock, pin, works: works.to_vec() }
}

fn case(name: &str, map: &str, plan: Plan, life: Life) -> Case {
    let (name, map) = (name.to_string(), map.to_string());
    Case { name, map, plan, huge_pages: true, life, program: None, authors: None }
}

/// The maps that were asked for, or else these, and the programs of `--with`.
fn maps(options: &StudyOptions, usual: &[&str]) -> Result<Vec<(String, Option<PathBuf>)>> {
    for map in &options.maps {
        ensure!(MAPS.contains(&map.as_str()), "--maps are of {}, not {map}", MAPS.join(", "));
    }
    let usual = usual.iter().map(|map| (*map).to_string());
    let own: Vec<String> =
        if options.maps.is_empty() { usual.collect() } else { options.maps.clone() };
    let mut maps: Vec<_> = own.into_iter().map(|map| (map, None)).collect();
    for with in &options.with {
        let (name, program) = with.split_once('=').context("--with wants NAME=PROGRAM")?;
        maps.push((name.to_string(), Some(program.into())));
    }
    Ok(maps)
}

fn workloads(options: &StudyOptions, threads: u64) -> Result<Vec<Group>> {
    let works = match options.works.is_empty() {
        true => Work::value_variants(),
        false => &options.works,
    };
    let mut groups = Vec::new();
    for &form in &options.forms {
        let mut cases = Vec::new();
        for (name, program) in maps(options, &MAPS)? {
            if EIGHT_BYTES.contains(&name.as_str()) && !form.is_eight_bytes() {
                continue;
            }
            let map = if program.is_some() { "ours" } else { &name };
            let life = life(options, threads, form, works);
            cases.push(Case { program, ..case(&name, map, Plan::Works, life) });
        }
        let title = format!("{} {form} keys", options.keys);
        groups.push(group(Part::Workloads, title, threads, cases));
    }
    Ok(groups)
}

fn group(part: Part, title: String, threads: u64, cases: Vec<Case>) -> Group {
    let detail = if threads == 1 { "1 thread".to_string() } else { format!("{threads} threads") };
    Group { part, title, detail, threads, cases }
}

fn prefixes(options: &StudyOptions, threads: u64) -> Vec<Group> {
    let of_length = |length| {
        let form = if length == 8 { Form::Binary } else { Form::Prefixed(length) };
        let life = life(options, threads, form, &[Work::Get]);
        let cases = ["ours", "plain"].map(|map| case(map, map, Plan::Works, life.clone()));
        let title = format!("{} keys of {length} bytes, the last 8 their own", options.keys);
        group(Part::Prefix, title, threads, cases.to_vec())
    };
    LENGTHS.map(of_length).into()
}

fn factors(options: &StudyOptions, threads: u64) -> Group {
    let life = life(options, threads, Form::Decimal, &[Work::Put, Work::Get]);
    let step = |name: &str| {
        let (map, huge_pages) = match name {
            "b-tree" => ("b-tree", false),
            "+superpage" => ("b-tree", true),
            "+permuter" => ("plain", true),
            "m-superpage" => ("masstree", false),
            other => (other, true),
        };
        Case { huge_pages, ..case(name, map, Plan::Works, life.clone()) }
    };
    let title = format!("{} decimal keys, step by step", options.keys);
    group(Part::Factors, title, threads, FACTORS.map(step).to_vec())
}

fn skewed(options: &StudyOptions, threads: u64) -> Group {
    let life = life(options, threads, Form::Decimal, &[]);
    let cases = ["shared", "partitioned"]
        .map(|map| case(map, map, Plan::Skew(DELTAS.to_vec()), life.clone()));
    let title = format!("gets of {} decimal keys, skewed", options.keys);
    group(Part::Skew, title, threads, cases.to_vec())
}

fn tests(options: &StudyOptions, threads: u64) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for &test in &options.tests {
        let life = life(options, threads, Form::Decimal, &[]);
        let mut cases = Vec::new();
        for (name, program) in maps(options, &["ours"])? {
            if EIGHT_BYTES.contains(&name.as_str()) {
                continue;
            }
            let map = if program.is_some() { "ours" } else { &name };
            cases.push(Case { program, ..case(&name, map, Plan::Test(test), life.clone()) });
        }
        if options.mttest.is_some() {
            let authors = options.mttest.clone();
            let name = "masstree-beta";
            cases.push(Case { authors, ..case(name, name, Plan::Test(test), life) });
        }
        let title = format!("{} operations a thread", options.keys);
        groups.push(group(Part::Reference, title, threads, cases));
    }
    Ok(groups)
}
