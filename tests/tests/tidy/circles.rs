//! Import circles among the files of a crate: reads `use` declarations and inline paths, and finds strongly connected components.
//!
//! A parent module and its children are separate files. `mod` declarations and re-exports (`pub use`) from a parent to a child are
//! no arrows: otherwise every folder would be a circle. An import through a re-export points at the file that defines the item.
//! Calls of methods are not seen. Tests inside a file are left out.

use std::collections::{BTreeMap, BTreeSet};

/// The files of one crate, by module path: `crate`, `crate::a`, `crate::a::b`.
pub struct Modules<'a> {
    files: BTreeMap<String, File<'a>>,
}

struct File<'a> {
    path: &'a str,
    imports: Vec<Import>,
}

/// A path in a file: of a `use` declaration, or inline.
struct Import {
    path: Vec<String>,
    is_reexport: bool,
}

impl<'a> Modules<'a> {
    /// Reads the files of a crate, as paths below its `src` folder and texts.
    pub fn read(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let files = files.map(|(path, text)| {
            let module = path.trim_end_matches(".rs").replace('/', "::");
            let module =
                if ["lib", "main"].contains(&&*module) { "crate".to_owned() } else { format!("crate::{module}") };
            (module, File { path, imports: imports(text) })
        });
        Self { files: files.collect() }
    }

    /// Returns the circles: lists of files that import each other, directly or through others.
    pub fn circles(&self) -> Vec<Vec<&'a str>> {
        let reexports = self.reexports();
        let arrows: BTreeMap<&str, BTreeSet<&str>> =
            self.files.keys().map(|module| (&**module, self.arrows_of(module, &reexports))).collect();
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            arrows.keys().map(|module| (*module, reachable(module, &arrows))).collect();
        let mut circles = BTreeSet::new();
        for (module, reached) in &reach {
            let circle: BTreeSet<&str> =
                reached.iter().copied().filter(|other| reach[other].contains(module)).collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        circles.into_iter().map(|circle| circle.into_iter().map(|module| self.files[module].path).collect()).collect()
    }

    /// Returns the files that the re-exported names of each module come from.
    fn reexports(&self) -> BTreeMap<&str, BTreeMap<String, String>> {
        let mut found: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
        // A re-export may go through another one.
        for _ in 0..3 {
            for (module, file) in &self.files {
                for import in file.imports.iter().filter(|import| import.is_reexport) {
                    if let (Some(target), Some(name)) = (self.resolve(module, &import.path, &found), import.path.last())
                    {
                        found.entry(module).or_default().insert(name.clone(), target);
                    }
                }
            }
        }
        found
    }

    fn arrows_of(&self, module: &str, reexports: &BTreeMap<&str, BTreeMap<String, String>>) -> BTreeSet<&str> {
        let mut arrows = BTreeSet::new();
        for import in &self.files[module].imports {
            let Some(target) = self.resolve(module, &import.path, reexports) else { continue };
            let is_child = target.strip_prefix(module).is_some_and(|rest| rest.starts_with("::"));
            if target != module && !(import.is_reexport && is_child) {
                arrows.extend(self.files.get_key_value(&target).map(|(target, _)| &**target));
            }
        }
        arrows
    }

    /// Returns the module that a path leads to, or `None` if it leaves the crate.
    fn resolve(
        &self,
        module: &str,
        path: &[String],
        reexports: &BTreeMap<&str, BTreeMap<String, String>>,
    ) -> Option<String> {
        let mut here = module.to_owned();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (here, rest) = ("crate".to_owned(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while let Some(("super", below)) = rest.split_first().map(|(first, below)| (first.as_str(), below)) {
                    here = here.rsplit_once("::")?.0.to_owned();
                    rest = below;
                }
            }
            child if self.files.contains_key(&format!("{module}::{child}")) => {}
            _ => return None,
        }
        for name in rest {
            let below = format!("{here}::{name}");
            if self.files.contains_key(&below) {
                here = below;
            } else {
                let target = reexports.get(&*here).and_then(|names| names.get(name));
                return Some(target.cloned().unwrap_or(here));
            }
        }
        Some(here)
    }
}

fn reachable<'m>(start: &'m str, arrows: &BTreeMap<&'m str, BTreeSet<&'m str>>) -> BTreeSet<&'m str> {
    let (mut seen, mut open) = (BTreeSet::from([start]), vec![start]);
    while let Some(module) = open.pop() {
        open.extend(arrows[module].iter().copied().filter(|next| seen.insert(next)));
    }
    seen
}

/// Returns the imports of a file, without those of its tests.
fn imports(text: &str) -> Vec<Import> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_path_start = tokens.get(at + 1).is_some_and(|next| next == "::")
            && (at == 0 || !["::", "."].contains(&&*tokens[at - 1]));
        if tokens[at] == "use" {
            let is_reexport = at > 0 && [")", "pub"].contains(&&*tokens[at - 1]);
            let end = tokens[at..].iter().position(|token| token == ";").map_or(tokens.len(), |length| at + length);
            let mut paths = Vec::new();
            expand(&tokens[at + 1..end], &mut Vec::new(), &mut paths);
            found.extend(paths.into_iter().map(|path| Import { path, is_reexport }));
            at = end;
        } else if is_path_start && is_name(&tokens[at]) {
            let mut path = vec![tokens[at].clone()];
            while tokens.get(at + 1).is_some_and(|next| next == "::")
                && tokens.get(at + 2).is_some_and(|name| is_name(name))
            {
                path.push(tokens[at + 2].clone());
                at += 2;
            }
            found.push(Import { path, is_reexport: false });
        }
        at += 1;
    }
    found
}

/// Expands the tree of a `use` declaration into paths. Returns the number of tokens read.
fn expand(tokens: &[String], above: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> usize {
    let (depth, mut at) = (above.len(), 0);
    let mut is_open = false;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "::" => {}
            "{" => {
                at += 1 + expand(&tokens[at + 1..], above, paths);
                is_open = false;
            }
            "as" => at += 1,
            "," | "}" => {
                if std::mem::take(&mut is_open) {
                    paths.push(above.clone());
                }
                above.truncate(depth);
                if tokens[at] == "}" {
                    return at;
                }
            }
            "self" if !above.is_empty() => is_open = true,
            name => {
                above.push(name.to_owned());
                is_open = true;
            }
        }
        at += 1;
    }
    if is_open {
        paths.push(above.clone());
    }
    above.truncate(depth);
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Splits code into names, `::` and single characters; leaves out comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("r\"") || rest.starts_with("r#") => raw_string_bytes(rest),
            '"' => string_bytes(rest),
            '\'' => char_bytes(rest),
            _ if first.is_alphanumeric() || first == '_' => {
                let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                found.push(rest[..length].to_owned());
                length
            }
            _ if rest.starts_with("::") => {
                found.push("::".to_owned());
                2
            }
            _ => {
                if !first.is_whitespace() {
                    found.push(first.to_string());
                }
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    found
}

fn raw_string_bytes(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    if !text[1 + hashes..].starts_with('"') {
        return 1;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 2;
    text[start..].find(&end).map_or(text.len(), |at| start + at + end.len())
}

fn string_bytes(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a character literal, or 1 for the quote of a lifetime.
fn char_bytes(text: &str) -> usize {
    let mut inner = text.char_indices().skip(1);
    match (inner.next(), inner.next()) {
        (Some((_, '\\')), Some((at, _))) => text[at + 1..].find('\'').map_or(1, |end| at + 1 + end + 1),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}
