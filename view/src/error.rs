//! What can go wrong in a file system, and the one table of error numbers.

use amalgam_engine as engine;
use rustix::io::Errno;

/// The view's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every error of a view.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The tree below refused.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// An inode that was never handed out, or was given up since.
    #[error("inode {0} is not known any more")]
    Stale(u64),
    /// A change in a view that shows a snapshot.
    #[error("this view is read-only")]
    ReadOnly,
    /// The caller may not.
    #[error("permission denied")]
    Access,
    /// Only the owner may.
    #[error("only the owner may do that")]
    NotOwner,
    /// The workspace has written as much as it may.
    #[error("the workspace's quota of {max} bytes is used up; commit, or raise the quota")]
    Quota {
        /// How much it may.
        max: u64,
    },
    /// Something that is not in the tree, and stays where it is as long as it is shown.
    #[error("{path} is kept out of snapshots, and can be neither moved nor changed nor removed here")]
    Local {
        /// Where.
        path: engine::TreePath,
    },
    /// A path that cannot be kept out of the tree.
    #[error("{path} cannot be kept out of snapshots: {why}")]
    Unplaceable {
        /// Where.
        path: engine::TreePath,
        /// Why, and what to do.
        why: String,
    },
    /// An extended attribute that is not there.
    #[error("no such extended attribute")]
    NoAttribute,
    /// An extended attribute that is there already.
    #[error("the extended attribute exists already")]
    AttributeExists,
    /// An argument that makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// Something that this file system does not do.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// No data or hole behind this offset.
    #[error("no data after this offset")]
    NothingThere,
    /// A listing that went on behind a name that is gone and remembered no more.
    #[error("the listing cannot go on where it stopped; list the directory again")]
    LostPlace,
    /// Somebody else holds a lock.
    #[error("locked by another process")]
    Locked,
    /// A wait that was given up.
    #[error("interrupted")]
    Interrupted,
    /// The journal failed earlier; what was written since cannot be kept.
    #[error("the journal cannot be written any more: {0}; unmount and mount again")]
    Journal(String),
}

impl Error {
    /// The number that a kernel or a client is told.
    pub fn errno(&self) -> i32 {
        self.number().raw_os_error()
    }

    /// Whether there was no room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Engine(engine::Error::Full { .. }))
    }

    fn number(&self) -> Errno {
        match self {
            Self::Engine(error) => engine_number(error),
            Self::Stale(_) => Errno::STALE,
            Self::ReadOnly => Errno::ROFS,
            Self::Access => Errno::ACCESS,
            Self::NotOwner => Errno::PERM,
            Self::Quota { .. } => Errno::DQUOT,
            Self::Local { .. } => Errno::BUSY,
            Self::Unplaceable { .. } => Errno::INVAL,
            Self::NoAttribute => Errno::NODATA,
            Self::AttributeExists => Errno::EXIST,
            Self::Invalid(_) => Errno::INVAL,
            Self::Unsupported(_) => Errno::OPNOTSUPP,
            Self::NothingThere => Errno::NXIO,
            Self::LostPlace => Errno::STALE,
            Self::Locked => Errno::AGAIN,
            Self::Interrupted => Errno::INTR,
            Self::Journal(_) => Errno::IO,
        }
    }
}

fn engine_number(error: &engine::Error) -> Errno {
    use engine::Error as E;
    match error {
        E::NotFound { .. } | E::Absent { .. } => Errno::NOENT,
        E::Exists { .. } | E::Taken { .. } => Errno::EXIST,
        E::NotADirectory { .. } => Errno::NOTDIR,
        E::IsADirectory { .. } => Errno::ISDIR,
        E::NotEmpty { .. } => Errno::NOTEMPTY,
        E::Invalid { what: "hard link", .. } => Errno::NAMETOOLONG,
        E::IntoItself { .. } | E::WrongKind { .. } | E::Invalid { .. } => Errno::INVAL,
        E::Name { source: engine::InvalidName::TooLong { .. } | engine::InvalidName::TooDeep } => Errno::NAMETOOLONG,
        E::Name { .. } => Errno::INVAL,
        E::TooLarge { what: "a symlink target", .. } => Errno::NAMETOOLONG,
        E::TooLarge { .. } => Errno::FBIG,
        E::Full { .. } => Errno::NOSPC,
        E::Busy { .. } => Errno::BUSY,
        E::Stale { .. } | E::StaleHead { .. } | E::MovedSince { .. } => Errno::STALE,
        E::Purged { .. } => Errno::NODATA,
        _ => Errno::IO,
    }
}
