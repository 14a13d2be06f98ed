//! The architecture page names files and functions that exist.

use super::{Complaints, Source, assert_none, sample, sources};

/// Names in backquotes on a page: `engine/src/store.rs`, `Queue::fold`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    // Outside of blocks, every second piece is quoted.
    text.split('`').skip(1).step_by(2)
}

fn is_file(sources: &[Source], name: &str) -> bool {
    sources.iter().any(|source| source.path == name || source.path.ends_with(&format!("/{name}")))
}

/// Returns whether a file has both parts of `Type::function` as words.
fn is_item(sources: &[Source], name: &str) -> bool {
    let has_word = |source: &Source, word: &str| {
        source.text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
    };
    let Some((owner, item)) = name.split_once("::") else { return true };
    sources.iter().filter(|source| source.is_rust()).any(|source| has_word(source, owner) && has_word(source, item))
}

fn wrong_names(page: &str, sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    // A block of code would shift the quotes.
    let prose: String = page.split("```").step_by(2).collect();
    for name in quoted(&prose) {
        let is_path = |c: char| c.is_alphanumeric() || "_-/.:".contains(c);
        let is_known = match name.chars().all(is_path) {
            true if name.ends_with(".rs") && name.contains('/') => is_file(sources, name),
            true if name.contains("::") => is_item(sources, name),
            _ => true,
        };
        if !is_known {
            complaints.push(format!("docs/ARCHITECTURE.md names {name}, which does not exist"));
        }
    }
    complaints
}

#[test]
fn the_architecture_page_names_files_and_functions_that_exist() {
    let sources = sources();
    let page = sources.iter().find(|source| source.path == "docs/ARCHITECTURE.md").expect("the page");
    assert_none(&wrong_names(&page.text, &sources));
    let sample = sample("engine/src/queue.rs", "impl Queue { fn fold(&self) {} }");
    let complaints = |page: &str| wrong_names(page, &sample).len();
    assert_eq!(complaints("`Queue::fold` (`engine/src/queue.rs`, `src/queue.rs`), `a word` and no `mod.rs`"), 0);
    assert_eq!(complaints("`Queue::unfold` in `engine/src/line.rs`"), 2);
    assert_eq!(complaints("```\n`Queue::unfold`\n```\n`engine/src/line.rs`"), 1);
}
