//! Errors of a view, and the only table of error numbers.

use amalgam_engine as engine;
use amalgam_policy::{Act, Refusal};
use rustix::io::Errno;

/// The result of a view's operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a view.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An error of the store or the working tree.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// An inode number or a handle that is not in the table.
    #[error("inode {0} is not known any more")]
    Stale(u64),
    /// A change in a read-only view.
    #[error("this view is read-only")]
    ReadOnly,
    /// The caller does not have the required permission.
    #[error("permission denied")]
    Access,
    /// A policy does not give an agent the right.
    #[error("{refusal}")]
    Refused {
        /// The act, the agent and the rule.
        refusal: Box<Refusal>,
        /// Whether the agent may change nothing at all.
        is_read_only: bool,
    },
    /// The operation requires the owner.
    #[error("only the owner may do that")]
    NotOwner,
    /// The quota of uncommitted bytes is used up.
    #[error("the workspace's quota of {max} bytes is used up; commit, or raise the quota")]
    Quota {
        /// The quota in bytes.
        max: u64,
    },
    /// A change, move or removal of a local entry.
    #[error("{path} is kept out of snapshots, and can be neither moved nor changed nor removed here")]
    Local {
        /// The path of the local entry.
        path: engine::TreePath,
    },
    /// A path at which no local entry can be.
    #[error("{path} cannot be kept out of snapshots: {why}")]
    Unplaceable {
        /// The path.
        path: engine::TreePath,
        /// The reason, and a remedy if there is one.
        why: String,
    },
    /// The extended attribute does not exist.
    #[error("no such extended attribute")]
    NoAttribute,
    /// The extended attribute exists already.
    #[error("the extended attribute exists already")]
    AttributeExists,
    /// An invalid argument.
    #[error("{0}")]
    Invalid(&'static str),
    /// An operation that the view does not support.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// A seek found no data behind the offset.
    #[error("no data after this offset")]
    NothingThere,
    /// A listing cannot continue, because the name of its cookie was removed and is no longer remembered.
    #[error("the listing cannot go on where it stopped; list the directory again")]
    StaleCookie,
    /// Another process holds a conflicting lock.
    #[error("locked by another process")]
    Locked,
    /// A wait was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The journal has failed, so later changes cannot be stored.
    #[error("the journal cannot be written any more: {0}; unmount and mount again")]
    Journal(String),
}

impl Error {
    /// Returns the error number for the kernel or a client.
    pub fn errno(&self) -> i32 {
        self.number().raw_os_error()
    }

    /// Returns whether the disk is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Engine(engine::Error::Full { .. }))
    }

    fn number(&self) -> Errno {
        match self {
            Self::Engine(error) => engine_number(error),
            Self::Stale(_) => Errno::STALE,
            Self::ReadOnly => Errno::ROFS,
            Self::Access => Errno::ACCESS,
            Self::Refused { is_read_only: true, .. } => Errno::ROFS,
            Self::Refused { refusal, .. } if refusal.act == Act::Remove => Errno::PERM,
            Self::Refused { .. } => Errno::ACCESS,
            Self::NotOwner => Errno::PERM,
            Self::Quota { .. } => Errno::DQUOT,
            Self::Local { .. } => Errno::BUSY,
            Self::Unplaceable { .. } => Errno::INVAL,
            Self::NoAttribute => Errno::NODATA,
            Self::AttributeExists => Errno::EXIST,
            Self::Invalid(_) => Errno::INVAL,
            Self::Unsupported(_) => Errno::OPNOTSUPP,
            Self::NothingThere => Errno::NXIO,
            Self::StaleCookie => Errno::STALE,
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
