//! Credentials of S3 stores: from the environment, or from a file in the form of `~/.aws/credentials`.

use std::path::{Path, PathBuf};

use amalgam_proto::Reason;

use crate::error::{Error, Result};
use crate::host_path::shown_path;

const PROFILE_DEFAULT: &str = "default";

/// The keys of one profile.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) key_id: String,
    pub(super) secret_key: String,
    pub(super) token: String,
    pub(super) region: Option<String>,
}

impl Credentials {
    /// Reads the credentials of `file`. Without one, reads those of the user's credentials file, unless the environment has any.
    /// Returns `None` if `object_store` has to find them: in the environment, or at the address of the machine's provider.
    pub(super) fn find(file: &str) -> Result<Option<Self>> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let profile = set("AWS_PROFILE").unwrap_or_else(|| PROFILE_DEFAULT.to_owned());
        if !file.is_empty() {
            return Self::read(Path::new(file), &profile).map(Some);
        }
        if set("AWS_ACCESS_KEY_ID").is_some() || set("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() {
            return Ok(None);
        }
        let of_user = set("AWS_SHARED_CREDENTIALS_FILE")
            .map(PathBuf::from)
            .or_else(|| set("HOME").map(|home| Path::new(&home).join(".aws/credentials")));
        match of_user.filter(|path| path.is_file()) {
            Some(path) => Self::read(&path, &profile).map(Some),
            None => Ok(None),
        }
    }

    fn read(path: &Path, profile: &str) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io(format!("read {}", path.display())))?;
        Self::of_text(&text, profile).ok_or_else(|| {
            let message = format!(
                "{} has no aws_access_key_id and aws_secret_access_key for the profile {profile}; AWS_PROFILE names another one",
                shown_path(path)
            );
            Error::new(Reason::Invalid, message)
        })
    }

    /// Reads a profile. Lines before the first profile belong to the default one.
    fn of_text(text: &str, profile: &str) -> Option<Self> {
        let mut found = Self::default();
        let mut here = PROFILE_DEFAULT;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                here = name.trim().trim_start_matches("profile ");
            }
            let Some((name, value)) = line.split_once('=').filter(|_| here == profile) else { continue };
            let value = value.trim().to_owned();
            match name.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => found.key_id = value,
                "aws_secret_access_key" => found.secret_key = value,
                "aws_session_token" => found.token = value,
                "region" => found.region = Some(value),
                _ => {}
            }
        }
        // They become parts of headers.
        let is_plain = [&found.key_id, &found.token].iter().all(|text| text.chars().all(|c| c.is_ascii_graphic()));
        (is_plain && !found.key_id.is_empty() && !found.secret_key.is_empty()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_from_a_file_of_several() {
        let text = "# keys\n[default]\naws_access_key_id = one\naws_secret_access_key=a=b\n\n[other]\n\
                    AWS_ACCESS_KEY_ID = two\naws_secret_access_key = c\nregion = eu-west-1\n[empty]\n";
        let found = Credentials::of_text(text, "default").expect("keys");
        assert!(found.key_id == "one" && found.secret_key == "a=b" && found.region.is_none());
        let found = Credentials::of_text(text, "other").expect("keys");
        assert!(found.key_id == "two" && found.region.as_deref() == Some("eu-west-1"));
        assert!(Credentials::of_text(text, "empty").is_none() && Credentials::of_text("", "default").is_none());
    }
}
