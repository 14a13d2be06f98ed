//! Names and paths.
#![no_main]

use amalgam_engine::reference::RefName;
use amalgam_engine::{DEPTH_MAX, NAME_BYTES_MAX, Name, TreePath};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(name) = Name::new(data) {
        assert!((1..=NAME_BYTES_MAX).contains(&data.len()) && data != b"." && data != b"..");
        assert!(!data.contains(&b'/') && !data.contains(&0));
        assert_eq!(TreePath::root().join(&name).as_bytes(), data);
    }
    if let Ok(path) = TreePath::new(data) {
        let names: Vec<Name> = path.names().collect();
        assert!(names.len() <= DEPTH_MAX);
        let joined = names.iter().fold(TreePath::root(), |path, name| path.join(name));
        assert_eq!(joined, path);
        match path.split_last() {
            None => assert!(path.is_root()),
            Some((parent, name)) => {
                assert!(parent < path);
                assert_eq!(path.below(&parent), Some(name.as_bytes()));
            }
        }
        for name in [&b"a"[..], b"a-", b"a/b", b"~"] {
            let other = TreePath::new(name).expect("a path");
            let by_names = path.names().cmp(other.names());
            assert_eq!(path.cmp(&other), by_names, "{path:?} and {other:?} are ordered name by name");
        }
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(name) = RefName::new(text)
    {
        assert_eq!(name.as_str(), text);
    }
});
