//! A pattern for paths with the semantics of a `.gitignore` file: without a slash, it matches a name at any depth; with a slash, a path
//! from the root; with a slash at the end, everything below a directory and not the directory itself. A directory that matches takes
//! everything below it along.

use globset::{Glob, GlobBuilder, GlobMatcher};

use crate::fold::{fold, fold_text};

/// A pattern for paths.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    text: String,
    /// The globs of the pattern: paths that match, and paths below those.
    globs: Vec<Glob>,
    /// The globs of the folded pattern.
    folded: Vec<Glob>,
    /// The names of the folded pattern.
    parts: Vec<Part>,
}

/// The pattern of one name of a path.
#[derive(Clone, Debug)]
enum Part {
    Name(String),
    Glob(GlobMatcher),
    /// Any names from here on.
    Rest,
}

impl Pattern {
    /// Parses a pattern. The error is a message for the user.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let whole = from_root(text)?;
        let folded = fold_text(&whole);
        Ok(Self {
            text: text.to_owned(),
            parts: parts(&folded)?,
            globs: globs(&whole)?,
            folded: if folded == whole { Vec::new() } else { globs(&folded)? },
        })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the globs, and those of the folded pattern.
    pub(crate) fn globs(&self) -> (&[Glob], &[Glob]) {
        (&self.globs, if self.folded.is_empty() { &self.globs } else { &self.folded })
    }

    /// Returns whether the pattern is that of a name, at any depth.
    pub(crate) fn is_name(&self) -> bool {
        !self.text.contains(['/', '{'])
    }

    pub(crate) fn is_folded(&self) -> bool {
        self.folded.is_empty()
    }

    /// Returns whether the pattern, or a twin of it, may match a path below a directory. It may say yes where no such path exists.
    pub(crate) fn may_match_below(&self, directory: &[u8]) -> bool {
        let directory = fold(directory);
        let names = directory.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        for (name, part) in names.zip(&self.parts) {
            let fits = match part {
                Part::Name(wanted) => wanted.as_bytes() == name,
                Part::Glob(glob) => glob.is_match_candidate(&globset::Candidate::from_bytes(name)),
                Part::Rest => return true,
            };
            if !fits {
                return false;
            }
        }
        true
    }
}

/// Returns a pattern as a glob of whole paths.
fn from_root(text: &str) -> Result<String, String> {
    let inner = text.strip_prefix('/').unwrap_or(text);
    if inner.trim_matches('/').is_empty() {
        return Err("an empty pattern".to_owned());
    }
    if inner.split('/').any(|name| matches!(name, "." | "..")) || inner.contains("//") {
        return Err("a path of a workspace has no `.`, no `..` and no empty name".to_owned());
    }
    let below = match inner.strip_suffix('/') {
        Some(directory) => format!("{directory}/**"),
        None => inner.to_owned(),
    };
    let is_rooted = text.trim_end_matches('/').contains('/');
    Ok(if is_rooted || below == "**" { below } else { format!("**/{below}") })
}

/// Returns the globs of paths that match, and of paths below those.
fn globs(whole: &str) -> Result<Vec<Glob>, String> {
    let build = |text: &str| {
        let glob = GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build();
        glob.map_err(|error| error.kind().to_string())
    };
    let mut globs = vec![build(whole)?];
    if !whole.ends_with("/**") && whole != "**" {
        globs.push(build(&format!("{whole}/**"))?);
    }
    Ok(globs)
}

fn parts(whole: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    // Alternatives may hold slashes.
    if whole.contains('{') {
        return Ok(vec![Part::Rest]);
    }
    for name in whole.split('/') {
        if name == "**" {
            parts.push(Part::Rest);
            break;
        }
        if name.contains(['*', '?', '[', '\\']) {
            let glob = GlobBuilder::new(name).literal_separator(true).backslash_escape(true).build();
            parts.push(Part::Glob(glob.map_err(|error| error.kind().to_string())?.compile_matcher()));
        } else {
            parts.push(Part::Name(name.to_owned()));
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::new(pattern).expect("a pattern").globs.iter().any(|glob| glob.compile_matcher().is_match(path))
    }

    #[test]
    fn patterns_match_names_paths_and_everything_below() {
        for (pattern, path, expected) in [
            ("*.json", "a.json", true),
            ("*.json", "b/c/a.json", true),
            ("b/*.json", "b/a.json", true),
            ("b/*.json", "x/b/a.json", false),
            ("b/*.json", "b/c/a.json", false),
            ("/a.json", "b/a.json", false),
            ("secret", "secret", true),
            ("secret", "a/secret/deep/key", true),
            ("/secret", "secret/deep/key", true),
            ("/secret", "a/secret", false),
            ("b/", "b", false),
            ("b/", "b/x/y", true),
            ("b/**", "b", false),
            ("b/**", "b/x", true),
            ("b/*", "b/x/y", true),
            ("**", "anything/at/all", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
        for bad in ["[a", "/", "", "a/../b", "./a", "a//b"] {
            assert!(Pattern::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_may_match_below_directories_on_its_way() {
        for (pattern, directory, expected) in [
            ("a/b/c", "", true),
            ("a/b/c", "a", true),
            ("a/b/c", "a/b", true),
            ("a/b/c", "a/x", false),
            ("a/*/c", "a/x", true),
            ("a/b*/c", "a/x", false),
            ("a/**", "a/x/y", true),
            ("*.md", "anywhere", true),
            ("{a,b/c}/d", "z", true),
        ] {
            assert_eq!(Pattern::new(pattern).expect("a pattern").may_match_below(directory.as_bytes()), expected);
        }
    }
}
