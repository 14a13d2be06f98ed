//! The three versions of a file that a merge compares.

/// Three versions of one file. Without a base, both sides added it.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'a> {
    /// The common ancestor.
    pub base: Option<&'a [u8]>,
    /// The version of the target.
    pub ours: &'a [u8],
    /// The version of the source.
    pub theirs: &'a [u8],
}

impl<'a> Sides<'a> {
    /// Returns the base, or empty bytes if there is none.
    pub fn base_or_empty(&self) -> &'a [u8] {
        self.base.unwrap_or_default()
    }

    /// Returns the versions with the sides exchanged.
    pub fn swapped(&self) -> Self {
        Self { base: self.base, ours: self.theirs, theirs: self.ours }
    }

    /// Returns the length of the longest version.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.base_or_empty().len().max(self.ours.len()).max(self.theirs.len()) as u64
    }
}
