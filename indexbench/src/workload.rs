//! Which operation comes next, on which key, with which value.
//!
//! One generator for every load: over the wire (`bench::load`) and in process ([`crate::life`]). It
//! draws from a seeded generator, so that a run can be repeated, and allocates nothing per
//! operation.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyDistribution {
    /// Every key is as likely as any other.
    Uniform,
    /// Few keys are chosen often; the exponent says how few. Hot keys are spread over the range.
    Zipfian(f64),
    /// One key after the other; each stream walks through a share of its own, then starts again.
    Sequential,
    /// Of so many equal parts of the key range the first has more requests than each of the others,
    /// by so many times what each of them has ([Mao] 3.3.6).
    Skewed {
        /// How many parts.
        parts: u64,
        /// The paper's delta: 0 is uniform.
        delta: f64,
    },
}

/// As in [Mao] figure 3-11.
const PARTS: u64 = 16;

/// The exponent of YCSB, taken where none is given.
const DEFAULT_THETA: f64 = 0.99;

impl FromStr for KeyDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, theta) = match text.split_once(':') {
            Some((name, theta)) => (name, Some(theta)),
            None => (text, None),
        };
        match (name, theta) {
            ("uniform", None) => Ok(Self::Uniform),
            ("sequential", None) => Ok(Self::Sequential),
            ("zipfian", None) => Ok(Self::Zipfian(DEFAULT_THETA)),
            ("zipfian", Some(theta)) => match theta.parse::<f64>() {
                Ok(theta) if theta.is_finite() && theta > 0.0 => Ok(Self::Zipfian(theta)),
                _ => Err(format!("the exponent must be a positive number, not {theta:?}")),
            },
            ("skewed", Some(delta)) => match delta.parse::<f64>() {
                Ok(delta) if delta.is_finite() && delta >= 0.0 => {
                    Ok(Self::Skewed { parts: PARTS, delta })
                }
                _ => Err(format!("the skewness must be 0 or more, not {delta:?}")),
            },
            _ => Err("expected uniform, sequential, zipfian, zipfian:EXPONENT or skewed:DELTA"
                .to_string()),
        }
    }
}

impl fmt::Display for KeyDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipfian(theta) => write!(f, "zipfian:{theta}"),
            Self::Sequential => f.write_str("sequential"),
            Self::Skewed { delta, .. } => write!(f, "skewed:{delta}"),
        }
    }
}

/// Values above this are refused: they would measure the network.
const MAX_VALUE_SIZE: usize = 64 << 20;

/// How long a value is: always the same, or uniformly between two bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueSize(pub RangeInclusive<usize>);

impl FromStr for ValueSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse::<usize>().map_err(|_| "expected BYTES or LEAST..MOST".to_string())
        };
        let (least, most) = match text.split_once("..") {
            Some((least, most)) => (number(least)?, number(most)?),
            None => (number(text)?, number(text)?),
        };
        if least > most {
            return Err(format!("{least} is more than {most}"));
        }
        if most > MAX_VALUE_SIZE {
            return Err(format!("a value may have {MAX_VALUE_SIZE} bytes at most"));
        }
        Ok(Self(least..=most))
    }
}

impl fmt::Display for ValueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.start() == self.0.end() {
            write!(f, "{}", self.0.start())
        } else {
            write!(f, "{}..{}", self.0.start(), self.0.end())
        }
    }
}

/// What is done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Write a value.
    Set,
    /// Read a value.
    Get,
    /// Add one to a counter (counters have keys of their own).
    Increment,
    /// Read some keys in order, from the chosen one on.
    Range,
}

impl Kind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Kind; 4] = [Kind::Set, Kind::Get, Kind::Increment, Kind::Range];

    /// The name in a mix and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Set => "set",
            Kind::Get => "get",
            Kind::Increment => "incr",
            Kind::Range => "krange",
        }
    }
}

/// How many of each kind, as weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    weights: [u32; Kind::ALL.len()],
}

impl Mix {
    /// Nothing but this kind.
    pub fn only(kind: Kind) -> Self {
        let mut weights = [0; Kind::ALL.len()];
        weights[kind as usize] = 1;
        Self { weights }
    }

    /// How many of this kind.
    pub fn weight(&self, kind: Kind) -> u32 {
        self.weights[kind as usize]
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut weights = [0; Kind::ALL.len()];
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let kind = Kind::ALL
                .into_iter()
                .find(|kind| kind.name() == name)
                .ok_or_else(|| format!("expected set, get, incr or krange, not {name:?}"))?;
            let weight: u16 =
                weight.parse().map_err(|_| format!("expected a weight, not {weight:?}"))?;
            weights[kind as usize] = u32::from(weight);
        }
        if weights.iter().all(|&weight| weight == 0) {
            return Err("every weight is zero".to_string());
        }
        Ok(Self { weights })
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for kind in Kind::ALL {
            let weight = self.weights[kind as usize];
            if weight > 0 {
                write!(f, "{separator}{}={weight}", kind.name())?;
                separator = ",";
            }
        }
        Ok(())
    }
}

/// What a load consists of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The number of keys.
    pub keys: u64,
    /// How keys are chosen.
    pub distribution: KeyDistribution,
    /// How long values are.
    pub value_size: ValueSize,
    /// How many of each kind of operation.
    pub mix: Mix,
}

/// Spreads the ranks of a skewed distribution over the key range. A prime above every number of
/// keys that fits in memory, so that multiplying by it modulo that number is a permutation.
const SPREAD: u64 = 0xFFFF_FFFF_FFFF_FFC5;

/// Values are slices of one random text, at offsets up to this.
const OFFSETS: usize = 251;

enum Chooser {
    Uniform,
    Zipfian(Zipf<f64>),
    Sequential { next: u64 },
    Skewed { parts: u64, hot: f64 },
}

/// A stream of operations.
pub struct Workload {
    rng: SmallRng,
    keys: u64,
    chooser: Chooser,
    value_size: ValueSize,
    /// Weights, each added to those before it.
    thresholds: [u32; Kind::ALL.len()],
    text: Vec<u8>,
}

impl Workload {
    /// Stream number `stream` of `streams`; each is different, and the same in every run.
    ///
    /// # Panics
    /// If there are no keys.
    pub fn new(shape: &Shape, seed: u64, stream: u64, streams: u64) -> Self {
        assert!(shape.keys > 0, "a workload needs keys");
        assert!(stream < streams, "streams are numbered from zero");
        let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(stream.wrapping_mul(0x9E37_79B9)));
        let chooser = match shape.distribution {
            KeyDistribution::Uniform => Chooser::Uniform,
            KeyDistribution::Zipfian(theta) => Chooser::Zipfian(
                Zipf::new(shape.keys as f64, theta).expect("keys and exponent are positive"),
            ),
            KeyDistribution::Sequential => Chooser::Sequential {
                next: (u128::from(shape.keys) * u128::from(stream) / u128::from(streams)) as u64,
            },
            KeyDistribution::Skewed { parts, delta } => Chooser::Skewed {
                parts: parts.min(shape.keys),
                hot: (1.0 + delta) / (parts as f64 + delta),
            },
        };
        let mut thresholds = shape.mix.weights;
        for index in 1..thresholds.len() {
            thresholds[index] += thresholds[index - 1];
        }
        let text = (0..shape.value_size.0.end() + OFFSETS)
            .map(|_| rng.random_range(b'a'..=b'z'))
            .collect();
        let value_size = shape.value_size.clone();
        Self { rng, keys: shape.keys, chooser, value_size, thresholds, text }
    }

    /// The kind of the next operation.
    pub fn next_kind(&mut self) -> Kind {
        let total = self.thresholds[Kind::ALL.len() - 1];
        let drawn = self.rng.random_range(0..total);
        let index = self.thresholds.iter().position(|&threshold| drawn < threshold);
        Kind::ALL[index.expect("the last threshold is the total")]
    }

    /// The number of the next key, below the number of keys.
    pub fn next_key(&mut self) -> u64 {
        match &mut self.chooser {
            Chooser::Uniform => self.rng.random_range(0..self.keys),
            Chooser::Zipfian(zipf) => {
                let rank = zipf.sample(&mut self.rng) as u64 - 1;
                let step = SPREAD % self.keys;
                // A division of 128 bits takes as long as a lookup.
                match rank.checked_mul(step) {
                    Some(product) => product % self.keys,
                    None => (u128::from(rank) * u128::from(step) % u128::from(self.keys)) as u64,
                }
            }
            Chooser::Sequential { next } => {
                let key = *next;
                *next = (key + 1) % self.keys;
                key
            }
            Chooser::Skewed { parts, hot } => {
                // The first part ends where the second begins, whatever the division leaves.
                let end = self.keys / *parts;
                if *parts == 1 || self.rng.random::<f64>() < *hot {
                    self.rng.random_range(0..end)
                } else {
                    self.rng.random_range(end..self.keys)
                }
            }
        }
    }

    /// The next value.
    pub fn next_value(&mut self) -> &[u8] {
        let range = &self.value_size.0;
        let length = match range.end() - range.start() {
            0 => *range.start(),
            _ => self.rng.random_range(range.clone()),
        };
        let offset = self.rng.random_range(0..OFFSETS);
        &self.text[offset..offset + length]
    }
}

/// The bytes of a counter's key: 16 of them, in the order of the numbers.
pub fn counter_bytes(mut number: u64) -> [u8; 16] {
    let mut key = *b"ctr:000000000000";
    let mut position = key.len();
    while number > 0 && position > 4 {
        position -= 1;
        key[position] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(distribution: KeyDistribution) -> Shape {
        Shape {
            keys: 1000,
            distribution,
            value_size: ValueSize(10..=20),
            mix: "set=1,get=3".parse().unwrap(),
        }
    }

    #[test]
    fn counters_are_ordered_and_have_sixteen_bytes() {
        assert_eq!(&counter_bytes(42), b"ctr:000000000042");
        assert!(counter_bytes(99) < counter_bytes(100));
    }

    #[test]
    fn skewed_prefers_the_first_part_as_the_paper_has_it() {
        for (parts, delta, share) in [(16, 9.0, 0.4), (16, 0.0, 1.0 / 16.0), (2, 9.0, 10.0 / 11.0)]
        {
            let skewed = KeyDistribution::Skewed { parts, delta };
            let mut workload = Workload::new(&shape(skewed), 1, 0, 1);
            let hot = (0..100_000).filter(|_| workload.next_key() < 1000 / parts).count();
            assert!((hot as f64 / 100_000.0 - share).abs() < 0.01, "{hot} of {parts}, {delta}");
        }
    }

    #[test]
    fn sequential_streams_cover_every_key_once() {
        let mut seen = vec![0; 1000];
        for stream in 0..4 {
            let mut workload = Workload::new(&shape(KeyDistribution::Sequential), 1, stream, 4);
            for _ in 0..250 {
                seen[workload.next_key() as usize] += 1;
            }
        }
        assert!(seen.iter().all(|&count| count == 1));
    }

    #[test]
    fn zipfian_prefers_few_keys_and_stays_in_range() {
        let mut workload = Workload::new(&shape(KeyDistribution::Zipfian(0.99)), 1, 0, 1);
        let mut counts = vec![0u32; 1000];
        for _ in 0..100_000 {
            counts[workload.next_key() as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // With exponent 0.99 over 1000 keys the first rank has about 13 % of the draws.
        assert!((11_000..16_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[999] > 0);
    }

    #[test]
    fn uniform_is_even() {
        let mut workload = Workload::new(&shape(KeyDistribution::Uniform), 1, 0, 1);
        let mut counts = vec![0u32; 1000];
        for _ in 0..100_000 {
            counts[workload.next_key() as usize] += 1;
        }
        assert!(counts.iter().all(|count| (40..180).contains(count)));
    }

    #[test]
    fn values_and_kinds_follow_the_shape() {
        let mut workload = Workload::new(&shape(KeyDistribution::Uniform), 1, 0, 1);
        let mut gets = 0;
        for _ in 0..10_000 {
            assert!((10..=20).contains(&workload.next_value().len()));
            match workload.next_kind() {
                Kind::Get => gets += 1,
                Kind::Set => {}
                other => panic!("{other:?} is not in the mix"),
            }
        }
        assert!((7_200..7_800).contains(&gets), "{gets}");
    }

    #[test]
    fn texts_are_parsed_and_printed_alike() {
        for text in ["uniform", "sequential", "zipfian:1.2", "skewed:9"] {
            assert_eq!(text.parse::<KeyDistribution>().unwrap().to_string(), text);
        }
        for text in ["zipfian:-1", "zipfian:x", "uniform:1", "skewed", "skewed:-1", "other"] {
            assert!(text.parse::<KeyDistribution>().is_err(), "{text}");
        }
        for text in ["64", "16..1024"] {
            assert_eq!(text.parse::<ValueSize>().unwrap().to_string(), text);
        }
        for text in ["", "9..8", "x", "1..", "99999999999"] {
            assert!(text.parse::<ValueSize>().is_err(), "{text}");
        }
        for text in ["set=1", "set=1,get=9", "incr=2,krange=1"] {
            assert_eq!(text.parse::<Mix>().unwrap().to_string(), text);
        }
        for text in ["", "set=0", "put=1", "set=x"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
        assert_eq!("get".parse::<Mix>().unwrap(), Mix::only(Kind::Get));
    }
}
