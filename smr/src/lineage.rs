//! Which operations a log holds, told by views: a viewstamp belongs to a log if and only if its
//! number lies in its view's stretch ([Mao] 4.3: a viewstamp that is smaller than another is not
//! necessarily covered by it).

use alloc::vec::Vec;

use crate::codec::{Malformed, Reader, Writer};
use crate::ids::{OpNumber, View, Viewstamp};

/// Views beyond this many are forgotten, oldest first.
const MAX_VIEWS: usize = 4096;

/// The views of a log, each with its first operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    views: Vec<(View, OpNumber)>,
}

impl Lineage {
    /// The log has grown by this operation.
    pub fn extend(&mut self, viewstamp: Viewstamp) {
        if self.views.last().is_none_or(|&(view, _)| view < viewstamp.view) {
            self.views.push((viewstamp.view, viewstamp.op));
        }
    }

    /// The views, oldest first, each with its first operation.
    pub fn views(&self) -> &[(View, OpNumber)] {
        &self.views
    }

    /// The log has lost everything above `keep`.
    pub fn truncate(&mut self, keep: OpNumber) {
        while self.views.last().is_some_and(|&(_, first)| first > keep) {
            self.views.pop();
        }
    }

    /// Bounds what is remembered.
    pub fn forget_oldest(&mut self) {
        let surplus = self.views.len().saturating_sub(MAX_VIEWS);
        self.views.drain(..surplus);
    }

    /// The last operation of `view` in a log that ends with `end`. `None` if it holds none, or if
    /// the view is older than what is remembered.
    pub fn last_of(&self, view: View, end: OpNumber) -> Option<OpNumber> {
        let index = self.views.binary_search_by_key(&view, |&(view, _)| view).ok()?;
        Some(self.views.get(index + 1).map_or(end, |&(_, next)| OpNumber(next.0 - 1)))
    }

    /// Appends the lineage.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u32(self.views.len() as u32);
        for &(view, first) in &self.views {
            out.viewstamp(Viewstamp::new(view, first));
        }
    }

    /// Takes a lineage from the front.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(from: &mut Reader) -> Result<Lineage, Malformed> {
        let mut views = Vec::new();
        for _ in 0..from.count(16)? {
            let start = from.viewstamp()?;
            if views.last().is_some_and(|&(view, first)| view >= start.view || first >= start.op) {
                return Err(Malformed);
            }
            views.push((start.view, start.op));
        }
        Ok(Lineage { views })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vs(view: u64, op: u64) -> Viewstamp {
        Viewstamp::new(View(view), OpNumber(op))
    }

    /// Whether a log that ends with `end` holds an operation of one of its views.
    fn holds(lineage: &Lineage, viewstamp: Viewstamp, end: OpNumber) -> bool {
        lineage.last_of(viewstamp.view, end).is_some_and(|last| viewstamp.op <= last)
    }

    #[test]
    fn coverage_is_not_the_order_of_numbers() {
        let mut lineage = Lineage::default();
        for viewstamp in [vs(21, 1), vs(21, 2), vs(32, 3), vs(32, 4)] {
            lineage.extend(viewstamp);
        }
        let end = OpNumber(4);
        assert!(holds(&lineage, vs(21, 2), end));
        // Smaller than the log's last viewstamp, and lost.
        assert!(!holds(&lineage, vs(21, 3), end));
        assert!(!holds(&lineage, vs(32, 5), end));
        assert_eq!(lineage.last_of(View(21), end), Some(OpNumber(2)));
        assert_eq!(lineage.last_of(View(32), end), Some(end));
        assert_eq!(lineage.last_of(View(22), end), None);
        lineage.truncate(OpNumber(2));
        assert_eq!(lineage.last_of(View(21), OpNumber(2)), Some(OpNumber(2)));
        assert!(!holds(&lineage, vs(32, 3), OpNumber(2)));
    }

    #[test]
    fn a_lineage_survives_its_bytes() {
        let mut lineage = Lineage::default();
        lineage.extend(vs(21, 1));
        lineage.extend(vs(32, 3));
        let mut out = Vec::new();
        lineage.encode(&mut Writer::new(&mut out));
        let mut from = Reader::new(bytes::Bytes::from(out));
        assert_eq!(Lineage::decode(&mut from), Ok(lineage));
    }
}
