//! Reads objects of a repository by id, and hashes each, so that a damaged pack is found.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::rc::Rc;

use gix::bstr::ByteSlice;
use gix::objs::Kind;
use gix::prelude::ObjectIdExt;
use sha1::{Digest, Sha1};

use super::keys::FORMAT;
use crate::error::{Error, Result};

/// Bytes of objects that each reader keeps.
const CACHE_BYTES: usize = 16 << 20;
/// Bytes of delta bases that each reader keeps. Without them each object of a long delta chain decodes the whole chain.
const DELTA_CACHE_BYTES: usize = 64 << 20;
/// Repositories of submodules that are searched, and how deep they may lie in `modules`.
const SUBMODULES_MAX: usize = 1_000;
const SUBMODULE_DEPTH_MAX: usize = 16;
/// Entries of decoded trees that each reader keeps.
const CACHE_ENTRIES_MAX: usize = 200_000;

/// The setting of a repository that says which hash its ids are.
const OBJECT_FORMAT_KEY: &str = "extensions.objectFormat";

/// The id of a git object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Oid(pub(crate) [u8; 20]);

impl Oid {
    pub(crate) fn from_hex(hex: &[u8]) -> Option<Self> {
        let id = gix::ObjectId::from_hex(hex).ok()?;
        Some(Self(id.as_bytes().try_into().ok()?))
    }

    fn of(kind: Kind, data: &[u8]) -> Self {
        let mut hasher = Sha1::new();
        hasher.update(kind.as_bytes());
        hasher.update(format!(" {}\0", data.len()).as_bytes());
        hasher.update(data);
        Self(hasher.finalize().into())
    }
}

/// Computes the id of a blob from its bytes, which come in pieces.
pub(crate) struct BlobHasher(Sha1);

impl BlobHasher {
    /// Begins a blob of a known size.
    pub(crate) fn new(size: u64) -> Self {
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {size}\0").as_bytes());
        Self(hasher)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the id of the blob.
    pub(crate) fn finish(self) -> Oid {
        Oid(self.0.finalize().into())
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A repository that several threads read.
pub(crate) struct Repository {
    shared: gix::ThreadSafeRepository,
    /// The repositories of its submodules, if they are imported, too. An id means the same object in all of them.
    submodules: Option<Vec<gix::ThreadSafeRepository>>,
    object_bytes_max: u64,
}

/// A thread's access to a repository.
pub(crate) struct Reader {
    repository: gix::Repository,
    submodules: Option<Vec<gix::Repository>>,
    object_bytes_max: u64,
    /// Decoded trees: a commit and its parents share nearly all of theirs, and each is read twice.
    trees: RefCell<TreeCache>,
}

#[derive(Default)]
struct TreeCache {
    by_id: HashMap<Oid, Rc<TreeEntries>>,
    entries: usize,
}

pub(crate) fn damaged(object: impl fmt::Display, why: impl Into<String>) -> Error {
    Error::Malformed { format: FORMAT, place: object.to_string(), why: why.into() }
}

/// Reads the repository's own configuration only, objects as they are and not as replacements, and limits the memory that a
/// delta chain may ask for. Decoding holds two versions of an object and the deltas.
fn open_options(object_bytes_max: u64) -> gix::open::Options {
    let limit = object_bytes_max.saturating_mul(3).min(i64::MAX as u64);
    let overrides = [format!("gitoxide.objects.allocLimit={limit}"), "core.useReplaceRefs=false".to_owned()];
    gix::open::Options::isolated().config_overrides(overrides)
}

/// Joins the messages of an error and of its causes, for example of an object format that is not supported.
pub(super) fn words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut words: Vec<String> = causes.map(ToString::to_string).collect();
    words.dedup();
    words.join(": ")
}

/// Returns the error for a repository that cannot be opened. This build of `gix` reads SHA-1 ids only, and refuses the
/// configuration of other repositories.
pub(super) fn open_error(path: &Path, error: &dyn std::error::Error) -> Error {
    let why = words(error);
    if why.contains(OBJECT_FORMAT_KEY) {
        return Error::Unsupported {
            what: format!("{} is a git repository with SHA-256 ids", path.display()),
            hint: "only repositories with SHA-1 ids are read and written; \
                   convert it by `git fast-export --all | git -C NEW fast-import`",
        };
    }
    let why = format!("{}: {why}; name the top of a work tree, or a bare repository", path.display());
    Error::Invalid { what: "git repository", why }
}

impl Repository {
    /// Opens a repository by its directory or that of its work tree. Reads its own configuration only.
    pub(crate) fn open(path: &Path, object_bytes_max: u64) -> Result<Self> {
        let shared = open_options(object_bytes_max).open(path).map_err(|error| open_error(path, &error))?;
        Ok(Self { shared, submodules: None, object_bytes_max })
    }

    /// Opens the repositories of the submodules, which git keeps in `modules`, those of their submodules included.
    pub(crate) fn open_submodules(&mut self) {
        let (mut found, mut open) = (Vec::new(), vec![(self.shared.to_thread_local().common_dir().join("modules"), 0)]);
        while let Some((directory, depth)) = open.pop() {
            let mut names: Vec<_> = std::fs::read_dir(&directory).into_iter().flatten().flatten().collect();
            names.sort_by_key(std::fs::DirEntry::file_name);
            for path in
                names.into_iter().filter(|name| name.file_type().is_ok_and(|it| it.is_dir())).map(|it| it.path())
            {
                let is_repository = path.join("HEAD").is_file() && path.join("objects").is_dir();
                if is_repository
                    && found.len() < SUBMODULES_MAX
                    && let Ok(submodule) = open_options(self.object_bytes_max).open_path_as_is(true).open(&path)
                    && submodule.to_thread_local().object_hash() == gix::hash::Kind::Sha1
                {
                    found.push(submodule);
                }
                if depth < SUBMODULE_DEPTH_MAX {
                    // A name may have slashes.
                    open.push((if is_repository { path.join("modules") } else { path }, depth + 1));
                }
            }
        }
        self.submodules = Some(found);
    }

    pub(crate) fn reader(&self) -> Reader {
        let thread_local = |shared: &gix::ThreadSafeRepository| {
            let mut repository = shared.to_thread_local();
            repository.object_cache_size(CACHE_BYTES);
            repository
                .objects
                .set_pack_cache(|| Box::new(gix::odb::pack::cache::lru::MemoryCappedHashmap::new(DELTA_CACHE_BYTES)));
            repository
        };
        Reader {
            repository: thread_local(&self.shared),
            submodules: self.submodules.as_ref().map(|submodules| submodules.iter().map(thread_local).collect()),
            object_bytes_max: self.object_bytes_max,
            trees: RefCell::default(),
        }
    }
}

impl Reader {
    /// Returns the commit that a branch, a tag, any reference or a full id names; that of `HEAD` without a name.
    pub(crate) fn resolve(&self, name: Option<&str>) -> Result<Oid> {
        let invalid = |why: String| Error::Invalid { what: "git reference", why };
        let found = match name {
            None => self.repository.head_id().map_err(|error| {
                invalid(format!(
                    "HEAD names no commit ({error}); the repository may be empty, or name a branch by --ref"
                ))
            })?,
            Some(name) => match Oid::from_hex(name.as_bytes()) {
                Some(oid) => self.id(oid).attach(&self.repository),
                None => {
                    let reference =
                        self.repository.try_find_reference(name).map_err(|error| invalid(error.to_string()))?;
                    let mut reference = reference.ok_or_else(|| {
                        invalid(format!("`{name}` is no branch, tag or other reference, and no full commit id"))
                    })?;
                    reference.peel_to_id().map_err(|error| invalid(format!("`{name}`: {error}")))?
                }
            },
        };
        let commit = found.object().and_then(|object| object.peel_to_kind(Kind::Commit));
        let commit = commit.map_err(|error| invalid(format!("{} is no commit: {error}", name.unwrap_or("HEAD"))))?;
        Ok(Oid(commit.id.as_bytes().try_into().expect("a SHA-1 id")))
    }

    /// Returns the commits whose parents a shallow repository does not have.
    pub(crate) fn shallow(&self) -> Result<Vec<Oid>> {
        let commits = self.repository.shallow_commits();
        let commits = commits.map_err(|error| damaged("the list of shallow commits", error.to_string()))?;
        let oid = |id: &gix::ObjectId| Oid(id.as_bytes().try_into().expect("a SHA-1 id"));
        Ok(commits.iter().flat_map(|commits| commits.iter().map(oid).collect::<Vec<_>>()).collect())
    }

    fn id(&self, oid: Oid) -> gix::ObjectId {
        gix::ObjectId::from_bytes_or_panic(&oid.0)
    }

    /// Returns the repository that has an object; the one that is imported when none has it.
    fn holder(&self, oid: Oid) -> &gix::Repository {
        let others = self.submodules.iter().flatten();
        match self.submodules.as_ref().is_none_or(Vec::is_empty) || self.repository.has_object(self.id(oid)) {
            true => &self.repository,
            false => others.into_iter().find(|other| other.has_object(self.id(oid))).unwrap_or(&self.repository),
        }
    }

    /// Returns whether submodules are imported, and the repository of one has this commit.
    pub(crate) fn has_submodule(&self, commit: Oid) -> bool {
        self.submodules.is_some() && self.holder(commit).has_object(self.id(commit))
    }

    /// Returns the size of an object.
    pub(crate) fn size(&self, oid: Oid) -> Result<u64> {
        let header = self.holder(oid).find_header(self.id(oid));
        Ok(header.map_err(|error| damaged(oid, error.to_string()))?.size())
    }

    pub(crate) fn commit(&self, oid: Oid) -> Result<Vec<u8>> {
        self.read(oid, Kind::Commit)
    }

    /// Returns the entries of a tree, from the cache if possible.
    pub(crate) fn tree(&self, oid: Oid) -> Result<Rc<TreeEntries>> {
        if let Some(tree) = self.trees.borrow().by_id.get(&oid) {
            return Ok(Rc::clone(tree));
        }
        let tree = Rc::new(tree_entries(oid, &self.read(oid, Kind::Tree)?)?);
        let mut trees = self.trees.borrow_mut();
        if trees.entries > CACHE_ENTRIES_MAX {
            *trees = TreeCache::default();
        }
        trees.entries += tree.len();
        trees.by_id.insert(oid, Rc::clone(&tree));
        Ok(tree)
    }

    pub(crate) fn blob(&self, oid: Oid) -> Result<Vec<u8>> {
        self.read(oid, Kind::Blob)
    }

    fn read(&self, oid: Oid, kind: Kind) -> Result<Vec<u8>> {
        let size = self.size(oid)?;
        if size > self.object_bytes_max {
            return Err(Error::TooLarge {
                what: format!("the size of {oid}, {size} bytes,"),
                max: self.object_bytes_max,
                hint: "git objects are read into memory; import with a higher limit if there is enough",
            });
        }
        let object = self.holder(oid).find_object(self.id(oid)).map_err(|error| damaged(oid, error.to_string()))?;
        let mut object = object.detach();
        if object.kind != kind {
            return Err(damaged(oid, format!("it is a {}, and a {kind} is expected", object.kind)));
        }
        let data = std::mem::take(&mut object.data);
        if Oid::of(kind, &data) != oid {
            return Err(damaged(oid, "its bytes do not have its hash"));
        }
        Ok(data)
    }
}

/// One entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    pub(crate) mode: u32,
    pub(crate) oid: Oid,
}

pub(crate) const MODE_TREE: u32 = 0o040_000;
pub(crate) const MODE_SYMLINK: u32 = 0o120_000;
pub(crate) const MODE_GITLINK: u32 = 0o160_000;

/// The entries of a tree, by name.
pub(crate) type TreeEntries = std::collections::BTreeMap<amalgam_engine::Name, TreeEntry>;

/// Decodes a tree. Names that no checkout may make are refused.
fn tree_entries(oid: Oid, mut data: &[u8]) -> Result<TreeEntries> {
    let mut entries = TreeEntries::new();
    while !data.is_empty() {
        let broken = || damaged(format!("tree {oid}"), "an entry is not `mode name id`");
        let space = data.find_byte(b' ').ok_or_else(broken)?;
        let nul = data.find_byte(0).filter(|nul| *nul > space).ok_or_else(broken)?;
        let octal = |mode: u32, digit: &u8| matches!(digit, b'0'..=b'7').then(|| mode << 3 | u32::from(digit - b'0'));
        let mode = Some(&data[..space]).filter(|digits| (1..=7).contains(&digits.len()));
        let mode = mode.and_then(|digits| digits.iter().try_fold(0, octal)).ok_or_else(broken)?;
        let id = data.get(nul + 1..nul + 21).ok_or_else(broken)?;
        let name = &data[space + 1..nul];
        if name.eq_ignore_ascii_case(b".git") {
            return Err(Error::refused(
                name,
                format!("tree {oid} has an entry of this name, which git does not check out"),
            ));
        }
        let name =
            amalgam_engine::Name::new(name).map_err(|why| Error::refused(name, format!("in tree {oid}: {why}")))?;
        let entry = TreeEntry { mode, oid: Oid(id.try_into().expect("20 bytes")) };
        if let Some(_twice) = entries.insert(name.clone(), entry) {
            return Err(damaged(format!("tree {oid}"), format!("it has two entries of the name {name}")));
        }
        data = &data[nul + 21..];
    }
    Ok(entries)
}
