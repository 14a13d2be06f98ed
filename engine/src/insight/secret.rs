//! Detects credentials in text by their shape: well-known tokens, private keys, and values assigned to names such as `password`.
//!
//! It makes one pass over the bytes. The detection is heuristic, with false positives and false negatives. It never stores a
//! credential that it found.

use memchr::memmem;

/// The kind of a detected credential and its line within the text, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) shape: &'static str,
    pub(super) line: usize,
}

/// The prefix of a token, the minimum length of the rest, and the bytes that the rest may contain.
struct Shape {
    word: &'static str,
    prefix: &'static [u8],
    rest_bytes_min: usize,
    rest: fn(&u8) -> bool,
}

const fn shape(word: &'static str, prefix: &'static [u8], rest_bytes_min: usize, rest: fn(&u8) -> bool) -> Shape {
    Shape { word, prefix, rest_bytes_min, rest }
}

/// A prefix that starts with another prefix must come before it.
const SHAPES: [Shape; 27] = [
    shape("AWS access key", b"AKIA", 16, is_upper_or_digit),
    shape("AWS temporary access key", b"ASIA", 16, is_upper_or_digit),
    shape("GitHub token", b"ghp_", 36, u8::is_ascii_alphanumeric),
    shape("GitHub token", b"gho_", 36, u8::is_ascii_alphanumeric),
    shape("GitHub token", b"ghu_", 36, u8::is_ascii_alphanumeric),
    shape("GitHub token", b"ghs_", 36, u8::is_ascii_alphanumeric),
    shape("GitHub token", b"ghr_", 36, u8::is_ascii_alphanumeric),
    shape("GitHub token", b"github_pat_", 50, is_word),
    shape("GitLab token", b"glpat-", 20, is_word_or_dash),
    shape("Slack token", b"xoxb-", 20, is_word_or_dash),
    shape("Slack token", b"xoxp-", 20, is_word_or_dash),
    shape("Slack token", b"xoxa-", 20, is_word_or_dash),
    shape("Slack token", b"xoxs-", 20, is_word_or_dash),
    shape("Stripe key", b"sk_live_", 20, u8::is_ascii_alphanumeric),
    shape("Stripe key", b"rk_live_", 20, u8::is_ascii_alphanumeric),
    shape("Anthropic key", b"sk-ant-", 40, is_word_or_dash),
    shape("OpenAI key", b"sk-proj-", 40, is_word_or_dash),
    shape("OpenAI key", b"sk-", 40, u8::is_ascii_alphanumeric),
    shape("Google API key", b"AIza", 35, is_word_or_dash),
    shape("npm token", b"npm_", 36, u8::is_ascii_alphanumeric),
    shape("PyPI token", b"pypi-", 50, is_word_or_dash),
    shape("Hugging Face token", b"hf_", 34, u8::is_ascii_alphanumeric),
    shape("DigitalOcean token", b"dop_v1_", 64, u8::is_ascii_hexdigit),
    shape("SendGrid key", b"SG.", 60, is_word_dash_or_dot),
    shape("crates.io token", b"cio", 32, u8::is_ascii_alphanumeric),
    shape("age secret key", b"AGE-SECRET-KEY-1", 50, is_upper_or_digit),
    shape("signed web token", b"eyJ", 60, is_word_dash_or_dot),
];

/// Minimum length of a token of any shape, in bytes.
const TOKEN_BYTES_MIN: usize = 20;
/// Longer runs are examined only up to this many bytes, so that a long line does not take quadratic time.
const TOKEN_BYTES_MAX: usize = 1_024;
const VALUE_BYTES_MIN: usize = 12;
const VALUE_BYTES_MAX: usize = 256;
/// Minimum Shannon entropy of a value in bits per byte: words have less, random text has more.
const ENTROPY_BITS_MIN: f64 = 3.3;

/// Searches a text for credentials. Stops after `findings_max` findings.
pub(super) fn find(text: &[u8], findings_max: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if findings.len() >= findings_max {
            break;
        }
        if let Some(shape) = in_line(line) {
            findings.push(Finding { shape, line: number });
        }
    }
    findings
}

fn in_line(line: &[u8]) -> Option<&'static str> {
    if line.len() < TOKEN_BYTES_MIN {
        return None;
    }
    if is_private_key(line) {
        return Some("private key");
    }
    let tokens = line.split(|byte| !is_word_dash_or_dot(byte)).filter(|run| run.len() >= TOKEN_BYTES_MIN);
    tokens.into_iter().find_map(token).or_else(|| assigned(line))
}

fn is_private_key(line: &[u8]) -> bool {
    let Some(begin) = memmem::find(line, b"-----BEGIN ") else { return false };
    let rest = &line[begin + 11..];
    memmem::find(rest, b"PRIVATE KEY").is_some_and(|at| at <= 24 && rest[at + 11..].starts_with(b"-----"))
}

/// Returns the shape of a token in a run of token bytes. A token may follow a dot or a dash of other text.
fn token(run: &[u8]) -> Option<&'static str> {
    let starts = (0..run.len() - TOKEN_BYTES_MIN + 1).filter(|at| *at == 0 || !is_word(&run[at - 1]));
    starts.into_iter().find_map(|at| {
        let run = &run[at..run.len().min(at + TOKEN_BYTES_MAX)];
        let found = SHAPES.iter().find(|shape| {
            let Some(rest) = run.strip_prefix(shape.prefix) else { return false };
            let fits = rest.iter().take_while(|byte| (shape.rest)(byte)).count();
            let exact = rest.get(fits).is_none_or(|behind| !is_word(behind));
            fits >= shape.rest_bytes_min && exact && is_varied(&rest[..fits])
        })?;
        // A JSON Web Token has three parts. The last one may lie beyond the examined bytes.
        let dots = run.iter().filter(|byte| **byte == b'.').count();
        let three = dots == 2 || dots == 1 && run.len() == TOKEN_BYTES_MAX;
        (found.prefix != b"eyJ" || three).then_some(found.word)
    })
}

/// Returns whether a name such as password, secret, token or key is assigned a value that looks random.
fn assigned(line: &[u8]) -> Option<&'static str> {
    let mut behind = 0;
    while let Some(at) = line[behind..].iter().position(|byte| matches!(byte, b'=' | b':')) {
        let sign = behind + at;
        behind = sign + 1;
        if is_secret_name(&line[..sign]) && is_secret_value(&line[behind..]) {
            return Some("assigned secret");
        }
    }
    None
}

const SECRET_WORDS: [&[u8]; 11] = [
    b"password",
    b"passwd",
    b"pwd",
    b"secret",
    b"token",
    b"apikey",
    b"api_key",
    b"api-key",
    b"access_key",
    b"private_key",
    b"auth_key",
];

/// Returns whether the text before the assignment sign ends in the name of a secret, quoted or not.
fn is_secret_name(before: &[u8]) -> bool {
    let end =
        before.iter().rposition(|byte| !matches!(byte, b' ' | b'\t' | b'"' | b'\'' | b']')).map_or(0, |at| at + 1);
    let start = before[..end].iter().rposition(|byte| !is_word_or_dash(byte)).map_or(0, |at| at + 1);
    let name = before[start..end].to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| memmem::find(&name, word).is_some())
}

fn is_secret_value(behind: &[u8]) -> bool {
    let skip =
        behind.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'=' | b'>' | b'"' | b'\'' | b'`')).count();
    let quoted = behind[..skip].iter().any(|byte| matches!(byte, b'"' | b'\'' | b'`'));
    let value = &behind[skip..];
    let length = value.iter().take(VALUE_BYTES_MAX + 1).take_while(|byte| is_value(byte)).count();
    let (value, rest) = value.split_at(length);
    if !(VALUE_BYTES_MIN..=VALUE_BYTES_MAX).contains(&length) {
        return false;
    }
    // Code that computes a value continues after it: with a call, an index or a path.
    let ended = match rest.first() {
        None => true,
        Some(b'"' | b'\'' | b'`') => quoted,
        Some(b' ' | b'\t' | b'\r' | b',' | b';' | b'}') => !quoted,
        Some(_) => false,
    };
    let mixed = value.iter().any(u8::is_ascii_digit) && value.iter().any(u8::is_ascii_alphabetic);
    let placeholder = value.to_ascii_lowercase();
    let stands_for = [&b"example"[..], b"changeme", b"xxxx", b"your", b"placeholder", b"dummy", b"1234567890"];
    ended && mixed && is_varied(value) && !stands_for.iter().any(|word| memmem::find(&placeholder, word).is_some())
}

/// Returns whether the distribution of the bytes resembles that of random bytes.
fn is_varied(value: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    value.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let length = value.len() as f64;
    let bits: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let part = f64::from(*count) / length;
            -part * part.log2()
        })
        .sum();
    bits >= ENTROPY_BITS_MIN.min(length.log2() - 0.3)
}

fn is_upper_or_digit(byte: &u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

fn is_word(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

fn is_word_or_dash(byte: &u8) -> bool {
    is_word(byte) || *byte == b'-'
}

fn is_word_dash_or_dot(byte: &u8) -> bool {
    is_word_or_dash(byte) || *byte == b'.'
}

fn is_value(byte: &u8) -> bool {
    is_word_or_dash(byte) || matches!(byte, b'+' | b'/' | b'=' | b'!' | b'@' | b'#' | b'%' | b'^' | b'&' | b'*' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generates a token, so that no source file contains a matching string.
    fn made_up(prefix: &str, length: usize) -> String {
        let letters = b"q7Rw2eTy9UiZoP4aSdF6gHj1KlX3cVb8Nm5";
        let rest = (0..length).map(|at| char::from(letters[at * 11 % letters.len()]));
        prefix.chars().chain(rest).collect()
    }

    fn shape_of(line: &str) -> Option<&'static str> {
        find(line.as_bytes(), 1).first().map(|finding| finding.shape)
    }

    #[test]
    fn tokens_are_found_by_their_shape() {
        assert_eq!(shape_of(&format!("key = {}", made_up("AKIA", 16).to_uppercase())), Some("AWS access key"));
        assert_eq!(shape_of(&format!("  \"{}\",", made_up("ghp_", 36))), Some("GitHub token"));
        assert_eq!(shape_of(&format!("url: https://x:{}@host", made_up("glpat-", 20))), Some("GitLab token"));
        assert_eq!(shape_of(&made_up("sk-ant-", 60)), Some("Anthropic key"));
        assert_eq!(shape_of(&made_up("sk-", 48)), Some("OpenAI key"));
        let parts = [made_up("eyJ", 30), made_up("", 40), made_up("", 43)].join(".");
        assert_eq!(shape_of(&parts), Some("signed web token"));
        assert_eq!(shape_of("-----BEGIN OPENSSH PRIVATE KEY-----"), Some("private key"));
        for line in [
            "AKIA is how access keys of AWS begin",
            "ghp_ghp_ghp_ghp_ghp_ghp_ghp_ghp_ghp_ghp_",
            "a-very-long-name-with-many-dashes-in-it-sk-and-more",
            "-----BEGIN PUBLIC KEY-----",
            "-----BEGIN CERTIFICATE-----",
            "fn skip_leading_whitespace_and_comments_of_the_line() {",
        ] {
            assert_eq!(shape_of(line), None, "{line}");
        }
        assert_eq!(shape_of(&format!("x{}", made_up("ghp_", 36))), None);
    }

    #[test]
    fn values_given_to_secrets_are_found_when_they_look_random() {
        let value = made_up("", 20);
        for line in [
            format!("password = \"{value}\""),
            format!("DB_PASSWORD={value}"),
            format!("  api_key: '{value}',"),
            format!("\"client_secret\": \"{value}\","),
            format!("os.environ['TOKEN'] = '{value}'"),
        ] {
            assert_eq!(shape_of(&line), Some("assigned secret"), "{line}");
        }
        for line in [
            "password = \"changeme-please-1\"".to_owned(),
            "password = os.environ[\"DB_PASSWORD\"]".to_owned(),
            "token = parser.next_token_or_end_2()".to_owned(),
            "secret: ${{ secrets.DEPLOY_KEY_9 }}".to_owned(),
            "password = aaaaaaaaaaaaaaaaaaaa1".to_owned(),
            format!("colour = \"{value}\""),
            "api_key = your-api-key-1-goes-here".to_owned(),
            "token: Option<TokenSource2>".to_owned(),
        ] {
            assert_eq!(shape_of(&line), None, "{line}");
        }
    }

    #[test]
    fn long_lines_are_looked_through_once() {
        for part in ["token=", "glpat-", "eyJ.", "password: ", "-----BEGIN "] {
            assert_eq!(shape_of(&part.repeat((256 << 10) / part.len())), None, "{part}");
        }
        let long = [made_up("eyJ", 700), made_up("", 800), made_up("", 43)].join(".");
        assert_eq!(shape_of(&long), Some("signed web token"));
    }

    #[test]
    fn findings_have_lines_and_an_end() {
        let text = format!("a\n\n{}\n{}\n", made_up("ghp_", 36), made_up("npm_", 36));
        let lines: Vec<_> = find(text.as_bytes(), 9).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3]);
        assert_eq!(find(text.as_bytes(), 1).len(), 1);
    }
}
