//! Whether a store may be opened: its home names commands (the pager, the merge tool, tests, rules), which run as the caller. So a
//! home must be the caller's own, and no other user may be able to write to it.

use std::env;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use amalgam_server::Home;

use crate::error::CliError;

/// The environment variable that lists homes, separated by colons, that are opened although another user owns them.
const SAFE: &str = "AMALGAM_SAFE_STORES";
/// Files of a home that name commands, or decide where commands come from.
const NAMING_COMMANDS: [&str; 6] =
    ["config.toml", "merge.toml", "publishing.json", "approved-commands.json", "store", "directories"];
const OTHERS_WRITE: u32 = 0o022;

/// Refuses a home that other users own or can write to. If others could read a home of the caller, makes it private, and returns a
/// message about that.
pub fn check_home(home: &Path) -> Result<Option<String>, CliError> {
    let Ok(found) = fs::metadata(home) else { return Ok(None) };
    if is_declared_safe(home) {
        return Ok(None);
    }
    let user = rustix::process::geteuid().as_raw();
    let shown = home.display().to_string();
    if found.uid() != user {
        let message = format!(
            "{shown} belongs to user {}, not to you (user {user}): a store names commands, and they would run as you",
            found.uid()
        );
        return Err(refused(home, message));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        let message = format!(
            "other users can write to {shown} (mode {:04o}): a store names commands, and they would run as you",
            found.mode() & 0o7777
        );
        let hint = format!("if all that is in it is yours: `chmod go-w {shown}`");
        return Err(CliError::refused(message).hint(hint));
    }
    for name in NAMING_COMMANDS {
        check_part(home, name, user)?;
    }
    let home = Home::new(home);
    // A directory that is not a store yet may hold other files, so its mode is not changed.
    if !home.exists() {
        return Ok(None);
    }
    let closed = home.close_to_others().map_err(|error| CliError::machine(&shown, &error))?;
    Ok(closed.map(|mode| format!("{shown} was open to other users (mode {mode:04o}); it is yours alone now (0700)")))
}

/// Refuses a file of a home that belongs neither to the caller nor to root, or is a symlink to a file that other users can write
/// to.
fn check_part(home: &Path, name: &str, user: u32) -> Result<(), CliError> {
    let path = home.join(name);
    let Ok(found) = fs::metadata(&path) else { return Ok(()) };
    let is_own = |found: &Metadata| [user, 0].contains(&found.uid());
    let is_link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
    let why = match () {
        () if !is_own(&found) => format!("belongs to user {}", found.uid()),
        () if is_link && found.mode() & OTHERS_WRITE != 0 => "leads to what other users can write to".to_owned(),
        () => return Ok(()),
    };
    Err(refused(home, format!("{} {why}: a store names commands, and they would run as you", path.display())))
}

fn refused(home: &Path, message: String) -> CliError {
    CliError::refused(message).hint(format!("{SAFE}={} opens it all the same, if you trust its owner", home.display()))
}

fn is_declared_safe(home: &Path) -> bool {
    let listed = env::var_os(SAFE).unwrap_or_default();
    env::split_paths(&listed)
        .any(|safe| safe.is_absolute() && (safe == home || safe.canonicalize().is_ok_and(|safe| safe == home)))
}
