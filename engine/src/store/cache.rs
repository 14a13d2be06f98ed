//! A cache of decoded objects with a limit in bytes.

use std::sync::Arc;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::changed_paths::ChangedPaths;
use crate::id::ObjectId;
use crate::object::{Directories, Links, Root, Ropes, Sequence, SequenceNode, Snapshot, States};

/// A decoded object of any kind.
#[derive(Clone)]
pub(crate) enum Cached {
    Directory(Arc<SequenceNode<Directories>>),
    Rope(Arc<SequenceNode<Ropes>>),
    Links(Arc<SequenceNode<Links>>),
    State(Arc<SequenceNode<States>>),
    Root(Arc<Root>),
    Snapshot(Arc<Snapshot>, Option<ChangedPaths>),
}

/// A sequence whose nodes the store caches.
pub(crate) trait CachedSequence: Sequence {
    fn into_cached(node: Arc<SequenceNode<Self>>) -> Cached;
    fn from_cached(cached: Cached) -> Option<Arc<SequenceNode<Self>>>;
}

/// The share of the cache for frequently used objects. The rest is for new ones, which would otherwise be evicted before their
/// first reuse: the next commit reads the objects that this one wrote.
const HOT_PART: f64 = 0.5;

pub(super) struct ObjectCache(Cache<ObjectId, (Cached, u32), Weigh>);

#[derive(Clone)]
struct Weigh;

impl Weighter<ObjectId, (Cached, u32)> for Weigh {
    fn weight(&self, _id: &ObjectId, value: &(Cached, u32)) -> u64 {
        u64::from(value.1)
    }
}

impl ObjectCache {
    pub(super) fn new(bytes: u64) -> Self {
        let items = usize::try_from(bytes / 8_192).unwrap_or(usize::MAX).max(16);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(bytes)
            .hot_allocation(HOT_PART)
            .build()
            .expect("both capacities are set");
        Self(Cache::with_options(options, Weigh, DefaultHashBuilder::default(), DefaultLifecycle::default()))
    }

    pub(super) fn get(&self, id: ObjectId) -> Option<Cached> {
        self.0.get(&id).map(|(cached, _)| cached)
    }

    pub(super) fn clear(&self) {
        self.0.clear();
    }

    /// Inserts an object. `encoded_bytes` is the size of its canonical form; the decoded form takes about three times that.
    pub(super) fn insert(&self, id: ObjectId, cached: Cached, encoded_bytes: usize) {
        let weight = u32::try_from(encoded_bytes.saturating_mul(3) + 256).unwrap_or(u32::MAX);
        self.0.insert(id, (cached, weight));
    }
}

macro_rules! cached_sequence {
    ($sequence:ty, $variant:ident) => {
        impl CachedSequence for $sequence {
            fn into_cached(node: Arc<SequenceNode<Self>>) -> Cached {
                Cached::$variant(node)
            }

            fn from_cached(cached: Cached) -> Option<Arc<SequenceNode<Self>>> {
                match cached {
                    Cached::$variant(node) => Some(node),
                    _ => None,
                }
            }
        }
    };
}

cached_sequence!(Directories, Directory);
cached_sequence!(Ropes, Rope);
cached_sequence!(Links, Links);
cached_sequence!(States, State);
