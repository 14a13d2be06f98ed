//! A unit of `systemd --user` that starts the store's process when the user logs in, so that background watches continue after a
//! restart of the machine. It is optional, and available only with systemd: without it, the next command starts the process.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::connect::{EXIT_BUSY, socket_path};
use crate::error::CliError;

/// Returns whether the systemd instance of this user answers.
pub fn is_offered() -> bool {
    systemctl(&["show-environment"]).is_ok()
}

/// Returns whether the unit of a store is installed, which starts its background process at log-in.
pub fn is_installed(home: &Path) -> bool {
    place(home).is_ok_and(|unit| unit.is_file())
}

/// Writes the unit of a store and enables it in systemd. Returns its path.
pub fn install(home: &Path) -> Result<PathBuf, CliError> {
    if !is_offered() {
        let hint = "without it, the next `amalgam` command after a log-in takes the watch up";
        return Err(
            CliError::refused("systemd does not run for this user, so nothing can be started at log-in").hint(hint)
        );
    }
    let unit = place(home)?;
    let failed = |error: io::Error| CliError::machine(unit.display(), &error);
    let program = std::env::current_exe().map_err(|error| CliError::machine("find this program", &error))?;
    let socket = socket_path(home).map_err(failed)?;
    let folder = unit.parent().expect("a unit lies in a folder");
    fs::create_dir_all(folder).map_err(failed)?;
    fs::write(&unit, text(&program, home, &socket)).map_err(failed)?;
    let name = unit.file_name().expect("a unit has a name").to_string_lossy().into_owned();
    let enabled = systemctl(&["daemon-reload"]).and_then(|()| systemctl(&["enable", &name]));
    enabled.map_err(|why| CliError::refused(format!("systemctl --user enable {name}: {why}")))?;
    Ok(unit)
}

/// Disables and deletes the unit of a store. Returns whether there was one.
pub fn remove(home: &Path) -> Result<bool, CliError> {
    let unit = place(home)?;
    if !unit.is_file() {
        return Ok(false);
    }
    let name = unit.file_name().expect("a unit has a name").to_string_lossy().into_owned();
    // Without a running systemd there is nothing to disable.
    let _ = systemctl(&["disable", &name]);
    fs::remove_file(&unit).map_err(|error| CliError::machine(unit.display(), &error))?;
    let _ = systemctl(&["daemon-reload"]);
    Ok(true)
}

/// Returns the path of the systemd unit of a store. Its name contains the id of the store's socket.
fn place(home: &Path) -> Result<PathBuf, CliError> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let config = config.ok_or_else(|| CliError::refused("HOME is not set, so there is no place for a unit"))?;
    let socket = socket_path(home).map_err(|error| CliError::machine(home.display(), &error))?;
    let id = socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(config.join("systemd/user").join(format!("amalgam-{id}.service")))
}

/// Returns the text of the systemd unit. systemd does not restart a process that ends because another one has the store open.
fn text(program: &Path, home: &Path, socket: &Path) -> String {
    let [program, store, socket] = [program, home, socket].map(quoted);
    let log = home.join("log");
    format!(
        "[Unit]\n\
         Description=Amalgam: watches directories and keeps their snapshots\n\
         \n\
         [Service]\n\
         ExecStart={program} --store {store} serve --socket {socket}\n\
         StandardError=append:{}\n\
         Restart=on-failure\n\
         RestartPreventExitStatus={EXIT_BUSY}\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        log.to_string_lossy().replace('%', "%%"),
    )
}

/// Quotes a word for the command line of a systemd unit.
fn quoted(word: &Path) -> String {
    let mut quoted = String::from("\"");
    for byte in word.as_os_str().as_bytes() {
        match byte {
            b'"' | b'\\' => quoted.push_str(&format!("\\{}", char::from(*byte))),
            b'%' => quoted.push_str("%%"),
            b'$' => quoted.push_str("$$"),
            b' '..=b'~' => quoted.push(char::from(*byte)),
            byte => quoted.push_str(&format!("\\x{byte:02x}")),
        }
    }
    quoted.push('"');
    quoted
}

/// Calls `systemctl --user`. Returns its error output if it fails.
fn systemctl(words: &[&str]) -> Result<(), String> {
    let told = Command::new("systemctl").arg("--user").args(words).output().map_err(|error| error.to_string())?;
    match told.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&told.stderr).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_systemd_reads_them() {
        assert_eq!(quoted(Path::new("/usr/bin/amalgam")), "\"/usr/bin/amalgam\"");
        assert_eq!(quoted(Path::new("/a b/50%/$x\"\\\u{e9}")), "\"/a b/50%%/$$x\\\"\\\\\\xc3\\xa9\"");
    }

    #[test]
    fn a_unit_starts_the_process_of_its_store() {
        let unit = text(Path::new("/bin/amalgam"), Path::new("/users/ann/store"), Path::new("/run/x.sock"));
        let start = "ExecStart=\"/bin/amalgam\" --store \"/users/ann/store\" serve --socket \"/run/x.sock\"\n";
        assert!(unit.contains(start), "{unit}");
        assert!(unit.contains("RestartPreventExitStatus=11\n"), "{unit}");
    }
}
