//! Converts POSIX ACLs between the text of archives and the bytes of `system.posix_acl_*` of the kernel and of trees.

const VERSION: [u8; 4] = [2, 0, 0, 0];
const NO_ID: u32 = u32::MAX;

const USER_OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Converts the text of an ACL to the kernel's bytes. Returns `None` if the text is no ACL, or names a user or a group without a
/// number.
pub(super) fn from_text(text: &[u8]) -> Option<Vec<u8>> {
    let mut entries = Vec::new();
    for line in text.split(|byte| matches!(byte, b'\n' | b',')) {
        let line = line.split(|byte| *byte == b'#').next()?.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let line = std::str::from_utf8(line).ok()?;
        let fields: Vec<_> = line.split(':').map(str::trim).collect();
        let (tag, qualifier, rights) = match fields[..] {
            // "other" and "mask" may leave their empty field out.
            [tag @ ("mask" | "m" | "other" | "o"), rights] => (tag, "", rights),
            [tag, qualifier, rights] => (tag, qualifier, rights),
            // star adds the number behind a name.
            [tag, _, rights, id] => (tag, id, rights),
            _ => return None,
        };
        let id = if qualifier.is_empty() { NO_ID } else { qualifier.parse().ok()? };
        let tag = match (tag, id) {
            ("user" | "u", NO_ID) => USER_OWNER,
            ("user" | "u", _) => USER,
            ("group" | "g", NO_ID) => GROUP_OWNER,
            ("group" | "g", _) => GROUP,
            ("mask" | "m", NO_ID) => MASK,
            ("other" | "o", NO_ID) => OTHER,
            _ => return None,
        };
        let right = |bits: u16, letter| match letter {
            'r' => Some(bits | 4),
            'w' => Some(bits | 2),
            'x' => Some(bits | 1),
            '-' => Some(bits),
            _ => None,
        };
        entries.push((tag, id, rights.chars().try_fold(0, right)?));
    }
    if entries.is_empty() {
        return None;
    }
    entries.sort();
    let mut bytes = VERSION.to_vec();
    for (tag, id, rights) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&rights.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    Some(bytes)
}

/// Converts the kernel's bytes of an ACL to text. Returns `None` if the bytes are no ACL.
pub(super) fn to_text(bytes: &[u8]) -> Option<String> {
    let entries = bytes.strip_prefix(&VERSION)?;
    if entries.is_empty() || entries.len() % 8 != 0 {
        return None;
    }
    let mut text = String::new();
    for entry in entries.chunks_exact(8) {
        let number = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let (word, qualifier) = match number(0) {
            USER_OWNER => ("user", String::new()),
            USER => ("user", id.to_string()),
            GROUP_OWNER => ("group", String::new()),
            GROUP => ("group", id.to_string()),
            MASK => ("mask", String::new()),
            OTHER => ("other", String::new()),
            _ => return None,
        };
        let rights = number(2);
        let letter = |bit, letter| if rights & bit != 0 { letter } else { '-' };
        let rights: String = [letter(4, 'r'), letter(2, 'w'), letter(1, 'x')].iter().collect();
        text.push_str(&format!("{word}:{qualifier}:{rights}\n"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_say_the_same() {
        let text = "user::rw-\nuser:1000:r--\ngroup::r--\ngroup:7:rwx\nmask::rwx\nother::---\n";
        let bytes = from_text(text.as_bytes()).expect("an ACL");
        assert_eq!(to_text(&bytes).as_deref(), Some(text));
        let with_names = b"user::rw-,user:ann:r--:1000,group::r--,mask::r--,other:r--";
        assert!(to_text(&from_text(with_names).expect("an ACL")).expect("text").contains("user:1000:r--"));
        for text in ["user:ann:rw-", "user::rq-", "", "what::r--", "user"] {
            assert!(from_text(text.as_bytes()).is_none(), "{text}");
        }
    }
}
