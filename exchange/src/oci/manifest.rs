//! Finds the layers of an image in its manifests.

use amalgam_engine::Time;
use serde_json::Value;

use super::archive::{ImageFiles, damaged};
use super::digest::Digest;
use crate::error::{Error, Result};

/// Indexes may name indexes, to this depth.
const INDEX_DEPTH_MAX: usize = 4;
const LAYERS_MAX: usize = 10_000;

/// An image as its manifest and its configuration describe it.
pub(super) struct Image {
    pub(super) layers: Vec<Layer>,
    /// The configuration, as it was written.
    pub(super) config_text: String,
    pub(super) author: String,
    pub(super) name: Option<String>,
}

/// One layer.
pub(super) struct Layer {
    /// The file in the image.
    pub(super) file: String,
    /// The digest and the size of that file, where the image says them.
    pub(super) blob: Option<(Digest, u64)>,
    /// The digest of its plain archive.
    pub(super) diff_id: Digest,
    pub(super) time: Time,
    pub(super) message: String,
}

/// Reads the description of an image, the only one or the one that is asked for.
pub(super) fn image(files: &ImageFiles, tag: Option<&str>, platform: &str) -> Result<Image> {
    if files.has("index.json") {
        let index = json(files, "index.json", None)?;
        return of_index(files, &index, tag, platform, 0);
    }
    if files.has("manifest.json") {
        return of_docker(files, tag);
    }
    Err(Error::Unsupported {
        what: "there is neither an index.json nor a manifest.json".to_owned(),
        hint: "name an OCI image layout, a tar archive of one, or an archive of `docker save`",
    })
}

fn json(files: &ImageFiles, name: &str, digest: Option<(Digest, u64)>) -> Result<Value> {
    let bytes = files.read_small(name)?;
    if let Some((digest, size)) = digest
        && (Digest::of(&bytes) != digest || bytes.len() as u64 != size)
    {
        return Err(damaged(name, "its bytes do not have the digest and size that the image says"));
    }
    serde_json::from_slice(&bytes).map_err(|error| damaged(name, error.to_string()))
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

fn list<'a>(value: &'a Value, key: &str, of: &str) -> Result<&'a Vec<Value>> {
    value.get(key).and_then(Value::as_array).ok_or_else(|| damaged(of, format!("it has no list `{key}`")))
}

/// Reads the digest and the size of a descriptor.
fn descriptor(value: &Value, of: &str) -> Result<(Digest, u64)> {
    let digest = text(value, "digest").and_then(Digest::parse);
    let size = value.get("size").and_then(Value::as_u64);
    digest.zip(size).ok_or_else(|| damaged(of, "a descriptor has no SHA-256 digest or no size"))
}

fn name_of(descriptor: &Value) -> Option<&str> {
    let annotations = descriptor.get("annotations")?;
    text(annotations, "io.containerd.image.name").or_else(|| text(annotations, "org.opencontainers.image.ref.name"))
}

fn is_named(descriptor: &Value, tag: &str) -> bool {
    let keys = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    let is_tag = |key: &&str| descriptor.get("annotations").and_then(|annotations| text(annotations, key)) == Some(tag);
    keys.iter().any(is_tag)
}

fn platform_of(descriptor: &Value) -> Option<String> {
    let platform = descriptor.get("platform")?;
    Some(format!("{}/{}", text(platform, "os")?, text(platform, "architecture")?))
}

fn of_index(files: &ImageFiles, index: &Value, tag: Option<&str>, platform: &str, depth: usize) -> Result<Image> {
    if depth > INDEX_DEPTH_MAX {
        return Err(damaged("index.json", "indexes name indexes without end"));
    }
    let all = list(index, "manifests", "the index")?;
    let mut candidates: Vec<&Value> = all.iter().collect();
    if let Some(tag) = tag.filter(|_| depth == 0) {
        candidates.retain(|descriptor| is_named(descriptor, tag));
    }
    if candidates.len() > 1 {
        candidates.retain(|descriptor| platform_of(descriptor).is_none_or(|it| it == platform));
    }
    let [chosen] = candidates[..] else {
        let known: Vec<_> =
            all.iter().map(|it| platform_of(it).or(name_of(it).map(str::to_owned)).unwrap_or_default()).collect();
        let why = format!("{} images fit; name one by its tag or platform, of: {}", candidates.len(), known.join(", "));
        return Err(Error::Invalid { what: "image", why });
    };
    let (digest, size) = descriptor(chosen, "the index")?;
    let value = json(files, &digest.path(), Some((digest, size)))?;
    if value.get("manifests").is_some() {
        return of_index(files, &value, None, platform, depth + 1);
    }
    let mut image = of_manifest(files, &value, &digest.to_string())?;
    image.name = name_of(chosen).map(str::to_owned);
    Ok(image)
}

fn of_manifest(files: &ImageFiles, manifest: &Value, of: &str) -> Result<Image> {
    let config = manifest.get("config").ok_or_else(|| damaged(of, "it names no configuration"))?;
    let config = descriptor(config, of)?;
    let bytes = json(files, &config.0.path(), Some(config)).and_then(|_| files.read_small(&config.0.path()))?;
    let mut blobs = Vec::new();
    for layer in list(manifest, "layers", of)? {
        if text(layer, "mediaType").is_some_and(|kind| kind.contains("encrypted")) {
            return Err(Error::Unsupported {
                what: "a layer of the image is encrypted".to_owned(),
                hint: "decrypt the image first",
            });
        }
        let blob = descriptor(layer, of)?;
        blobs.push((blob.0.path(), Some(blob)));
    }
    of_config(&bytes, blobs, of)
}

/// Reads the image from an archive of `docker save` without an index.
fn of_docker(files: &ImageFiles, tag: Option<&str>) -> Result<Image> {
    let manifests = json(files, "manifest.json", None)?;
    let manifests = manifests.as_array().ok_or_else(|| damaged("manifest.json", "it is no list"))?;
    let tags = |value: &Value| -> Vec<String> {
        let tags = value.get("RepoTags").and_then(Value::as_array);
        tags.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let is_wanted = |value: &&Value| tag.is_none_or(|tag| tags(value).iter().any(|it| it == tag));
    let wanted: Vec<_> = manifests.iter().filter(is_wanted).collect();
    let [manifest] = wanted[..] else {
        let known: Vec<_> = manifests.iter().flat_map(tags).collect();
        let why = format!("{} images fit; name one by its tag, of: {}", wanted.len(), known.join(", "));
        return Err(Error::Invalid { what: "image", why });
    };
    let config = text(manifest, "Config").ok_or_else(|| damaged("manifest.json", "it names no configuration"))?;
    let bytes = files.read_small(config)?;
    let said = config.rsplit('/').next().unwrap_or(config).trim_end_matches(".json");
    if let Some(digest) = Digest::parse(&format!("sha256:{said}"))
        && Digest::of(&bytes) != digest
    {
        return Err(damaged(config, "its bytes do not have the digest that it is named by"));
    }
    let layers = list(manifest, "Layers", "manifest.json")?;
    let file = |value: &Value| value.as_str().map(|file| (file.to_owned(), None));
    let blobs = layers.iter().map(file).collect::<Option<Vec<_>>>();
    let blobs = blobs.ok_or_else(|| damaged("manifest.json", "a layer has no name"))?;
    let mut image = of_config(&bytes, blobs, config)?;
    image.name = tags(manifest).into_iter().next();
    Ok(image)
}

fn of_config(bytes: &[u8], blobs: Vec<(String, Option<(Digest, u64)>)>, of: &str) -> Result<Image> {
    let config: Value = serde_json::from_slice(bytes).map_err(|error| damaged(of, error.to_string()))?;
    let config_text = String::from_utf8(bytes.to_vec()).map_err(|_| damaged(of, "the configuration is not UTF-8"))?;
    let rootfs = config.get("rootfs").ok_or_else(|| damaged(of, "the configuration lists no layers"))?;
    let diff_ids = list(rootfs, "diff_ids", "the configuration")?;
    if diff_ids.len() != blobs.len() || blobs.len() > LAYERS_MAX {
        let why = format!("it has {} layers, and its configuration tells of {}", blobs.len(), diff_ids.len());
        return Err(damaged(of, why));
    }
    let created = |value: &Value| text(value, "created").and_then(parse_time);
    let image_time = created(&config).unwrap_or_default();
    let none = Vec::new();
    let history = config.get("history").and_then(Value::as_array).unwrap_or(&none);
    let mut steps = history.iter().filter(|step| step.get("empty_layer").and_then(Value::as_bool) != Some(true));
    let mut layers = Vec::new();
    for ((file, blob), diff_id) in blobs.into_iter().zip(diff_ids) {
        let diff_id = diff_id.as_str().and_then(Digest::parse);
        let diff_id =
            diff_id.ok_or_else(|| damaged(of, "the configuration names a layer by something else than SHA-256"))?;
        let step = steps.next();
        let message = step.and_then(|step| text(step, "created_by")).unwrap_or("").trim();
        let message = if message.is_empty() { format!("layer {}", layers.len() + 1) } else { cut(message) };
        let time = step.and_then(created).unwrap_or(image_time);
        layers.push(Layer { file, blob, diff_id, time, message });
    }
    let author = cut(text(&config, "author").unwrap_or(""));
    Ok(Image { layers, config_text, author, name: None })
}

/// Shortens a text to the length that a snapshot can hold.
fn cut(text: &str) -> String {
    const CHARACTERS_MAX: usize = 20_000;
    text.chars().take(CHARACTERS_MAX).collect()
}

/// Parses a time in the format of RFC 3339. Returns `None` if the text is not one.
pub(super) fn parse_time(text: &str) -> Option<Time> {
    let (start, rest) = text.split_at_checked(19)?;
    let [_, _, _, _, b'-', _, _, b'-', _, _, b'T' | b't' | b' ', _, _, b':', _, _, b':', _, _] = start.as_bytes()
    else {
        return None;
    };
    let number = |range: std::ops::Range<usize>| digits(start.get(range)?);
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let is_date = (1..=12).contains(&month) && (1..=days_of_month(year, month)).contains(&day);
    // A leap second has the number 60.
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction, zone) = rest.split_at(rest.find(['Z', 'z', '+', '-'])?);
    let nanoseconds = match fraction.strip_prefix('.') {
        Some(fraction) => {
            digits(fraction)?;
            format!("{fraction:0<9}").get(..9)?.parse::<u32>().ok()?
        }
        None if fraction.is_empty() => 0,
        None => return None,
    };
    let offset = offset_minutes(zone)?;
    // Days since 1970, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second;
    Some(Time::from_seconds(seconds, nanoseconds))
}

/// Parses a number of digits only, without a sign. Digits behind the 18th do not count.
fn digits(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.get(..text.len().min(18)).filter(|_| is_number)?.parse().ok()
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Parses the zone of a time: `Z`, or the offset from UTC such as `+01:00`.
fn offset_minutes(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (sign, offset) = match zone.split_at_checked(1)? {
        ("+", offset) => (1, offset),
        ("-", offset) => (-1, offset),
        _ => return None,
    };
    let (hours, minutes) = offset.split_once(':').filter(|parts| parts.0.len() == 2 && parts.1.len() == 2)?;
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

/// Formats a time in UTC by RFC 3339.
pub(super) fn time_text(time: Time) -> String {
    let (seconds, nanoseconds) = (time.0.div_euclid(1_000_000_000), time.0.rem_euclid(1_000_000_000));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let fraction = match nanoseconds {
        0 => String::new(),
        nanoseconds => format!(".{nanoseconds:09}"),
    };
    format!("{}T{hour:02}:{minute:02}:{second:02}{fraction}Z", time.date())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, time) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00.5+01:00", Some(951_822_000_500_000_000)),
            ("1969-12-31T23:59:59Z", Some(-1_000_000_000)),
            ("2000-01-01t00:00:00.123456789123z", Some(946_684_800_123_456_789)),
            ("2000-01-01 00:00:00-00:30", Some(946_686_600_000_000_000)),
            ("1998-12-31T23:59:60Z", Some(915_148_800_000_000_000)),
            ("2000-02", None),
            ("2000-13-01T00:00:00Z", None),
            ("2000-00-01T00:00:00Z", None),
            ("2001-02-29T00:00:00Z", None),
            ("1900-02-29T00:00:00Z", None),
            ("2000-02-31T00:00:00Z", None),
            ("2000-04-31T00:00:00Z", None),
            ("2000-01-01T24:30:00Z", None),
            ("2000-01-01T00:-5:00Z", None),
            ("+200-01-01T00:00:00Z", None),
            ("2000/01/01T00:00:00Z", None),
            ("2000-01-01T00.00.00Z", None),
            ("2000-01-01T00:00:00", None),
            ("2000-01-01T00:00:00.Z", None),
            ("2000-01-01T00:00:00,5Z", None),
            ("2000-01-01T00:00:00Zulu", None),
            ("2000-01-01T00:00:00Z01:00", None),
            ("2000-01-01T00:00:00+1:00", None),
            ("2000-01-01T00:00:00+0100", None),
            ("2000-01-01T00:00:00+01:+5", None),
            ("2000-01-01T00:00:00+24:00", None),
            ("2000-01-01T00:00:0\u{e9}Z", None),
        ] {
            assert_eq!(parse_time(text).map(|time| time.0), time, "{text}");
        }
        for time in [0, 951_822_000_500_000_000, -1_000_000_000, 1_700_000_000_123_456_789] {
            assert_eq!(parse_time(&time_text(Time(time))), Some(Time(time)));
        }
    }
}
