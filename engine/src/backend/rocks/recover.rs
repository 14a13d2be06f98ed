//! Rebuilds the parts that keep a store from being opened: its header, its mark, and the manifest of the database.
//!
//! Files that cannot be read are left out, and lie in `db/lost` from then on. A verification lists the lost records and those that
//! depend on them.

use std::fs;
use std::path::Path;

use rocksdb::{Cache, DB, IteratorMode};

use super::row_filter::SharedRowFilter;
use super::settings::{
    DATABASE_DIRECTORY, FAMILIES, META, OBJECT_FAMILIES, OPERATIONS, RocksOptions, database_options, families, opening,
};
use crate::backend::home::{self, Fingerprint, HeaderState, damaged};
use crate::backend::rows::number;
use crate::error::{Error, ErrorKind, Result};

/// Directory to which RocksDB moves files that it could not read.
const LOST_DIRECTORY: &str = "lost";
/// Number of rows of the default family that are read to check that it is readable.
const META_ROWS: usize = 1_000;

/// Repairs the store in a directory so that it can be opened. Returns a description of each repair; an empty list if nothing was
/// rebuilt. No process may have the store open.
pub fn recover(directory: &Path) -> Result<Vec<String>> {
    let database_path = directory.join(DATABASE_DIRECTORY);
    let _lock = home::lock(directory)?;
    let mut done = Vec::new();
    match home::prepare(directory, true) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Err(error) => {
            if !is_ours(&database_path) {
                return Err(error);
            }
            home::write_header(directory, HeaderState::Ready)?;
            done.push("the header was rebuilt (AMALGAM)".to_owned());
        }
    }
    let mark = home::read_mark(directory)?;
    // RocksDB would read a manifest with certain damage forever: one that is known to be damaged is not opened.
    let catalogue = mark.as_ref().map_or(Ok(()), |mark| check_catalogue(&database_path, &mark.catalogue));
    let tried = match catalogue {
        Err(error) if !home::is_mark_damaged(directory) => Err(error),
        _ => try_open(&database_path),
    };
    let last_operation = match tried {
        Ok(last_operation) => last_operation,
        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::Busy) => return Err(error),
        Err(error) => {
            let before = files_in(&database_path.join(LOST_DIRECTORY));
            DB::repair(&database_options(&RocksOptions::default()), &database_path)
                .map_err(|source| opening(&source))?;
            let last_operation = try_open(&database_path)?;
            done.push(format!("the database's catalogue was rebuilt: {error}"));
            let lost = files_in(&database_path.join(LOST_DIRECTORY));
            let tables = lost.into_iter().filter(|name| name.ends_with(".sst") && !before.contains(name));
            done.extend(tables.map(|name| format!("{name} could not be read, and lies in db/{LOST_DIRECTORY}")));
            last_operation
        }
    };
    // The database may come from a copy that is older than the mark.
    if let (Some(last), Some(mark)) = (last_operation, &mark)
        && mark.last_operation > last
        && !home::is_mark_damaged(directory)
    {
        let marked = mark.last_operation;
        done.push(format!("the operation log ends at {last} instead of {marked}; the later operations are lost"));
    }
    // Where anything was rebuilt, the log may end earlier than when the store was closed.
    if !done.is_empty() || home::is_mark_damaged(directory) {
        home::remove_mark(directory)?;
    }
    Ok(done)
}

/// Returns whether the database has only column families of a store.
fn is_ours(database_path: &Path) -> bool {
    let known = DB::list_cf(&database_options(&RocksOptions::default()), database_path).unwrap_or_default();
    !known.is_empty() && known.iter().all(|name| FAMILIES.contains(&name.as_str()))
}

/// Opens the database with all its files, also those that an opening does not need: a file that cannot be opened fails every later
/// read of it. Reads the rows that an opening reads: the last one of each family. Does not search for other damage within files: it
/// costs rows, and a verification finds it. Returns the number of the last operation, 0 if there is none; `None` if its key is
/// damaged.
fn try_open(database_path: &Path) -> Result<Option<u64>> {
    let mut settings = database_options(&RocksOptions::default());
    settings.set_max_open_files(-1);
    let families = families(&RocksOptions::default(), &Cache::new_lru_cache(1 << 20), &SharedRowFilter::default());
    let database = DB::open_cf_descriptors(&settings, database_path, families).map_err(|source| opening(&source))?;
    let mut last_operation = Some(0);
    for name in [META, OPERATIONS].into_iter().chain(OBJECT_FAMILIES) {
        let family = database.cf_handle(name).expect("it was opened with all families");
        // All rows that an opening needs of the small family, and the last one of the others.
        let (mode, rows) = if name == META { (IteratorMode::Start, META_ROWS) } else { (IteratorMode::End, 1) };
        for row in database.iterator_cf(family, mode).take(rows) {
            let (key, _) = row.map_err(|source| opening(&source))?;
            if name == OPERATIONS {
                last_operation = number(&key, name).ok();
            }
        }
    }
    Ok(last_operation)
}

fn files_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the name of the manifest in use. RocksDB begins a new one at every opening and then only appends to it.
pub(super) fn catalogue_name(database_path: &Path) -> std::io::Result<String> {
    Ok(fs::read_to_string(database_path.join("CURRENT"))?.trim_end().to_owned())
}

/// Checks that the manifest with which the store was closed is unchanged. RocksDB does not notice that a manifest lost its end, and
/// reads one with certain damage forever. Another manifest belongs to a later opening that ended early, and is not checked.
pub(super) fn check_catalogue(database_path: &Path, marked: &Fingerprint) -> Result<()> {
    let holds = match catalogue_name(database_path) {
        Ok(name) if name != marked.name => return Ok(()),
        Ok(_) => marked.holds(database_path),
        Err(source) => Err(source),
    };
    match holds {
        Ok(true) => Ok(()),
        Ok(false) => {
            let why = format!("its file {} is not as it was closed; {}", marked.name, home::RECOVER_HINT);
            Err(damaged("database", &why))
        }
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            Err(damaged("database", &format!("its file {} is gone; {}", marked.name, home::RECOVER_HINT)))
        }
        Err(source) if source.kind() == std::io::ErrorKind::InvalidData => {
            Err(damaged("database", &format!("its file CURRENT is not text; {}", home::RECOVER_HINT)))
        }
        Err(source) => Err(Error::from_io("open the store", &source)),
    }
}
