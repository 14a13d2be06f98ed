//! `amalgam-agent files`: file operations as a command, so that the server reaches every file that commands of the sandbox reach, as
//! the same user: in the workspace, in the home and in `/tmp`.
//!
//! Results are JSON lines on standard output, an error is one JSON line on standard error and exit code 3. Paths that are not absolute
//! begin at `$HOME`, and so does `~`.

mod entry;
mod failure;
mod upload;
mod watch;

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Read as _, Seek as _, Write as _};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use entry::{Names, entry};
use failure::Failure;

/// The exit code of an operation that failed.
const FAILED: u8 = 3;
/// The deepest directories that a list goes into.
const DEPTH_MAX: u32 = 64;

type Result<T> = std::result::Result<T, Failure>;

/// Does one operation.
pub(crate) fn main(words: &[OsString]) -> ExitCode {
    match run(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let line = json!({"code": failure.code, "message": failure.message});
            // A caller that does not read needs no answer.
            let _ = writeln!(io::stderr(), "{line}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(words: &[OsString]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    match words.as_slice() {
        ["stat", path] => stat(&resolve(path)),
        ["list", path, depth] => list(&resolve(path), number(depth)?),
        ["mkdir", path] => make_directory(&resolve(path)),
        ["move", from, to] => rename(&resolve(from), &resolve(to)),
        ["remove", path] => remove(&resolve(path)),
        ["read", path, offset, length] => read(&resolve(path), number(offset)?, number(length)?),
        ["write", path, metadata @ ..] => upload::write(&resolve(path), metadata, io::stdin().lock()),
        ["watch", path, options @ ..] => {
            watch::watch(&resolve(path), options.contains(&"recursive"), options.contains(&"entries"))
        }
        _ => Err(Failure::invalid("no operation of files")),
    }
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T> {
    word.parse().map_err(|_| Failure::invalid(format!("`{word}` is no number")))
}

/// Resolves a path from a client to an absolute path without `.` and `..`. Relative paths and `~` begin at the home directory.
fn resolve(path: &str) -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    resolve_at(&home, path)
}

fn resolve_at(home: &Path, path: &str) -> PathBuf {
    let whole = match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => home.join(path),
    };
    let mut clean = PathBuf::from("/");
    for part in whole.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

fn print(value: &serde_json::Value) -> Result<()> {
    Ok(writeln!(io::stdout(), "{value}")?)
}

fn stat(path: &Path) -> Result<()> {
    print(&entry(path, &Names::load())?)
}

fn list(path: &Path, depth: u32) -> Result<()> {
    // What a link leads to is listed, under the name of the link.
    if !fs::metadata(path).map_err(Failure::at(path))?.is_dir() {
        return Err(Failure::invalid(format!("{} is not a directory", path.display())));
    }
    let (mut out, names) = (BufWriter::new(io::stdout().lock()), Names::load());
    let mut waiting = vec![(path.to_owned(), depth.clamp(1, DEPTH_MAX))];
    while let Some((directory, depth)) = waiting.pop() {
        let read = match fs::read_dir(&directory) {
            Ok(read) => read,
            // A directory below that cannot be read hides no other one.
            Err(_) if directory != path => continue,
            Err(error) => return Err(Failure::at(path)(error)),
        };
        let mut found: Vec<_> = read.filter_map(|found| found.ok()).collect();
        found.sort_by_key(fs::DirEntry::file_name);
        for found in found {
            // It may be gone in this moment.
            let Ok(entry) = entry(&found.path(), &names) else { continue };
            writeln!(out, "{entry}")?;
            if depth > 1 && found.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push((found.path(), depth - 1));
            }
        }
    }
    Ok(out.flush()?)
}

fn make_directory(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            return Err(Failure::new("already_exists", format!("directory {} exists", path.display())));
        }
        Ok(_) => return Err(Failure::invalid(format!("{} is a file", path.display()))),
        Err(_) => fs::create_dir_all(path).map_err(Failure::at(path))?,
    }
    stat(path)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::symlink_metadata(from).map_err(Failure::at(from))?;
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(Failure::at(parent))?;
    }
    match fs::rename(from, to) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => move_over(from, to)?,
        Err(error) => return Err(Failure::at(from)(error)),
    }
    stat(to)
}

/// Moves something to another file system: a copy, then the removal of the original.
fn move_over(from: &Path, to: &Path) -> Result<()> {
    let kind = fs::symlink_metadata(from).map_err(Failure::at(from))?;
    if kind.is_symlink() {
        let target = fs::read_link(from).map_err(Failure::at(from))?;
        std::os::unix::fs::symlink(target, to).map_err(Failure::at(to))?;
    } else if kind.is_dir() {
        fs::create_dir(to).map_err(Failure::at(to))?;
        for found in fs::read_dir(from).map_err(Failure::at(from))? {
            let found = found.map_err(Failure::at(from))?;
            move_over(&found.path(), &to.join(found.file_name()))?;
        }
        fs::set_permissions(to, kind.permissions()).map_err(Failure::at(to))?;
        return fs::remove_dir(from).map_err(Failure::at(from));
    } else if kind.is_file() {
        fs::copy(from, to).map_err(Failure::at(from))?;
    } else {
        return Err(Failure::invalid(format!("{} is no file, directory or link", from.display())));
    }
    fs::remove_file(from).map_err(Failure::at(from))
}

/// Removes a file, or a directory with everything in it. Something that is not there needs no removal.
fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::at(path)(error)),
        _ => Ok(()),
    }
}

/// Writes a line with the size of the file, then a part of its bytes.
fn read(path: &Path, offset: u64, length: u64) -> Result<()> {
    let kind = fs::metadata(path).map_err(Failure::at(path))?;
    if !kind.is_file() {
        return Err(Failure::invalid(format!("{} is not a file", path.display())));
    }
    let mut file = fs::File::open(path).map_err(Failure::at(path))?;
    print(&json!({"size": kind.len()}))?;
    file.seek(io::SeekFrom::Start(offset)).map_err(Failure::at(path))?;
    io::copy(&mut file.take(length), &mut io::stdout().lock()).map_err(Failure::at(path))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_home_and_have_no_dots() {
        let at = |path: &str| resolve_at(Path::new("/workspace"), path).display().to_string();
        for (path, expected) in [
            ("", "/workspace"),
            ("a/b", "/workspace/a/b"),
            ("~", "/workspace"),
            ("~/a", "/workspace/a"),
            ("~ann", "/workspace/~ann"),
            ("/tmp/x", "/tmp/x"),
            ("../../../etc", "/etc"),
            ("/a/./b/../c/", "/a/c"),
        ] {
            assert_eq!(at(path), expected, "{path}");
        }
    }

    #[test]
    fn what_is_not_there_is_removed_and_an_operation_without_a_name_is_refused() {
        assert!(remove(Path::new("/nowhere/at/all")).is_ok());
        assert_eq!(run(&["explode".into()]).expect_err("unknown").code, "invalid_argument");
        assert_eq!(
            run(&["read".into(), "/x".into(), "-1".into(), "1".into()]).expect_err("no number").code,
            "invalid_argument"
        );
    }
}
