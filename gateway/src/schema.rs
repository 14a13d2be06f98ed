//! The descriptors of the API, for code that handles any message.

use std::sync::OnceLock;

use prost_reflect::DescriptorPool;

/// Returns the descriptors of all services and messages of the API.
pub(crate) fn schema() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        DescriptorPool::decode(amalgam_proto::FILE_DESCRIPTOR_SET).expect("the build wrote the descriptors")
    })
}
