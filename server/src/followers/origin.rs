//! Sources outside of the store: directories, git branches, archives, prefixes of buckets. Each is kept as a workspace of its own, which the follower follows
//! like any other.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use amalgam_proto::{Reason, v1};

use super::s3::{S3Prefix, check_endpoint};
use crate::error::{Error, Result};
use crate::follow_book::{decoded_reference, encoded_reference};
use crate::host_path::{canonical, host_path};

/// A source outside of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Directory(PathBuf),
    /// A repository and a branch; the branch is empty for HEAD.
    Git(PathBuf, String),
    Archive(PathBuf),
    /// Objects of a bucket.
    S3(S3Prefix),
}

/// The version of a file by its inode, size and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileVersion([i64; 5]);

impl FileVersion {
    /// Reads the version of a file.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let found = std::fs::metadata(path).map_err(Error::io(format!("read {}", path.display())))?;
        let (inode, size) = (found.ino().cast_signed(), found.size().cast_signed());
        Ok(Self([inode, size, found.mtime(), found.mtime_nsec(), found.ctime_nsec()]))
    }
}

impl Origin {
    /// Returns the origin that a request names, or `None` if it names a workspace.
    pub(super) fn of_request(request: &v1::FollowSourceRequest) -> Result<Option<Self>> {
        use v1::follow_source_request::Source;
        let path = |bytes: &[u8]| {
            let path = canonical(&host_path(bytes)?)?;
            match path.to_str() {
                Some(_) => Ok(path),
                None => Err(Error::new(Reason::Invalid, "the path of a source is UTF-8")),
            }
        };
        Ok(match &request.source {
            Some(Source::Directory(bytes)) => Some(Self::Directory(path(bytes)?)),
            Some(Source::Git(git)) => Some(Self::Git(path(&git.path)?, git.reference.clone())),
            Some(Source::Archive(bytes)) => Some(Self::Archive(path(bytes)?)),
            Some(Source::S3(s3)) => {
                let credentials = if s3.credentials.is_empty() { None } else { Some(path(&s3.credentials)?) };
                let credentials = credentials.map(|path| path.display().to_string()).unwrap_or_default();
                let (endpoint, region) = (s3.endpoint.clone(), s3.region.clone());
                if !endpoint.is_empty() {
                    check_endpoint(&endpoint)?;
                }
                Some(Self::S3(S3Prefix { endpoint, region, credentials, ..S3Prefix::parse(&s3.url)? }))
            }
            Some(Source::SourceWorkspace(_)) | None => None,
        })
    }

    /// Returns the word for the kind of origin, as in records and in names of workspaces.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Directory(_) => "directory",
            Self::Git(..) => "git",
            Self::Archive(_) => "archive",
            Self::S3(_) => "s3",
        }
    }

    /// Returns the origin as it is stored in the record of a workspace.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Directory(path) | Self::Archive(path) => format!("{}:{}", self.word(), path.display()),
            Self::Git(path, reference) => {
                format!("{}:{}#{}", self.word(), path.display(), encoded_reference(reference))
            }
            Self::S3(place) => format!("{}:{}", self.word(), place.text()),
        }
    }

    /// Parses an origin from the record of a workspace; `None` if the source is a workspace.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        let path = |text: &str| PathBuf::from(OsStr::from_bytes(text.as_bytes()));
        match kind {
            "directory" => Some(Self::Directory(path(rest))),
            "git" => rest.rsplit_once('#').map(|(at, reference)| Self::Git(path(at), decoded_reference(reference))),
            "archive" => Some(Self::Archive(path(rest))),
            "s3" => S3Prefix::of_text(rest).map(Self::S3),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follow_book::shown_origin;

    #[test]
    fn a_git_origin_is_stored_and_read_back_whatever_its_path_and_its_reference_contain() {
        for (path, reference, shown) in [
            ("/a", "", "git:/a#"),
            ("/a#b", "main", "git:/a#b#main"),
            ("/a#b", "fix#12", "git:/a#b#fix#12"),
            ("/a", "50%23", "git:/a#50%23"),
            ("/50%23", "50%25#", "git:/50%23#50%25#"),
        ] {
            let origin = Origin::Git(PathBuf::from(path), reference.to_owned());
            let text = origin.text();
            assert_eq!(Origin::of_text(&text), Some(origin), "{text}");
            assert_eq!(shown_origin(&text), shown);
        }
        // A `%` that encodes nothing stands for itself.
        let plain = Origin::Git(PathBuf::from("/a"), "50%/x%2".to_owned());
        assert_eq!(Origin::of_text("git:/a#50%/x%2"), Some(plain));
        assert_eq!(shown_origin("directory:/a#%23"), "directory:/a#%23");
    }
}
