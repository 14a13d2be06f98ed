//! Temporary names of a checkout, and the removal of those that a killed process left behind.
//!
//! A temporary name contains the token of its checkout. Captures skip the names of checkouts that run in this process, and the
//! cleanup removes the names of one token: any other file is the user's, even with a similar name.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::{Name, TreePath};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::{HostDir, c_name, is_absent};
use crate::stamp::Stamp;

const PREFIX: &[u8] = b".amalgam-tmp.";
const TOKEN_DIGITS: usize = 16;
const NUMBER_DIGITS: usize = 8;

/// Tokens of the checkouts that run in this process.
static RUNNING: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// The temporary names of one checkout, which no other checkout and no user has.
pub struct Staging<'a> {
    token: u64,
    next: AtomicU64,
    before_act: Option<&'a (dyn Fn(&TreePath) + Sync)>,
}

impl<'a> Staging<'a> {
    /// Chooses a new random token. Captures in this process skip its names until this value is dropped.
    pub fn new() -> Self {
        let mut running = RUNNING.lock();
        let mut token = random_token();
        while !running.insert(token) {
            token = random_token();
        }
        Self { token, next: AtomicU64::new(0), before_act: None }
    }

    /// Sets a function that is called between the last check of a path and its change, to test that race.
    #[must_use]
    pub fn with_pause(mut self, before_act: &'a (dyn Fn(&TreePath) + Sync)) -> Self {
        self.before_act = Some(before_act);
        self
    }

    /// Returns the token in hexadecimal, to be recorded for [`clean_leftovers`] after a crash.
    pub fn token(&self) -> String {
        format!("{:016x}", self.token)
    }

    /// Returns whether a checkout with this token runs in this process.
    pub fn is_running(token: &str) -> bool {
        u64::from_str_radix(token, 16).is_ok_and(|token| RUNNING.lock().contains(&token))
    }

    /// Returns whether a name is a temporary one of the checkout with this token.
    pub fn has_token(name: &Name, token: &str) -> bool {
        u64::from_str_radix(token, 16).is_ok_and(|token| token_of(name.as_bytes()) == Some(token))
    }

    /// Returns the next temporary name.
    pub(crate) fn next_name(&self) -> Name {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!(".amalgam-tmp.{:016x}-{:08x}", self.token, number & 0xffff_ffff);
        Name::new(name.as_bytes()).expect("letters, dots and digits")
    }

    /// Returns a number that no other checkout uses, for names in the pool.
    pub(crate) fn next_number(&self) -> u64 {
        self.token.wrapping_add(self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn pause(&self, path: &TreePath) {
        if let Some(before_act) = self.before_act {
            before_act(path);
        }
    }
}

impl Default for Staging<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        RUNNING.lock().remove(&self.token);
    }
}

impl fmt::Debug for Staging<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging").field("token", &self.token()).finish_non_exhaustive()
    }
}

/// Returns a random number that another process is unlikely to choose.
fn random_token() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns the token of a temporary name, or `None` for any other name.
fn token_of(name: &[u8]) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    let (token, rest) = digits.split_at_checked(TOKEN_DIGITS)?;
    let number = rest.strip_prefix(b"-")?;
    let is_hexadecimal = |text: &[u8]| text.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    if number.len() != NUMBER_DIGITS || !is_hexadecimal(token) || !is_hexadecimal(number) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(token).ok()?, 16).ok()
}

/// Returns whether a name is a temporary one of a checkout that runs in this process.
pub(crate) fn is_staged(name: &[u8]) -> bool {
    token_of(name).is_some_and(|token| RUNNING.lock().contains(&token))
}

/// Removes the temporary names that a checkout with this token left in these directories when its process died. Removes
/// directories only if they are empty. Goes on after a failure, and returns the first one at the end; else the number of removed
/// names.
pub fn clean_leftovers(directory: &HostDir, directories: &[TreePath], token: &str) -> Result<u64> {
    let Ok(token) = u64::from_str_radix(token, 16) else { return Ok(0) };
    let (mut removed, mut failure) = (0, None);
    for path in directories {
        match clean_directory(directory, path, token) {
            Ok(count) => removed += count,
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(removed), Err)
}

/// Removes the temporary names of one directory. Returns their number.
fn clean_directory(directory: &HostDir, path: &TreePath, token: u64) -> Result<u64> {
    let handle = match directory.directory(path) {
        Ok(handle) => handle,
        Err(error) if is_absent(&error) => return Ok(0),
        Err(error) => return Err(Error::host("open", path, error)),
    };
    let failed = |source: Errno| Error::host("clean up in", path, source);
    let mut left = Vec::new();
    for item in Dir::read_from(&handle).map_err(failed)? {
        let item = item.map_err(failed)?;
        let name = item.file_name().to_bytes();
        if token_of(name) == Some(token) {
            left.push(Name::new(name).expect("the kernel's names are names"));
        }
    }
    let mut removed = 0;
    for name in left {
        let Ok(stamp) = Stamp::at(handle.as_fd(), &name) else { continue };
        let is_directory = stamp.kind() == FileType::Directory;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(&handle, c_name(&name), flags) {
            Ok(()) => removed += 1,
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_names_of_a_running_checkout_are_staged() {
        let staging = Staging::new();
        let name = staging.next_name();
        assert!(is_staged(name.as_bytes()));
        let longer = [name.as_bytes(), b"0"].concat();
        let others = [b".amalgam-tmp.0a1f".to_vec(), format!(".amalgam-tmp.{}", staging.token()).into_bytes(), longer];
        others.iter().for_each(|name| assert!(!is_staged(name), "{}", name.escape_ascii()));
        drop(staging);
        assert!(!is_staged(name.as_bytes()), "it has ended");
    }
}
