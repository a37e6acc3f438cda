//! Keys, each computed from its number, so that a run needs no memory for them.

/// What the keys of a run look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Random numbers below 2^31 in decimal, 1 to 10 bytes (rw1, rw2).
    Decimal,
    /// Consecutive numbers as eight decimal digits (rw3).
    Sequential,
    /// Eight random bytes.
    Binary,
    /// Forty bytes of which all but the last eight are the same ([Mao] figure 3-9).
    Prefixed,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Decimal, Kind::Sequential, Kind::Binary, Kind::Prefixed];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Decimal => "decimal",
            Kind::Sequential => "sequential",
            Kind::Binary => "binary8",
            Kind::Prefixed => "prefix40",
        }
    }

    /// Whether every key has eight bytes.
    pub fn is_fixed(self) -> bool {
        matches!(self, Kind::Sequential | Kind::Binary)
    }
}

const PREFIX: &[u8; 32] = b"/the/same/for/every/key/of/them/";

/// A key on the stack.
pub struct Key {
    bytes: [u8; 40],
    start: u8,
    end: u8,
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..usize::from(self.end)]
    }
}

/// A bijection that scatters consecutive numbers.
pub fn scatter(i: u64) -> u64 {
    let i = (i ^ (i >> 31)).wrapping_mul(0x7FB5_D329_728E_A185);
    let i = (i ^ (i >> 27)).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    i ^ (i >> 33)
}

/// The key with number `i`.
pub fn key(kind: Kind, i: u64) -> Key {
    let mut key = Key { bytes: [0; 40], start: 0, end: 40 };
    match kind {
        Kind::Decimal => decimal(&mut key, scatter(i) >> 33, 1),
        Kind::Sequential => decimal(&mut key, i, 8),
        Kind::Binary => {
            key.bytes[..8].copy_from_slice(&scatter(i).to_be_bytes());
            key.end = 8;
        }
        Kind::Prefixed => {
            key.bytes[..32].copy_from_slice(PREFIX);
            key.bytes[32..].copy_from_slice(&scatter(i).to_be_bytes());
        }
    }
    key
}

fn decimal(key: &mut Key, mut number: u64, digits: u8) {
    key.start = key.end;
    while number > 0 || key.end - key.start < digits {
        key.start -= 1;
        key.bytes[usize::from(key.start)] = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Visits the numbers below `n` in an order that has nothing to do with theirs.
pub fn shuffled(j: u64, n: u64) -> u64 {
    // A prime that no size in use is a multiple of.
    (j.wrapping_mul(2_654_435_761)) % n
}

/// Numbers below `n`, the low ones much more often: Zipf's law with exponent 0.99, by the method
/// of Gray and others (SIGMOD 1994).
pub struct Zipf {
    n: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    const THETA: f64 = 0.99;

    pub fn new(n: u64) -> Zipf {
        let zeta_of = |n: u64| (1..=n).map(|i| (i as f64).powf(-Self::THETA)).sum::<f64>();
        // Beyond a million terms the sum is an integral.
        let exact = n.min(1_000_000);
        let power = 1.0 - Self::THETA;
        let tail = ((n as f64).powf(power) - (exact as f64).powf(power)) / power;
        let zeta = zeta_of(exact) + tail;
        let eta = (1.0 - (2.0 / n as f64).powf(power)) / (1.0 - zeta_of(2) / zeta);
        Zipf { n: n as f64, zeta, alpha: 1.0 / power, eta }
    }

    pub fn draw(&self, random: u64) -> u64 {
        let u = (random >> 11) as f64 / (1u64 << 53) as f64;
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(Self::THETA) {
            return 1;
        }
        let drawn = self.n * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (drawn as u64).min(self.n as u64 - 1)
    }
}
