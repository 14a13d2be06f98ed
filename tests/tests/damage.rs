//! A damaged byte anywhere is an error, never wrong bytes, and never a reference that quietly went back.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use amalgam_engine::backend::{Backend as _, Memory, StoredObject, Sweep as _};
use amalgam_engine::reference::{Operation, RefName, RefValue, RequestId};
use amalgam_engine::{ChunkId, Commit, Error, ErrorKind, Result, SnapshotId, Store, StoreOptions, WorkingTree};
use amalgam_tests::harness::{Random, all_refs, name, read_files, seed};

/// Random places in each file, beside its ends.
const PLACES_PER_FILE: u64 = 8;
const REQUESTS: u64 = 3;
const HANG_AFTER: Duration = Duration::from_secs(30);

/// All that a store says when everything is asked of it.
#[derive(PartialEq)]
struct Everything {
    refs: Vec<(RefName, RefValue)>,
    operations: Vec<Operation>,
    requests: Vec<Option<Operation>>,
    files: Vec<(SnapshotId, BTreeMap<String, Vec<u8>>)>,
}

fn request(number: u64) -> RequestId {
    RequestId::new(format!("request {number}")).expect("a valid id")
}

fn read_everything(store: &Store) -> Result<Everything> {
    let refs = all_refs(store)?;
    let operations = store.list_operations(0, 1_000)?;
    let requests = (0..REQUESTS).map(|number| store.find_request(&request(number))).collect::<Result<_>>()?;
    let mut files = Vec::new();
    for (_, value) in &refs {
        let mut next = value.target.map(|target| SnapshotId::from_bytes(target.hash));
        while let Some(snapshot) = next {
            files.push((snapshot, read_files(&WorkingTree::open(store, snapshot)?)?));
            next = store.snapshot(snapshot)?.parents.first().copied();
        }
    }
    Ok(Everything { refs, operations, requests, files })
}

/// Small and large files in a few commits, over two openings, so that there is more than one file of each family.
fn make_store(directory: &Path, random: &mut Random) {
    for opening in 0..2_u64 {
        let store = Store::open(directory).expect("open");
        for number in 0..2_u64 {
            let reference = name(format!("head/{number}"));
            let target = store.read_ref(&reference).expect("read").and_then(|value| value.target);
            let mut tree = match target {
                Some(target) => WorkingTree::open(&store, SnapshotId::from_bytes(target.hash)).expect("open"),
                None => WorkingTree::new(&store),
            };
            tree.create_directories("some/where").expect("mkdir");
            tree.write(format!("some/where/small{opening}"), &random.bytes(900)).expect("write");
            tree.write("rope", &random.bytes(90_000)).expect("write");
            tree.write("text", &b"compresses well ".repeat(400)).expect("write");
            let mut commit = Commit::new(&reference, format!("{opening}"));
            commit.request = (opening * 2 + number < REQUESTS).then(|| request(opening * 2 + number));
            tree.commit(commit).expect("commit");
        }
    }
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(here) = open.pop() {
        for entry in fs::read_dir(&here).expect("list") {
            let path = entry.expect("entry").path();
            if path.is_dir() { open.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::remove_dir_all(to).ok();
    for file in files_below(from) {
        let target = to.join(file.strip_prefix(from).expect("it lies below"));
        fs::create_dir_all(target.parent().expect("it has a directory")).expect("create");
        fs::copy(&file, &target).expect("copy");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Outcome {
    OpenError,
    ReadError,
    Right,
    Wrong,
    Panic,
    Hang,
}

/// Opens a damaged store and compares what it says with the truth.
fn outcome(directory: &Path, truth: &Arc<Everything>) -> Outcome {
    let (sender, receiver) = mpsc::channel();
    let (directory, truth) = (directory.to_owned(), Arc::clone(truth));
    let trial = std::thread::spawn(move || {
        let outcome = match Store::open(&directory) {
            Err(error) => {
                assert!(!matches!(error.kind(), ErrorKind::Full | ErrorKind::Busy), "{error:?}");
                Outcome::OpenError
            }
            Ok(store) => match read_everything(&store) {
                Ok(found) if found == *truth => Outcome::Right,
                Ok(_) => Outcome::Wrong,
                Err(_) => Outcome::ReadError,
            },
        };
        sender.send(outcome).ok();
    });
    match receiver.recv_timeout(HANG_AFTER) {
        Ok(outcome) => {
            trial.join().expect("it was done");
            outcome
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Outcome::Panic,
        Err(mpsc::RecvTimeoutError::Timeout) => Outcome::Hang,
    }
}

/// The kind of file, for the figures: its name without numbers.
fn kind_of(file: &Path) -> String {
    let name = file.file_name().expect("a file has a name").to_string_lossy();
    let word: String = name.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    word.split(['-', '.']).find(|part| !part.is_empty()).unwrap_or("?").to_owned()
}

/// Files in which RocksDB tells of itself; nothing is read from them.
fn is_aside(file: &Path) -> bool {
    ["LOG", "OPTIONS", "IDENTITY"].contains(&kind_of(file).as_str())
}

struct Trials {
    original: PathBuf,
    copy: PathBuf,
    truth: Arc<Everything>,
    counts: BTreeMap<(String, Outcome), u64>,
    failures: Vec<String>,
}

impl Trials {
    fn run(&mut self, file: &Path, what: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        copy(&self.original, &self.copy);
        let target = self.copy.join(file);
        let mut bytes = fs::read(&target).expect("read");
        damage(&mut bytes);
        fs::write(&target, bytes).expect("write");
        let outcome = outcome(&self.copy, &self.truth);
        *self.counts.entry((kind_of(file), outcome)).or_insert(0) += 1;
        if matches!(outcome, Outcome::Wrong | Outcome::Panic | Outcome::Hang) {
            self.failures.push(format!("{}, {what}: {outcome:?}", file.display()));
        }
    }

    fn finish(self) {
        let mut total: HashMap<Outcome, u64> = HashMap::new();
        for ((kind, outcome), count) in &self.counts {
            println!("{kind:>10} {outcome:?}: {count}");
            *total.entry(*outcome).or_insert(0) += count;
        }
        println!("in all: {total:?}");
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n"));
        let detected =
            [Outcome::OpenError, Outcome::ReadError].map(|outcome| total.get(&outcome).copied().unwrap_or(0));
        assert!(detected.iter().sum::<u64>() > 5, "damage was never found: {total:?}");
    }
}

fn trials(directory: &Path, random: &mut Random) -> (Trials, Vec<PathBuf>) {
    let original = directory.join("original");
    make_store(&original, random);
    let truth = Arc::new(read_everything(&Store::open(&original).expect("open")).expect("an undamaged store reads"));
    assert_eq!((truth.refs.len(), truth.operations.len(), truth.files.len()), (2, 4, 4));
    assert!(truth.requests.iter().all(Option::is_some));
    let files = files_below(&original);
    let files = files.iter().map(|file| file.strip_prefix(&original).expect("below").to_owned()).collect();
    (Trials { original, copy: directory.join("copy"), truth, counts: BTreeMap::new(), failures: Vec::new() }, files)
}

#[test]
fn a_flipped_bit_is_an_error_or_harmless() {
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let (mut trials, files) = trials(directory.path(), &mut random);
    for file in files {
        let length = fs::metadata(trials.original.join(&file)).expect("metadata").len();
        if length == 0 {
            continue;
        }
        let mut places = vec![0, length - 1];
        if !is_aside(&file) {
            places.extend((0..PLACES_PER_FILE / 2).map(|_| random.below(length)));
            // The last records of a log lie near its end.
            places.extend((0..PLACES_PER_FILE / 2).map(|_| length - 1 - random.below(length.min(300))));
        }
        for place in places {
            let bit = random.below(8);
            let at = usize::try_from(place).expect("a small file");
            trials.run(&file, &format!("bit {bit} of byte {place} of {length}"), |bytes| bytes[at] ^= 1 << bit);
        }
    }
    trials.finish();
}

/// One bit turns a record of RocksDB's catalogue into one of a kind that makes it read the file for ever.
#[test]
fn a_catalogue_that_would_be_read_for_ever_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut trials, files) = trials(directory.path(), &mut Random::new(1));
    let manifest = files.iter().find(|file| kind_of(file) == "MANIFEST").expect("there is one");
    // A record is a checksum, a length, a kind (1 is whole, 5 whole in a recycled file) and that many bytes.
    let bytes = fs::read(trials.original.join(manifest)).expect("read");
    let mut at = 0;
    while at + 7 < bytes.len() {
        assert_eq!(bytes[at + 6], 1, "small records are whole");
        trials.run(manifest, &format!("the record at {at}"), |bytes| bytes[at + 6] = 5);
        at += 7 + usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
    }
    assert!(!trials.counts.contains_key(&("MANIFEST".to_owned(), Outcome::Right)));
    trials.finish();
}

#[test]
fn a_cut_file_is_an_error_or_harmless() {
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let (mut trials, files) = trials(directory.path(), &mut random);
    for file in files {
        let length = fs::metadata(trials.original.join(&file)).expect("metadata").len();
        if length == 0 {
            continue;
        }
        let near_end = length - 1 - random.below(length.min(200));
        for keep in [0, length - 1, near_end, random.below(length)] {
            let keep = usize::try_from(keep).expect("a small file");
            trials.run(&file, &format!("cut to {keep} of {length} bytes"), |bytes| bytes.truncate(keep));
        }
    }
    trials.finish();
}

/// Two valid objects whose bytes were swapped: each has a hash, only not its own.
#[test]
fn swapped_objects_are_told_apart() {
    let memory = Arc::new(Memory::default());
    let store = Store::new(Arc::clone(&memory) as _, &StoreOptions::default());
    let mut tree = WorkingTree::new(&store);
    tree.write("a", b"the one").expect("write");
    tree.write("b", b"another").expect("write");
    tree.create_directories("d").expect("mkdir");
    tree.write("d/c", b"below").expect("write");
    let done = tree.commit(Commit::new(&name("head/main"), "first")).expect("commit");
    drop(tree);
    let rows = memory.scan(None, 100).expect("scan");
    let mut told = 0;
    for ours in &rows {
        let others = rows.iter().filter(|other| other.id.kind == ours.id.kind && other.id != ours.id);
        for other in others {
            let swapped = Memory::default();
            for row in &rows {
                let source = if row.id == ours.id {
                    other.id
                } else if row.id == other.id {
                    ours.id
                } else {
                    row.id
                };
                let bytes = memory.get(source).expect("get").expect("there");
                swapped.put_ahead(vec![StoredObject { id: row.id, bytes }]).expect("put");
            }
            let store = Store::new(Arc::new(swapped), &StoreOptions::default());
            let read = WorkingTree::open(&store, done.snapshot).and_then(|tree| read_files(&tree));
            let error = read.expect_err("swapped bytes were believed");
            assert!(matches!(error, Error::HashMismatch { .. }), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            told += 1;
        }
    }
    assert!(told >= 8, "three chunks and two directories give eight swaps");
    assert!(store.canonical(ChunkId::of(b"the one").object()).is_ok());
}

/// What each kind of file costs when it is damaged: nothing, or itself, after a recovery; never the store.
#[test]
fn a_store_that_cannot_be_opened_is_recovered() {
    use amalgam_engine::backend::recover;

    let directory = tempfile::tempdir().expect("a directory");
    let made = directory.path().join("made");
    make_store(&made, &mut Random::of(&[3]));
    let whole = read_everything(&Store::open(&made).expect("open")).unwrap_or_else(|error| panic!("{error}"));
    let mut random = Random::of(&[4]);
    let (mut recovered, mut whole_again) = (0, 0);
    for file in files_below(&made) {
        let name = file.strip_prefix(&made).expect("below").to_owned();
        let length = fs::metadata(&file).expect("a file").len();
        // The beginning, the middle, what the footer of a table points at, and the footer.
        let places = [
            0,
            length / 3,
            length / 2,
            length.saturating_sub(700),
            length.saturating_sub(300),
            length.saturating_sub(30),
        ];
        for place in places.into_iter().filter(|place| *place < length) {
            let copy = directory.path().join("copy");
            self::copy(&made, &copy);
            let mut bytes = fs::read(copy.join(&name)).expect("read");
            bytes[place as usize] ^= 1 << random.below(8);
            fs::write(copy.join(&name), bytes).expect("write");
            if let Err(error) = Store::open(&copy) {
                let words = error.to_string();
                assert!(words.contains("amalgam verify --repair"), "{}: it says what to do: {words}", name.display());
                let done = recover(&copy).unwrap_or_else(|error| panic!("{} at {place}: {error}", name.display()));
                assert!(!done.is_empty());
                recovered += 1;
            }
            let store = Store::open(&copy).unwrap_or_else(|error| panic!("{} at {place}: {error}", name.display()));
            let is_auxiliary = ["AMALGAM", "MARK", "MARK.hash", "LOCK"].iter().any(|known| name == Path::new(known));
            let read = read_everything(&store);
            whole_again += u32::from(read.as_ref().is_ok_and(|read| *read == whole));
            assert!(
                !is_auxiliary || read.is_ok_and(|read| read == whole),
                "{} at {place} costs nothing",
                name.display()
            );
            drop(store);
            fs::remove_dir_all(&copy).expect("remove");
        }
    }
    println!("{recovered} recovered, {whole_again} whole");
    assert!(recovered > 5, "{recovered}");
}

#[test]
fn a_database_older_than_its_mark_is_refused_until_it_is_recovered() {
    use amalgam_engine::backend::recover;

    let directory = tempfile::tempdir().expect("a directory");
    let (made, older) = (directory.path().join("made"), directory.path().join("older"));
    make_store(&made, &mut Random::of(&[5]));
    let whole = read_everything(&Store::open(&made).expect("open")).expect("read");
    copy(&made, &older);
    {
        let store = Store::open(&made).expect("open");
        let mut tree = WorkingTree::new(&store);
        tree.write("later", b"later").expect("write");
        tree.commit(Commit::new(&name("head/later"), "later")).expect("commit");
    }
    copy(&older.join("db"), &made.join("db"));
    for openings in 0..3 {
        let trial = directory.path().join("trial");
        copy(&made, &trial);
        for opening in 0..openings {
            let error = Store::open(&trial).err().unwrap_or_else(|| panic!("opening {opening} succeeds"));
            assert!(error.to_string().contains("amalgam verify --repair"), "{error}");
        }
        let done = recover(&trial).expect("recovered");
        assert!(done.iter().any(|line| line.ends_with("the later operations are lost")), "{done:?}");
        let found = read_everything(&Store::open(&trial).expect("open")).expect("read");
        assert!(found == whole, "after {openings} openings");
        assert_eq!(recover(&trial).expect("nothing to do"), Vec::<String>::new());
    }
}
