//! Changes in a directory, as the kernel reports them. The program ends when it is killed, or when the directory is removed.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::Result;
use super::entry::{Names, entry};
use super::failure::Failure;

/// Limit on the directories that one call watches.
const DIRECTORIES_MAX: usize = 8_192;
const BUFFER_BYTES: usize = 64 << 10;

/// The watched directories.
struct Watch {
    kernel: OwnedFd,
    root: PathBuf,
    is_recursive: bool,
    has_entries: bool,
    /// Directories by the number that the kernel gave them, relative to the root.
    directories: HashMap<i32, PathBuf>,
    names: Names,
}

/// Prints `{}` when it watches, then a line for each change.
pub(super) fn watch(path: &Path, is_recursive: bool, has_entries: bool) -> Result<()> {
    if !fs::metadata(path).map_err(Failure::at(path))?.is_dir() {
        return Err(Failure::invalid(format!("{} is not a directory", path.display())));
    }
    let kernel = inotify::init(CreateFlags::CLOEXEC).map_err(io::Error::from)?;
    let (root, directories, names) = (path.to_owned(), HashMap::new(), Names::load());
    let mut watch = Watch { kernel, root, is_recursive, has_entries, directories, names };
    watch.add(Path::new(""), false)?;
    super::print(&json!({}))?;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    loop {
        match watch.take(&mut buffer) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) if error.code == "interrupted" => {}
            Err(error) => return Err(error),
        }
    }
}

impl Watch {
    /// Watches a directory, and those in it if the whole tree is watched. Reports the entries of a new directory as created, since
    /// they may be older than its watch.
    fn add(&mut self, relative: &Path, is_new: bool) -> Result<()> {
        let mut waiting = vec![relative.to_owned()];
        while let Some(relative) = waiting.pop() {
            let directory = self.root.join(&relative);
            let flags = WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE_SELF
                | WatchFlags::ONLYDIR;
            if self.directories.len() >= DIRECTORIES_MAX {
                return Err(Failure::new("resource_exhausted", format!("more than {DIRECTORIES_MAX} directories")));
            }
            match inotify::add_watch(&self.kernel, &directory, flags) {
                Ok(number) => drop(self.directories.insert(number, relative.clone())),
                // It was removed in this moment.
                Err(Errno::NOENT | Errno::NOTDIR) if !relative.as_os_str().is_empty() => continue,
                Err(error) => return Err(Failure::at(&directory)(error.into())),
            }
            if !self.is_recursive {
                continue;
            }
            let Ok(read) = fs::read_dir(&directory) else { continue };
            for found in read.filter_map(|found| found.ok()) {
                let below = relative.join(found.file_name());
                if is_new {
                    self.tell(&below, "create")?;
                }
                if found.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push(below);
                }
            }
        }
        Ok(())
    }

    /// Waits for changes and prints them. Returns whether the directory still exists.
    fn take(&mut self, buffer: &mut [MaybeUninit<u8>]) -> Result<bool> {
        let mut changes = Vec::new();
        {
            let mut reader = inotify::Reader::new(&self.kernel, buffer);
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::INTR) => return Err(Failure::new("interrupted", "")),
                    Err(error) => return Err(io::Error::from(error).into()),
                };
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                changes.push((event.wd(), event.events(), name));
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
        for (number, flags, name) in changes {
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                return Err(Failure::new("resource_exhausted", "changes came faster than they were read"));
            }
            let Some(directory) = self.directories.get(&number).cloned() else { continue };
            if flags.contains(ReadFlags::IGNORED) {
                self.directories.remove(&number);
                if directory.as_os_str().is_empty() {
                    return Ok(false);
                }
                continue;
            }
            let Some(name) = name else { continue };
            let relative = directory.join(name);
            let is_new = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            let kinds = [
                (ReadFlags::CREATE | ReadFlags::MOVED_TO, "create"),
                (ReadFlags::MODIFY, "write"),
                (ReadFlags::DELETE, "remove"),
                (ReadFlags::MOVED_FROM, "rename"),
                (ReadFlags::ATTRIB, "chmod"),
            ];
            for (kind, word) in kinds {
                if flags.intersects(kind) {
                    self.tell(&relative, word)?;
                }
            }
            if is_new && self.is_recursive && flags.contains(ReadFlags::ISDIR) {
                self.add(&relative, true)?;
            }
        }
        Ok(true)
    }

    fn tell(&self, relative: &Path, kind: &str) -> Result<()> {
        let mut line = json!({"name": relative.to_string_lossy(), "type": kind});
        if self.has_entries {
            line["entry"] = entry(&self.root.join(relative), &self.names).unwrap_or(Value::Null);
        }
        let mut out = io::stdout().lock();
        Ok(writeln!(out, "{line}")?)
    }
}
