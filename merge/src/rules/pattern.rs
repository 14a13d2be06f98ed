//! A pattern for paths with the semantics of a `.gitignore` file: without a slash, it matches a name at any depth; with a slash
//! inside, a path from the root; with a slash at the end, everything below a directory.

use globset::{Candidate, GlobBuilder, GlobMatcher};

#[derive(Clone, Debug)]
pub(super) struct Pattern {
    text: String,
    glob: GlobMatcher,
}

impl Pattern {
    /// Parses a pattern. The error is a message for the user.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let from_top = text.trim_end_matches('/').contains('/');
        let inner = text.strip_prefix('/').unwrap_or(text);
        if inner.trim_matches('/').is_empty() {
            return Err("an empty pattern".to_owned());
        }
        let below =
            if let Some(directory) = inner.strip_suffix('/') { format!("{directory}/**") } else { inner.to_owned() };
        let whole = if from_top { below } else { format!("**/{below}") };
        let glob = GlobBuilder::new(&whole).literal_separator(true).backslash_escape(true).build();
        let glob = glob.map_err(|error| error.kind().to_string())?;
        Ok(Self { text: text.to_owned(), glob: glob.compile_matcher() })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        self.glob.is_match_candidate(&Candidate::from_bytes(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_paths_and_directories() {
        for (pattern, path, expected) in [
            ("*.json", "a.json", true),
            ("*.json", "b/c/a.json", true),
            ("*.json", "a.json5", false),
            ("b/*.json", "b/a.json", true),
            ("b/*.json", "x/b/a.json", false),
            ("b/*.json", "b/c/a.json", false),
            ("/a.json", "a.json", true),
            ("/a.json", "b/a.json", false),
            ("b/", "b/x/y", true),
            ("b/", "a/b/x", true),
            ("**/b/*.rs", "a/b/c.rs", true),
            ("**", "anything/at/all", true),
            ("{a,b}.rs", "b.rs", true),
        ] {
            assert_eq!(
                Pattern::new(pattern).expect("a pattern").matches(path.as_bytes()),
                expected,
                "{pattern} {path}"
            );
        }
        assert!(Pattern::new("[a").is_err() && Pattern::new("/").is_err() && Pattern::new("").is_err());
    }
}
