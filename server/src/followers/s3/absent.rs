//! The reader of buckets in a build without the feature `s3`: it cannot be opened.

use std::convert::Infallible;
use std::io::Read;

use amalgam_exchange::{BucketSource, ListedObject};
use amalgam_proto::Reason;

use super::S3Prefix;
use crate::error::{Error, Result};

/// The objects below a prefix. This build makes none.
pub(in crate::followers) struct S3Source(Infallible);

impl S3Source {
    /// Fails, and says what to do.
    pub(in crate::followers) fn open(place: &S3Prefix) -> Result<Self> {
        let message =
            format!("s3://{}: this program was built without S3, so that it cannot follow buckets", place.bucket);
        Err(Error::new(Reason::Unsupported, message))
    }
}

impl BucketSource for S3Source {
    fn next_page(&mut self) -> amalgam_exchange::Result<Option<Vec<ListedObject>>> {
        match self.0 {}
    }

    fn read_many(&mut self, _: &[ListedObject]) -> amalgam_exchange::Result<Vec<Option<Vec<u8>>>> {
        match self.0 {}
    }

    fn read_one(&mut self, _: &ListedObject) -> amalgam_exchange::Result<Option<Box<dyn Read + Send + '_>>> {
        match self.0 {}
    }
}
