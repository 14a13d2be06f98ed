//! The secret of a store from which the keys of file handles are derived. It is created once: clients keep handles across restarts.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};
use crate::home::replace_file;

/// The size of a key in bytes.
pub(super) const KEY_BYTES: usize = 32;

/// Reads the key in a directory, or creates one.
pub(super) fn read_or_make(directory: &Path) -> Result<[u8; KEY_BYTES]> {
    let file = directory.join("key");
    match fs::read(&file) {
        Ok(bytes) => bytes.try_into().map_err(|bytes: Vec<u8>| {
            let why = format!("read {}: it has {} bytes instead of {KEY_BYTES}", file.display(), bytes.len());
            Error::io(why)(io::ErrorKind::InvalidData.into())
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(Error::io("make the directory of exports"))?;
            let mut key = [0; KEY_BYTES];
            fill_random(&mut key)?;
            let written = replace_file(&file, &key).and_then(|()| fs::File::open(directory)?.sync_all());
            written.map_err(Error::io("write the key of file handles"))?;
            Ok(key)
        }
        Err(error) => Err(Error::io("read the key of file handles")(error)),
    }
}

/// Returns random bytes as hex digits.
pub(super) fn random_hex(bytes: usize) -> Result<String> {
    let mut random = vec![0; bytes];
    fill_random(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Fills a buffer of at most 256 bytes, which the kernel returns in one call.
fn fill_random(buffer: &mut [u8]) -> Result<()> {
    let wanted = buffer.len();
    match getrandom(buffer, GetRandomFlags::empty()) {
        Ok(count) if count == wanted => Ok(()),
        Ok(_) => Err(Error::io("read random bytes")(io::ErrorKind::UnexpectedEof.into())),
        Err(error) => Err(Error::io("read random bytes")(error.into())),
    }
}
