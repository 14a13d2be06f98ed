//! The name under which other programs start this one: in hooks of Git and of agents, in configurations of MCP clients.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// The end that Linux gives the path of a running program whose file was deleted or replaced.
const DELETED_END: &str = " (deleted)";

/// Returns the name of this program if it is on `PATH`, else its path.
pub fn program_name() -> Result<String, CliError> {
    let path = env::current_exe().map_err(|error| CliError::machine("find this program", &error))?;
    let places = env::var_os("PATH");
    Ok(name_in(&path, places.iter().flat_map(env::split_paths)))
}

/// Returns `amalgam` if one of the directories has the program under this name, else the path of the program.
fn name_in(program: &Path, mut directories: impl Iterator<Item = PathBuf>) -> String {
    let path = program.to_string_lossy();
    // An update replaces the file: the new one has the path of the old one.
    let path = path.strip_suffix(DELETED_END).filter(|_| !program.exists()).unwrap_or(&path);
    let is_same = |directory: PathBuf, program: &Path| {
        directory.join("amalgam").canonicalize().is_ok_and(|other| other == program)
    };
    let is_found =
        Path::new(path).canonicalize().is_ok_and(|program| directories.any(|directory| is_same(directory, &program)));
    if is_found { "amalgam".to_owned() } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_its_short_name_only_where_path_leads_to_it() {
        let home = tempfile::tempdir().expect("a directory");
        let [bin, empty] = ["bin", "empty"].map(|name| home.path().join(name));
        std::fs::create_dir(&bin).expect("made");
        std::fs::create_dir(&empty).expect("made");
        let program = home.path().join("amalgam-1");
        let long = program.to_str().expect("text").to_owned();
        let name = |program: &str| name_in(Path::new(program), [empty.clone(), bin.clone()].into_iter());
        assert_eq!(name(&long), long, "neither is there");
        assert_eq!(name(&format!("{long}{DELETED_END}")), long, "it was deleted");
        std::fs::write(&program, "").expect("written");
        assert_eq!(name(&long), long);
        std::os::unix::fs::symlink(&program, bin.join("amalgam")).expect("a symlink");
        assert_eq!(name(&long), "amalgam");
        assert_eq!(name(&format!("{long}{DELETED_END}")), "amalgam", "it was replaced");
    }
}
