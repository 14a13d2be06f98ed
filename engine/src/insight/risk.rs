//! Hints for reviewers at risky changes. Plain data: a hint states an observation, not an action.
//!
//! The hints in this module depend only on names, modes and sizes; [`secret`](super::secret) searches the lines.

use bytes::Bytes;

use super::GrowthLimit;
use crate::diff::{Change, What};
use crate::name::TreePath;
use crate::object::{Entry, Node};

/// An observation about a change that a reviewer should check, and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Risk {
    /// The path that the hint is about; for a removal or a move, the old path.
    pub path: TreePath,
    /// The observation.
    pub hint: RiskHint,
}

/// An observation about a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RiskHint {
    /// A file became executable.
    Executable,
    /// A file gained a set-user-ID or set-group-ID bit.
    SetId {
        /// The new permission bits: `0o4000`, `0o2000` or both.
        bits: u32,
    },
    /// A dependency lock file changed.
    LockFile,
    /// A CI configuration changed.
    CiFile,
    /// A new or changed file has a name that is typical for credentials.
    CredentialName,
    /// An added line contains a likely credential. The hint does not contain the line itself.
    Credential {
        /// The kind of credential that it resembles.
        shape: &'static str,
        /// The line number, counted from 1.
        line: u64,
    },
    /// A file grew by more than the limit.
    Growth {
        /// The size before, in bytes.
        before: u64,
        /// The size after, in bytes.
        after: u64,
    },
    /// A test was removed or moved out of the test directories.
    TestRemoved,
    /// A binary file was added.
    BinaryAdded {
        /// Its size in bytes.
        bytes: u64,
    },
    /// A symlink points outside the tree, by an absolute target or by more `..` than there are directories.
    SymlinkOutside {
        /// The target.
        target: Bytes,
    },
}

impl RiskHint {
    /// Returns the name of the hint, for tables and counters.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Executable => "executable",
            Self::SetId { .. } => "set-id",
            Self::LockFile => "lock-file",
            Self::CiFile => "ci-file",
            Self::CredentialName => "credential-name",
            Self::Credential { .. } => "credential",
            Self::Growth { .. } => "growth",
            Self::TestRemoved => "test-removed",
            Self::BinaryAdded { .. } => "binary-added",
            Self::SymlinkOutside { .. } => "symlink-outside",
        }
    }

    /// Returns the weight of the hint in a [score](super::Summary::score).
    pub fn weight(&self) -> u64 {
        match self {
            Self::LockFile => 2,
            Self::Executable | Self::BinaryAdded { .. } => 5,
            Self::Growth { .. } => 10,
            Self::CiFile | Self::TestRemoved => 20,
            Self::CredentialName | Self::SymlinkOutside { .. } => 30,
            Self::SetId { .. } => 50,
            Self::Credential { .. } => 100,
        }
    }
}

/// Returns the hints that follow from names, modes and sizes.
pub(super) fn outer_risks(change: &Change, growth: GrowthLimit) -> Vec<Risk> {
    let mut risks = Vec::new();
    let mut add = |path: &TreePath, hint| risks.push(Risk { path: path.clone(), hint });
    let path = &change.path;
    if let Some(from) = lost_test(change) {
        add(from, RiskHint::TestRemoved);
    }
    if change.what != What::Metadata && !is_directory(change) {
        if is_lock_file(path) {
            add(path, RiskHint::LockFile);
        }
        if is_ci_file(path) {
            add(path, RiskHint::CiFile);
        }
    }
    let Some(after) = &change.after else { return risks };
    match &after.node {
        Node::File { size, .. } => {
            let before = change.before.as_ref();
            let new_bits = after.mode & !before.map_or(0, file_mode);
            if after.mode & 0o111 != 0 && before.map_or(0, file_mode) & 0o111 == 0 {
                add(path, RiskHint::Executable);
            }
            if new_bits & 0o6000 != 0 {
                add(path, RiskHint::SetId { bits: new_bits & 0o6000 });
            }
            if change.what != What::Metadata && is_credential_name(path) {
                add(path, RiskHint::CredentialName);
            }
            let size_before = before.map_or(0, super::body::size);
            let grew = size.saturating_sub(size_before) >= growth.bytes_min;
            if grew && *size >= size_before.saturating_mul(growth.factor) {
                add(path, RiskHint::Growth { before: size_before, after: *size });
            }
        }
        Node::Symlink(target) if change.what != What::Metadata && leads_outside(path, target) => {
            add(path, RiskHint::SymlinkOutside { target: target.clone() });
        }
        _ => {}
    }
    risks
}

fn file_mode(entry: &Entry) -> u32 {
    match entry.node {
        Node::File { .. } => entry.mode,
        _ => 0,
    }
}

fn is_directory(change: &Change) -> bool {
    let is = |entry: &Option<Entry>| matches!(entry, Some(Entry { node: Node::Directory(_), .. }));
    is(&change.before) || is(&change.after)
}

/// Returns the path of a test that this change removes.
fn lost_test(change: &Change) -> Option<&TreePath> {
    let is_file = matches!(change.before, Some(Entry { node: Node::File { .. }, .. }));
    match &change.what {
        What::Removed if is_file && is_test(&change.path) => Some(&change.path),
        What::KindChanged if is_file && is_test(&change.path) => Some(&change.path),
        What::Renamed { from } if is_file && is_test(from) && !is_test(&change.path) => Some(from),
        _ => None,
    }
}

fn names(path: &TreePath) -> (Vec<String>, String) {
    let mut names: Vec<String> =
        path.names().map(|name| String::from_utf8_lossy(name.as_bytes()).to_ascii_lowercase()).collect();
    let last = names.pop().unwrap_or_default();
    (names, last)
}

fn is_test(path: &TreePath) -> bool {
    let (directories, _) = names(path);
    let is_folder = |name: &String| matches!(name.as_str(), "test" | "tests" | "__tests__" | "spec" | "specs" | "e2e");
    if directories.iter().any(is_folder) {
        return true;
    }
    // Camel case distinguishes `LatestThing.java` from `ThingTest.java`.
    let name = path.split_last().map(|(_, name)| String::from_utf8_lossy(name.as_bytes()).into_owned());
    let name = name.unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
    let begins = ["test_", "tests_"].iter().any(|word| stem.starts_with(word));
    let ends = ["_test", "_tests", "_spec", ".test", ".spec", "-test", "-spec", "Test", "Tests", "Spec"];
    begins || ends.iter().any(|word| stem.ends_with(word) && stem.len() > word.len())
}

fn is_lock_file(path: &TreePath) -> bool {
    let (_, name) = names(path);
    matches!(
        name.as_str(),
        "cargo.lock"
            | "package-lock.json"
            | "npm-shrinkwrap.json"
            | "yarn.lock"
            | "pnpm-lock.yaml"
            | "bun.lock"
            | "bun.lockb"
            | "deno.lock"
            | "gemfile.lock"
            | "poetry.lock"
            | "pipfile.lock"
            | "uv.lock"
            | "pdm.lock"
            | "composer.lock"
            | "go.sum"
            | "flake.lock"
            | "mix.lock"
            | "podfile.lock"
            | "package.resolved"
            | "packages.lock.json"
            | "gradle.lockfile"
            | "pubspec.lock"
            | "conan.lock"
            | ".terraform.lock.hcl"
    )
}

fn is_ci_file(path: &TreePath) -> bool {
    let (directories, name) = names(path);
    let first = directories.first().map(String::as_str);
    let second = directories.get(1).map(String::as_str);
    let folder = match first {
        Some(".github") => matches!(second, Some("workflows" | "actions")),
        Some(".circleci" | ".buildkite" | ".woodpecker" | ".teamcity" | ".tekton" | ".husky") => true,
        _ => false,
    };
    folder
        || matches!(
            name.as_str(),
            ".gitlab-ci.yml"
                | ".travis.yml"
                | ".drone.yml"
                | ".woodpecker.yml"
                | ".cirrus.yml"
                | "jenkinsfile"
                | "azure-pipelines.yml"
                | "bitbucket-pipelines.yml"
                | "appveyor.yml"
                | "cloudbuild.yaml"
                | "buildspec.yml"
                | ".pre-commit-config.yaml"
        )
}

fn is_credential_name(path: &TreePath) -> bool {
    let (directories, name) = names(path);
    let name = name.as_str();
    let known = matches!(
        name,
        ".env"
            | ".envrc"
            | ".netrc"
            | "_netrc"
            | ".npmrc"
            | ".pypirc"
            | ".pgpass"
            | ".my.cnf"
            | ".htpasswd"
            | ".git-credentials"
            | "credentials"
            | "credentials.json"
            | "secrets.yml"
            | "secrets.yaml"
            | "secrets.json"
            | "secrets.toml"
            | "kubeconfig"
            | "id_rsa"
            | "id_dsa"
            | "id_ecdsa"
            | "id_ed25519"
    );
    let example = ["example", "sample", "template", "dist"].iter().any(|word| name.contains(word));
    let environment = name.starts_with(".env.") && !example;
    let account = name.starts_with("service-account") && name.ends_with(".json") && !example;
    let extension = name.rsplit_once('.').is_some_and(|(stem, extension)| {
        let secret = ["pem", "key", "p12", "pfx", "jks", "keystore", "kdbx", "ovpn", "tfstate", "ppk"];
        !stem.is_empty() && secret.contains(&extension)
    });
    let inside = match directories.last().map(String::as_str) {
        Some(".docker") => name == "config.json",
        Some(".kube") => name == "config",
        _ => false,
    };
    known || environment || account || extension || inside
}

/// Returns whether a symlink at this path points outside the tree. Other symlinks on the path are treated as directories.
fn leads_outside(path: &TreePath, target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return true;
    }
    let mut depth = path.names().count().saturating_sub(1);
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).expect("valid")
    }

    #[test]
    fn names_tell_tests_lock_files_builds_and_credentials() {
        let check = |is: fn(&TreePath) -> bool, yes: &[&str], no: &[&str]| {
            yes.iter().for_each(|name| assert!(is(&path(name)), "{name}"));
            no.iter().for_each(|name| assert!(!is(&path(name)), "{name}"));
        };
        check(
            is_test,
            &["tests/a.rs", "a/__tests__/x.js", "test_a.py", "a_test.go", "b.spec.ts", "src/ThingTest.java"],
            &["latest.py", "src/contest.rs", "testing/notes.md", "Test.md", "attest"],
        );
        check(is_lock_file, &["Cargo.lock", "web/package-lock.json", "go.sum"], &["lock.rs", "Cargo.toml"]);
        check(
            is_ci_file,
            &[".github/workflows/ci.yml", ".gitlab-ci.yml", "Jenkinsfile", ".circleci/config.yml"],
            &[".github/CODEOWNERS", "ci.md", "docs/workflows/a.yml"],
        );
        check(
            is_credential_name,
            &[".env", ".env.production", "deploy/id_rsa", "server.key", "a/.kube/config", ".npmrc"],
            &[".env.example", "environment.rs", "config", "id_rsa.pub", "keys.rs", ".key"],
        );
    }

    #[test]
    fn targets_are_followed_by_their_names_alone() {
        for (at, target, outside) in [
            ("a", "b", false),
            ("a", "../b", true),
            ("d/a", "../b", false),
            ("d/a", "../../b", true),
            ("d/a", "x/../../../b", true),
            ("a", "/etc/passwd", true),
            ("a", "././/b/..", false),
        ] {
            assert_eq!(leads_outside(&path(at), target.as_bytes()), outside, "{at} -> {target}");
        }
    }
}
