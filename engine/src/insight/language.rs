//! Detects the language of a file from its name alone.

use crate::name::TreePath;

/// Returns the language of a file, or `None` if its name does not identify one.
pub(super) fn language(path: &TreePath) -> Option<&'static str> {
    let (_, name) = path.split_last()?;
    let name = std::str::from_utf8(name.as_bytes()).ok()?;
    if let Some(known) = by_name(name) {
        return Some(known);
    }
    let (stem, extension) = name.rsplit_once('.')?;
    if stem.is_empty() || extension.len() > EXTENSION_BYTES_MAX {
        return None;
    }
    by_extension(&extension.to_ascii_lowercase())
}

const EXTENSION_BYTES_MAX: usize = 12;

fn by_name(name: &str) -> Option<&'static str> {
    Some(match name {
        "Makefile" | "makefile" | "GNUmakefile" | "Kbuild" => "Make",
        "Dockerfile" | "Containerfile" => "Dockerfile",
        "CMakeLists.txt" => "CMake",
        "Jenkinsfile" => "Groovy",
        "Rakefile" | "Gemfile" | "Vagrantfile" | "Podfile" => "Ruby",
        "Cargo.lock" | "Pipfile" | "poetry.lock" | "uv.lock" => "TOML",
        "go.mod" | "go.sum" => "Go module",
        "BUILD" | "WORKSPACE" | "BUILD.bazel" | "MODULE.bazel" => "Starlark",
        "Kconfig" => "Kconfig",
        "meson.build" => "Meson",
        ".gitignore" | ".dockerignore" | ".gitattributes" | ".npmignore" => "Ignore list",
        ".bashrc" | ".profile" | ".zshrc" | ".bash_profile" => "Shell",
        "LICENSE" | "README" | "NOTICE" | "AUTHORS" | "CHANGELOG" => "Text",
        _ if name.starts_with("Dockerfile.") => "Dockerfile",
        _ => return None,
    })
}

fn by_extension(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "rs" => "Rust",
        "c" | "h" => "C",
        "cc" | "cpp" | "cxx" | "hpp" | "hh" | "hxx" | "inl" => "C++",
        "m" | "mm" => "Objective-C",
        "go" => "Go",
        "py" | "pyi" | "pyw" => "Python",
        "ipynb" => "Jupyter notebook",
        "js" | "mjs" | "cjs" | "jsx" => "JavaScript",
        "ts" | "mts" | "cts" | "tsx" => "TypeScript",
        "java" => "Java",
        "kt" | "kts" => "Kotlin",
        "scala" | "sc" => "Scala",
        "groovy" | "gradle" => "Groovy",
        "clj" | "cljs" | "cljc" | "edn" => "Clojure",
        "cs" => "C#",
        "fs" | "fsx" | "fsi" => "F#",
        "vb" => "Visual Basic",
        "swift" => "Swift",
        "dart" => "Dart",
        "rb" | "rake" | "gemspec" => "Ruby",
        "php" => "PHP",
        "pl" | "pm" | "t" => "Perl",
        "lua" => "Lua",
        "r" | "rmd" => "R",
        "jl" => "Julia",
        "hs" | "lhs" => "Haskell",
        "ml" | "mli" => "OCaml",
        "ex" | "exs" => "Elixir",
        "erl" | "hrl" => "Erlang",
        "elm" => "Elm",
        "zig" => "Zig",
        "nim" => "Nim",
        "d" => "D",
        "v" | "sv" | "svh" => "Verilog",
        "vhd" | "vhdl" => "VHDL",
        "f" | "f90" | "f95" | "for" => "Fortran",
        "pas" | "pp" => "Pascal",
        "adb" | "ads" => "Ada",
        "s" | "asm" => "Assembly",
        "cu" | "cuh" => "CUDA",
        "lisp" | "lsp" | "el" => "Lisp",
        "scm" | "rkt" => "Scheme",
        "sol" => "Solidity",
        "sh" | "bash" | "zsh" | "fish" | "ksh" => "Shell",
        "ps1" | "psm1" => "PowerShell",
        "bat" | "cmd" => "Batch",
        "mk" | "mak" => "Make",
        "cmake" => "CMake",
        "bzl" | "star" => "Starlark",
        "nix" => "Nix",
        "tf" | "hcl" | "tfvars" => "HCL",
        "sql" => "SQL",
        "graphql" | "gql" => "GraphQL",
        "proto" => "Protocol Buffers",
        "thrift" => "Thrift",
        "html" | "htm" | "xhtml" => "HTML",
        "css" => "CSS",
        "scss" | "sass" => "Sass",
        "less" => "Less",
        "vue" => "Vue",
        "svelte" => "Svelte",
        "xml" | "xsd" | "xsl" | "plist" => "XML",
        "svg" => "SVG",
        "json" | "jsonl" | "json5" | "jsonc" => "JSON",
        "yaml" | "yml" => "YAML",
        "toml" => "TOML",
        "ini" | "cfg" | "conf" | "properties" => "INI",
        "csv" | "tsv" => "CSV",
        "md" | "markdown" | "mdx" => "Markdown",
        "rst" => "reStructuredText",
        "adoc" | "asciidoc" => "AsciiDoc",
        "tex" | "bib" | "sty" => "TeX",
        "txt" | "text" | "log" => "Text",
        "diff" | "patch" => "Diff",
        "dts" | "dtsi" => "Device tree",
        "wat" => "WebAssembly text",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_languages() {
        for (path, expected) in [
            ("src/lib.rs", Some("Rust")),
            ("a/b/Makefile", Some("Make")),
            ("Dockerfile.dev", Some("Dockerfile")),
            ("X.PY", Some("Python")),
            ("archive.tar.gz", None),
            (".rs", None),
            ("README", Some("Text")),
            ("noextension", None),
        ] {
            assert_eq!(language(&TreePath::new(path).expect("valid")), expected, "{path}");
        }
    }
}
