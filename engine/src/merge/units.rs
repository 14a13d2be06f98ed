//! Finds the units of a merge by path: groups of paths, each including everything below them, that conflict as a whole.

use std::collections::{BTreeMap, BTreeSet};

use super::side::ancestors;
use crate::name::TreePath;

/// The units of a merge, indexed by their paths.
pub(super) struct Units<'a> {
    by_path: BTreeMap<&'a TreePath, Vec<usize>>,
    /// The directories above the paths of units, with the root.
    above: BTreeSet<TreePath>,
}

impl<'a> Units<'a> {
    pub(super) fn new(units: &'a [Vec<TreePath>]) -> Self {
        let mut by_path: BTreeMap<&'a TreePath, Vec<usize>> = BTreeMap::new();
        let mut above = BTreeSet::new();
        for (unit, paths) in units.iter().enumerate() {
            for path in paths {
                by_path.entry(path).or_default().push(unit);
                for directory in ancestors(path).chain([TreePath::root()]) {
                    // The directories above a known one are known.
                    if !above.insert(directory) {
                        break;
                    }
                }
            }
        }
        Self { by_path, above }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    /// Returns the units that a path belongs to, by their indices. A unit may occur several times.
    pub(super) fn of(&self, path: &TreePath) -> impl Iterator<Item = usize> {
        let places = std::iter::once(path.clone()).chain(ancestors(path)).chain([TreePath::root()]);
        places.filter_map(move |place| self.by_path.get(&place)).flatten().copied()
    }

    /// Returns whether a path belongs to a unit, or a path of a unit is below it.
    pub(super) fn is_near(&self, path: &TreePath) -> bool {
        !self.is_empty() && (self.above.contains(path) || self.of(path).next().is_some())
    }

    /// Returns the units that have at least one of these paths.
    pub(super) fn touched_by<'p>(&self, paths: impl Iterator<Item = &'p TreePath>) -> BTreeSet<usize> {
        if self.is_empty() {
            return BTreeSet::new();
        }
        paths.flat_map(|path| self.of(path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_belong_to_the_units_that_have_them_or_a_directory_above_them() {
        let path = |text: &str| TreePath::new(text).expect("a path");
        let all = vec![vec![path("lock"), path("a/conf")], vec![path("a/conf/x"), path("a/conf")]];
        let units = Units::new(&all);
        let of = |text: &str| units.touched_by([path(text)].iter()).into_iter().collect::<Vec<_>>();
        assert_eq!([of("lock"), of("a/conf"), of("a/conf/x/y")], [vec![0], vec![0, 1], vec![0, 1]]);
        assert_eq!([of("a"), of("a/confs"), of("locks")], [Vec::<usize>::new(), Vec::new(), Vec::new()]);
        assert!(["a", "a/conf", "a/conf/new", "lock"].iter().all(|text| units.is_near(&path(text))));
        assert!(units.is_near(&TreePath::root()) && !units.is_near(&path("b")));
        let none = Units::new(&[]);
        assert!(none.is_empty() && !none.is_near(&TreePath::root()));
    }
}
