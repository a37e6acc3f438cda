//! The network between processes: loss, duplication, reordering, delay, and cuts in either
//! direction. Addresses are small numbers: replicas first, then the gateways that live apart.

use smr::rng::Rng;

use crate::options::NetworkOptions;

/// Which directions a cut closes, as one bit mask of receivers per sender.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    id: u64,
    closed: Vec<u32>,
}

pub(crate) struct Network {
    pub(crate) options: NetworkOptions,
    rng: Rng,
    cuts: Vec<Cut>,
    next_cut: u64,
    addresses: usize,
    /// The last arrival on each link, where messages keep their order.
    last: Vec<u64>,
}

impl Network {
    pub(crate) fn new(options: NetworkOptions, addresses: usize, seed: u64) -> Network {
        assert!(addresses <= 32, "a cut is a mask of 32 bits");
        Network {
            options,
            rng: Rng::new(seed),
            cuts: Vec::new(),
            next_cut: 0,
            addresses,
            last: vec![0; addresses * addresses],
        }
    }

    /// When copies of a message sent now arrive: none, one or two times.
    pub(crate) fn transit(&mut self, now: u64, from: usize, to: usize) -> [Option<u64>; 2] {
        if from == to {
            return [Some(now + 5), None]; // the same machine
        }
        let lost = self.rng.chance(self.options.loss, 1_000_000);
        let first = self.arrival(now, from, to);
        let again = self.rng.chance(self.options.duplication, 1_000_000);
        let second = again.then(|| self.arrival(now, from, to));
        if lost || self.is_cut(from, to) {
            return [None, None];
        }
        [Some(first), second]
    }

    fn arrival(&mut self, now: u64, from: usize, to: usize) -> u64 {
        let options = self.options;
        let mut at = now + options.delay + self.rng.below(options.spread + 1);
        if self.rng.chance(options.late, 1_000_000) {
            at += self.rng.below(options.late_by + 1);
        }
        if options.in_order {
            let last = &mut self.last[from * self.addresses + to];
            *last = at.max(*last);
            at = *last;
        }
        at
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.iter().any(|cut| cut.closed[from] & (1 << to) != 0)
    }

    /// Closes every direction that `closes` says; returns what to hand to [`Network::mend`].
    pub(crate) fn cut(&mut self, closes: impl Fn(usize, usize) -> bool) -> u64 {
        self.next_cut += 1;
        let row = |from| {
            let receivers = (0..self.addresses).filter(|&to| to != from && closes(from, to));
            receivers.fold(0, |mask, to| mask | (1_u32 << to))
        };
        let closed = (0..self.addresses).map(row).collect();
        self.cuts.push(Cut { id: self.next_cut, closed });
        self.next_cut
    }

    /// Takes a cut away.
    pub(crate) fn mend(&mut self, id: u64) {
        self.cuts.retain(|cut| cut.id != id);
    }

    /// Takes every cut away and makes messages arrive once.
    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
        self.options.loss = 0;
        self.options.duplication = 0;
        self.options.late = 0;
        // A healthy network is one in which the protocol's timeouts make sense.
        self.options.spread = self.options.spread.min(1_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(options: NetworkOptions) -> Network {
        Network::new(options, 4, 7)
    }

    #[test]
    fn a_cut_closes_one_direction_until_it_is_mended() {
        let mut network = network(NetworkOptions { delay: 3, ..NetworkOptions::default() });
        let id = network.cut(|from, to| from == 0 && to == 1);
        assert_eq!(network.transit(10, 0, 1), [None, None]);
        assert_eq!(network.transit(10, 1, 0), [Some(13), None]);
        network.mend(id);
        assert_eq!(network.transit(10, 0, 1), [Some(13), None]);
    }

    #[test]
    fn links_in_order_never_overtake() {
        let options = NetworkOptions {
            spread: 1_000,
            in_order: true,
            late: 500_000,
            late_by: 9_000,
            ..NetworkOptions::default()
        };
        let mut network = network(options);
        let arrivals: Vec<_> =
            (0..200).map(|now| network.transit(now, 0, 1)[0].expect("no loss")).collect();
        assert!(arrivals.is_sorted());
    }

    #[test]
    fn all_is_lost_or_doubled_when_asked() {
        let mut lossy = network(NetworkOptions { loss: 1_000_000, ..NetworkOptions::default() });
        assert_eq!(lossy.transit(0, 0, 1), [None, None]);
        let options = NetworkOptions { duplication: 1_000_000, ..NetworkOptions::default() };
        assert_eq!(network(options).transit(0, 0, 1), [Some(0), Some(0)]);
    }
}
