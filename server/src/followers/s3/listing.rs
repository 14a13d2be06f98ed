//! Pages of a listing, as an S3 store sends them: XML with percent-encoded keys.

use amalgam_engine::Time;
use amalgam_exchange::ListedObject;
use percent_encoding::percent_decode;
use quick_xml::Reader;
use quick_xml::events::Event;

/// The longest part of an error's text that is shown.
const ERROR_CHARS_MAX: usize = 200;

/// A page of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) objects: Vec<ListedObject>,
    /// The token of the next page.
    pub(super) next: Option<String>,
}

/// Reads a page. Keys are returned without the prefix; the object of the prefix itself is left out.
pub(super) fn parse_page(xml: &[u8], prefix: &[u8]) -> Result<Page, String> {
    let mut reader = Reader::from_reader(xml);
    let (mut page, mut names, mut text) = (Page::default(), Vec::<Vec<u8>>::new(), String::new());
    let (mut object, mut is_truncated, mut is_listing, mut is_encoded) = (ListedObject::default(), false, false, false);
    let mut buffer = Vec::new();
    loop {
        let event = reader.read_event_into(&mut buffer).map_err(|error| format!("the listing is no XML: {error}"))?;
        match event {
            Event::Start(start) => {
                names.push(start.local_name().as_ref().to_vec());
                is_listing |= names.len() == 1 && names[0] == b"ListBucketResult";
                text.clear();
            }
            Event::Text(part) => text.push_str(&part.decode().map_err(|error| error.to_string())?),
            Event::CData(part) => text.push_str(&String::from_utf8_lossy(&part)),
            Event::GeneralRef(part) => push_reference(&mut text, &part),
            Event::End(_) => {
                let path: Vec<_> = names.iter().map(|name| &name[..]).collect();
                match path[..] {
                    [_, b"Contents", b"Key"] => object.key = std::mem::take(&mut text).into_bytes(),
                    [_, b"Contents", b"ETag"] => object.etag = std::mem::take(&mut text),
                    [_, b"Contents", b"Size"] => {
                        object.size =
                            text.trim().parse().map_err(|_| format!("a size is `{}`", text.escape_debug()))?;
                    }
                    [_, b"Contents", b"LastModified"] => object.modified = time(text.trim()).unwrap_or(Time::EPOCH),
                    [_, b"Contents"] if object.etag.trim_matches('"').is_empty() => {
                        return Err("an object has no ETag, by which changes are found".to_owned());
                    }
                    [_, b"Contents"] => page.objects.push(std::mem::take(&mut object)),
                    [_, b"EncodingType"] => is_encoded = text.trim() == "url",
                    [_, b"IsTruncated"] => is_truncated = text.trim() == "true",
                    [_, b"NextContinuationToken"] => page.next = Some(std::mem::take(&mut text)),
                    _ => {}
                }
                names.pop();
                text.clear();
            }
            Event::Eof => break,
            _ => {}
        }
        buffer.clear();
    }
    if !is_listing {
        return Err("the answer is no listing of a bucket".to_owned());
    }
    if is_truncated && page.next.is_none() {
        return Err("the listing is cut off without a token for the rest".to_owned());
    }
    if !is_truncated {
        page.next = None;
    }
    for object in &mut page.objects {
        object.key = key_below(std::mem::take(&mut object.key), is_encoded, prefix)?;
    }
    page.objects.retain(|object| !object.key.is_empty());
    Ok(page)
}

/// Returns the part of a key after the prefix, decoded if `is_encoded`. A store that ignores the request for encoded keys sends
/// them as they are.
fn key_below(key: Vec<u8>, is_encoded: bool, prefix: &[u8]) -> Result<Vec<u8>, String> {
    let key = match is_encoded {
        true => {
            let spaced: Vec<u8> = key.into_iter().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
            percent_decode(&spaced).collect()
        }
        false => key,
    };
    key.strip_prefix(prefix).map(<[u8]>::to_vec).ok_or_else(|| "a key does not begin with the prefix".to_owned())
}

/// Adds the character that a reference such as `&amp;` stands for.
fn push_reference(text: &mut String, name: &[u8]) {
    match name {
        b"amp" => text.push('&'),
        b"lt" => text.push('<'),
        b"gt" => text.push('>'),
        b"quot" => text.push('"'),
        b"apos" => text.push('\''),
        _ => {
            let number = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix('#'));
            let code = number.and_then(|number| match number.strip_prefix('x') {
                Some(digits) => u32::from_str_radix(digits, 16).ok(),
                None => number.parse().ok(),
            });
            text.extend(code.and_then(char::from_u32));
        }
    }
}

/// Returns the code and the message of a store's error response, shortened; the whole text if it has no code.
pub(super) fn error_words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let part = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once("</")?.0.to_owned())
    };
    let words = match (part("Code"), part("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code,
        _ => text.into_owned(),
    };
    words.chars().filter(|c| !c.is_control()).take(ERROR_CHARS_MAX).collect()
}

/// Reads a time such as `2009-10-12T17:50:30.000Z`; fractions of a second are dropped.
fn time(text: &str) -> Option<Time> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970 in the Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day
            - 719_469;
    Some(Time::from_seconds(days * 86_400 + hour * 3_600 + minute * 60 + second, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_with_its_keys_as_bytes() {
        let xml = br#"<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><EncodingType>url</EncodingType>
            <IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>
            <Contents><Key>p/a%20b+c%2Bd%FF</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified>
            <ETag>&quot;e1&quot;</ETag><Size>7</Size><Owner><ID>x</ID></Owner></Contents>
            <Contents><Key>p/</Key><ETag>"e2"</ETag><Size>0</Size></Contents></ListBucketResult>"#;
        let page = parse_page(xml, b"p/").expect("a page");
        let object = ListedObject {
            key: b"a b c+d\xff".to_vec(),
            etag: "\"e1\"".to_owned(),
            size: 7,
            modified: Time::from_seconds(1_255_369_830, 0),
        };
        assert_eq!(page, Page { objects: vec![object], next: Some("a&b".to_owned()) });
        let plain = b"<ListBucketResult><Contents><Key>p/1+1%20</Key><ETag>e</ETag></Contents></ListBucketResult>";
        assert_eq!(parse_page(plain, b"p/").expect("a page").objects[0].key, b"1+1%20", "not encoded");
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        for (xml, words) in [
            (&b"<Error><Code>NoSuchBucket</Code></Error>"[..], "no listing"),
            (b"{}", "no listing"),
            (b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "token"),
            (b"<ListBucketResult><Contents><Key>other</Key><ETag>e</ETag></Contents></ListBucketResult>", "prefix"),
            (b"<ListBucketResult><Contents><Key>p/a</Key><Size>-1</Size></Contents></ListBucketResult>", "size"),
            (b"<ListBucketResult><Contents><Key>p/a</Key></Contents></ListBucketResult>", "ETag"),
            (b"<ListBucketResult><Contents></ListBucketResult>", "XML"),
        ] {
            let error = parse_page(xml, b"p/").expect_err("refused");
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(
            error_words(b"<Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>"),
            "NoSuchBucket: gone"
        );
    }

    #[test]
    fn times_are_read_as_seconds() {
        assert_eq!(time("1970-01-01T00:00:00.000Z"), Some(Time::from_seconds(0, 0)));
        assert_eq!(time("2024-02-29T12:00:01Z"), Some(Time::from_seconds(1_709_208_001, 0)));
        assert_eq!(time("today"), None);
    }
}
