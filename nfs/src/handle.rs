//! The wire format of file handles: export id, inode, generation, and a keyed hash (MAC).
//!
//! The key of an export is derived from the secret of the store, the export path and the secret component. A handle is therefore invalid for
//! other exports, and becomes invalid when the secret component changes.

use amalgam_view::Handle;

/// Version of the layout.
const VERSION: u8 = 1;
const CODE_BYTES: usize = 16;
/// Version, export id, inode, generation.
const BODY_BYTES: usize = 1 + 8 + 8 + 8;
/// Length of a handle.
pub(crate) const HANDLE_BYTES: usize = BODY_BYTES + CODE_BYTES;

/// Encodes and verifies the handles of one export.
#[derive(Clone)]
pub(crate) struct HandleKey {
    /// Export id.
    pub(crate) export: u64,
    key: [u8; 32],
}

impl HandleKey {
    /// Derives the key of an export from the secret of the store.
    pub(crate) fn new(secret: &[u8; 32], path: &str, component: Option<&str>) -> Self {
        let derive = |purpose: &str| {
            let mut hasher = blake3::Hasher::new_keyed(secret);
            for part in [purpose, path, component.unwrap_or("")] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
            }
            *hasher.finalize().as_bytes()
        };
        let number = derive("amalgam nfs export number");
        let export = number.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Self { export, key: derive("amalgam nfs export key") }
    }

    fn code(&self, body: &[u8]) -> [u8; CODE_BYTES] {
        let hash = blake3::keyed_hash(&self.key, body);
        let mut code = [0; CODE_BYTES];
        code.copy_from_slice(&hash.as_bytes()[..CODE_BYTES]);
        code
    }

    /// Encodes a handle.
    pub(crate) fn encode(&self, handle: Handle) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[0] = VERSION;
        bytes[1..9].copy_from_slice(&self.export.to_be_bytes());
        bytes[9..17].copy_from_slice(&handle.ino.to_be_bytes());
        bytes[17..25].copy_from_slice(&handle.generation.to_be_bytes());
        let code = self.code(&bytes[..BODY_BYTES]);
        bytes[BODY_BYTES..].copy_from_slice(&code);
        bytes
    }

    /// Decodes and verifies a handle. Returns `None` if the MAC or the version does not match.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Option<Handle> {
        let (body, code) = bytes.split_at_checked(BODY_BYTES)?;
        let expected = self.code(body);
        // Compare in constant time.
        let differs = code.len() != CODE_BYTES
            || code.iter().zip(expected).fold(0, |found, (one, other)| found | (one ^ other)) != 0;
        if differs || body[0] != VERSION {
            return None;
        }
        let number = |at: usize| body[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Some(Handle { ino: number(9), generation: number(17) })
    }
}

/// Returns the export id of a handle, unverified; `None` if the bytes have another form.
pub(crate) fn export_of(bytes: &[u8]) -> Option<u64> {
    let is_whole = bytes.len() == HANDLE_BYTES && bytes[0] == VERSION;
    is_whole.then(|| bytes[1..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_with_any_bit_flipped_or_of_another_export_is_refused() {
        let key = HandleKey::new(&[7; 32], "/p/w", None);
        let handle = Handle { ino: 42, generation: 43 };
        let bytes = key.encode(handle);
        assert_eq!(key.decode(&bytes), Some(handle));
        assert_eq!(export_of(&bytes), Some(key.export));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.decode(&flipped), None, "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(key.decode(&bytes[..length]), None);
            assert_eq!(export_of(&bytes[..length]), None);
        }
        let others = [
            HandleKey::new(&[8; 32], "/p/w", None),
            HandleKey::new(&[7; 32], "/p/v", None),
            HandleKey::new(&[7; 32], "/p/w", Some("secret")),
        ];
        for other in others {
            assert_ne!(other.export, key.export);
            let mut moved = bytes;
            moved[1..9].copy_from_slice(&other.export.to_be_bytes());
            assert_eq!(other.decode(&moved), None);
        }
    }
}
