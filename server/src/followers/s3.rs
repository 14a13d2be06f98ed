//! The objects below a prefix of an S3 bucket: where they are, and how they are listed and read.
//!
//! The feature `s3` reads them. A build without it keeps the records of followers, and refuses to update from a bucket.

#[cfg(feature = "s3")]
mod credentials;
#[cfg(feature = "s3")]
mod listing;
#[cfg(feature = "s3")]
mod source;
#[cfg(not(feature = "s3"))]
#[path = "s3/absent.rs"]
mod source;

use amalgam_proto::Reason;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use url::Url;

use crate::error::{Error, Result};
pub(super) use source::S3Source;

/// The characters that are percent-encoded in URLs, by the rules of signatures.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const ENCODED_PATH: &AsciiSet = &ENCODED.remove(b'/');

/// A prefix of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct S3Prefix {
    pub(super) bucket: String,
    /// It ends with a slash, or is empty.
    pub(super) prefix: String,
    /// The URL of an S3 store other than that of AWS.
    pub(super) endpoint: String,
    pub(super) region: String,
    /// The file with the credentials; empty for those of the environment.
    pub(super) credentials: String,
}

impl S3Prefix {
    /// Reads `s3://BUCKET[/PREFIX]`.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let wrong = || Error::new(Reason::Invalid, format!("`{}` is not s3://BUCKET[/PREFIX]", url.escape_debug()));
        let rest = url.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_bucket = (3..=255).contains(&bucket.len())
            && bucket.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
            && !bucket.contains("..");
        // A client would resolve `..` in the URL of an object, and read another one.
        let has_dots = prefix.split('/').any(|part| matches!(part, "." | ".."));
        if !is_bucket || has_dots || prefix.starts_with('/') || prefix.contains(char::is_control) {
            return Err(wrong());
        }
        let prefix = match prefix.trim_end_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Ok(Self { bucket: bucket.to_owned(), prefix, ..Self::default() })
    }

    /// Returns the prefix as it is stored in the record of a workspace, after `s3:`. It contains no secret key.
    pub(super) fn text(&self) -> String {
        let encode = |text: &str| percent_encode(text.as_bytes(), ENCODED).to_string();
        let prefix = percent_encode(self.prefix.as_bytes(), ENCODED_PATH);
        let settings = [("endpoint", &self.endpoint), ("region", &self.region), ("credentials", &self.credentials)];
        let settings = settings.iter().filter(|(_, value)| !value.is_empty());
        let settings: Vec<_> = settings.map(|(name, value)| format!("{name}={}", encode(value))).collect();
        match settings.is_empty() {
            true => format!("//{}/{prefix}", self.bucket),
            false => format!("//{}/{prefix}?{}", self.bucket, settings.join("&")),
        }
    }

    /// Parses the text that [`S3Prefix::text`] returns.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        let decode = |text: &str| percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned());
        let (place, settings) = text.split_once('?').unwrap_or((text, ""));
        let (bucket, prefix) = place.strip_prefix("//")?.split_once('/')?;
        let mut found = Self { bucket: bucket.to_owned(), prefix: decode(prefix)?, ..Self::default() };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=')?;
            match name {
                "endpoint" => found.endpoint = decode(value)?,
                "region" => found.region = decode(value)?,
                "credentials" => found.credentials = decode(value)?,
                _ => return None,
            }
        }
        Some(found)
    }
}

/// Checks the URL of a store. One with a password would show it in records and messages.
pub(super) fn check_endpoint(endpoint: &str) -> Result<()> {
    let url = Url::parse(endpoint).ok().filter(|url| {
        let is_bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none() && is_bare
    });
    match url {
        Some(_) => Ok(()),
        None => {
            let message =
                "endpoint: a URL that begins with https:// or http://, without a user, a password, `?` and `#`";
            Err(Error::new(Reason::Invalid, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_stored_and_read_back() {
        let mut place = S3Prefix::parse("s3://data/some prefix/of?it/").expect("a prefix");
        assert_eq!((place.bucket.as_str(), place.prefix.as_str()), ("data", "some prefix/of?it/"));
        assert_eq!(S3Prefix::of_text(&place.text()), Some(place.clone()));
        place.endpoint = "http://127.0.0.1:8333".to_owned();
        place.credentials = "/keys & more".to_owned();
        assert_eq!(S3Prefix::of_text(&place.text()), Some(place));
        assert_eq!(S3Prefix::parse("s3://data").expect("a bucket").prefix, "");
        for text in [
            "s3://",
            "s3://a",
            "s3://data//x",
            "http://data/x",
            "s3://../x",
            "s3://da ta/x",
            "s3://data/../x",
            "s3://data/a/.",
            "s3://data/a/../b",
        ] {
            assert!(S3Prefix::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_endpoint_with_a_password_is_refused_without_showing_it() {
        for url in ["http://127.0.0.1:8333", "https://s3.eu-west-1.amazonaws.com", "http://[::1]:9000/under"] {
            check_endpoint(url).expect(url);
        }
        for url in
            ["ftp://x", "http://", "https://me:hush@x", "http://me@x", "http://x?hush", "http://x:99999", "x", ""]
        {
            let error = check_endpoint(url).expect_err(url).to_string();
            assert!(error.contains("https://") && !error.contains("hush"), "{error}");
        }
    }
}
