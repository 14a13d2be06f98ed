//! A workspace that follows a prefix of an S3 bucket, over HTTP: a small S3 store of this file, or a real one where the environment names
//! one (`scripts/test-cloud`).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::scratch::Scratch;

/// An S3 store in memory that knows listings and reads, and counts them.
#[derive(Clone, Default)]
struct Bucket {
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// The requests, as method and path.
    requests: Arc<Mutex<Vec<String>>>,
    /// Keys that get other bytes after they were listed.
    overwritten: Arc<Mutex<Vec<String>>>,
}

impl Bucket {
    /// Serves it on a port of its own. Returns the URL.
    fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let bucket = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let bucket = bucket.clone();
                std::thread::spawn(move || bucket.answer(stream));
            }
        });
        url
    }

    fn put(&self, key: &str, text: &str) {
        self.objects.lock().expect("unlocked").insert(key.to_owned(), text.as_bytes().to_vec());
    }

    fn reads(&self) -> usize {
        let requests = self.requests.lock().expect("unlocked");
        requests.iter().filter(|request| !request.contains("list-type=2")).count()
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().expect("a stream"));
        loop {
            let (mut first, mut headers) = (String::new(), BTreeMap::new());
            if lines.read_line(&mut first).unwrap_or(0) == 0 {
                return;
            }
            loop {
                let mut line = String::new();
                if lines.read_line(&mut line).unwrap_or(0) <= 2 {
                    break;
                }
                let (name, value) = line.split_once(':').expect("a header");
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            let target = first.split(' ').nth(1).expect("a path").to_owned();
            self.requests.lock().expect("unlocked").push(target.clone());
            let signed = headers.get("authorization").is_some_and(|value| value.contains("Credential=amalgam/"));
            let (status, etag, body) = match (signed, target.split_once('?')) {
                (false, _) => ("403 Forbidden", String::new(), b"<Error><Code>AccessDenied</Code></Error>".to_vec()),
                (true, Some((_, query))) => ("200 OK", String::new(), self.list(query)),
                (true, None) => self.read(&target, headers.get("if-match").map_or("", String::as_str)),
            };
            let etag = if etag.is_empty() { etag } else { format!("ETag: {etag}\r\n") };
            let head = format!("HTTP/1.1 {status}\r\n{etag}Content-Length: {}\r\n\r\n", body.len());
            if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
                return;
            }
        }
    }

    /// A page of two objects.
    fn list(&self, query: &str) -> Vec<u8> {
        let value = |name: &str| {
            let found = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            decode(found.unwrap_or_default())
        };
        let (prefix, after) = (value("prefix"), value("continuation-token"));
        let objects = self.objects.lock().expect("unlocked");
        let mut found = objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
        let page: Vec<_> = found.by_ref().take(2).collect();
        let mut xml = "<?xml version=\"1.0\"?><ListBucketResult><EncodingType>url</EncodingType>".to_owned();
        if let (Some((last, _)), Some(_)) = (page.last(), found.next()) {
            xml += &format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>");
        }
        for (key, bytes) in page {
            let key: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let (etag, size) = (etag(bytes), bytes.len());
            xml += &format!("<Contents><Key>{key}</Key><ETag>{etag}</ETag><Size>{size}</Size></Contents>");
        }
        (xml + "</ListBucketResult>").into_bytes()
    }

    fn read(&self, target: &str, if_match: &str) -> (&'static str, String, Vec<u8>) {
        let key = decode(target.strip_prefix("/data/").expect("the bucket"));
        let overwritten = self.overwritten.lock().expect("unlocked").contains(&key);
        match self.objects.lock().expect("unlocked").get(&key) {
            None => ("404 Not Found", String::new(), Vec::new()),
            Some(bytes) if overwritten || etag(bytes) != if_match => {
                ("412 Precondition Failed", String::new(), Vec::new())
            }
            Some(bytes) => ("200 OK", etag(bytes), bytes.clone()),
        }
    }
}

fn etag(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    format!("\"{sum:x}\"")
}

fn decode(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((byte, after)) = rest.split_first() {
        match (byte, after.get(..2).and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok())) {
            (b'%', Some(byte)) => (bytes, rest) = ([bytes, vec![byte]].concat(), &after[2..]),
            _ => (bytes, rest) = ([bytes, vec![*byte]].concat(), after),
        }
    }
    String::from_utf8(bytes).expect("text")
}

const KEYS: &str = "printf '[default]\\naws_access_key_id = amalgam\\naws_secret_access_key = secret\\n' > ../keys";

#[track_caller]
fn update(scratch: &Scratch) -> Value {
    let done = scratch.output("amalgam update --json");
    let said = String::from_utf8([&done.stdout[..], &done.stderr].concat()).expect("text");
    let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.into_iter().find(|line| line["type"] == "update").unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn a_workspace_follows_a_prefix_and_reads_only_what_changed() {
    let scratch = Scratch::new();
    let bucket = Bucket::default();
    let url = bucket.serve();
    for (key, text) in
        [("set/a", "1\n"), ("set/d/b c+", "2\n"), ("set/d/c", "3\n"), ("other/x", "no\n"), ("set/../up", "evil\n")]
    {
        bucket.put(key, text);
    }
    bucket.put("set/large", &"x".repeat(3 << 20));
    scratch.run(KEYS);
    scratch.run("echo own > own; amalgam init -q --workspace main");
    let said = scratch.run(&format!(
        "amalgam follow s3://data/set --every 1h --endpoint {url} --credentials ../keys && amalgam ws show main"
    ));
    assert!(said.contains("s3://data/set") && said.contains("4 synced") && !said.contains("secret"), "{said}");
    assert_eq!(
        scratch.run("cat own a 'd/b c+' d/c; stat -c %s large; ls ..; ls"),
        scratch.run("printf 'own\\n1\\n2\\n3\\n3145728\\n'; ls ..; printf 'a\\nd\\nlarge\\nown\\n'")
    );
    let reads = bucket.reads();
    assert_eq!((update(&scratch)["how"].clone(), bucket.reads()), ("already".into(), reads));
    // One changes, one vanishes, one is new; what the agent changed stays.
    scratch.run("echo mine > own");
    bucket.put("set/a", "one\n");
    bucket.put("set/new", "4\n");
    bucket.objects.lock().expect("unlocked").remove("set/d/c");
    let told = update(&scratch);
    assert_eq!((&told["synced"], &told["total"], &told["conflicts"]), (&3.into(), &3.into(), &0.into()), "{told}");
    assert_eq!(bucket.reads(), reads + 2);
    assert_eq!(scratch.run("cat own a new; test ! -e d/c && cat 'd/b c+'"), "mine\none\n4\n2\n");
    assert!(
        scratch.run("amalgam log following/main/s3").contains("2 synced, 2 skipped, 1 removed, 1 left out, 5 in total")
    );
    // An object that changes while it is read comes with the next update.
    bucket.put("set/a", "two\n");
    bucket.overwritten.lock().expect("unlocked").push("set/a".to_owned());
    update(&scratch);
    assert_eq!(scratch.run("cat a"), "one\n");
    bucket.overwritten.lock().expect("unlocked").clear();
    update(&scratch);
    assert_eq!(scratch.run("cat a"), "two\n");
}

#[test]
fn a_bucket_that_cannot_be_read_is_told_and_changes_nothing() {
    let scratch = Scratch::new();
    let bucket = Bucket::default();
    let url = bucket.serve();
    bucket.put("set/a", "1\n");
    scratch.run("amalgam init -q --workspace main; printf '[default]\\naws_access_key_id = x\\naws_secret_access_key = hush\\n' > ../wrong");
    let fails = |line: &str, words: &str| {
        let done = scratch.output(line);
        let said = String::from_utf8([done.stdout, done.stderr].concat()).expect("text");
        assert!(!done.status.success() && said.contains(words) && !said.contains("hush"), "{line}: {said}");
    };
    fails(&format!("amalgam follow s3://data/set --endpoint {url} --credentials ../wrong"), "AccessDenied");
    fails(&format!("amalgam follow s3://data/set --endpoint {url} --credentials ../nothing"), "nothing");
    fails("amalgam follow s3:///set", "s3://BUCKET");
    fails("amalgam follow s3://data/set --endpoint ftp://x", "http");
    fails("amalgam follow main --region x", "s3://");
    assert!(!scratch.run("amalgam ws --json").contains("following/"));
}

#[test]
fn a_prefix_of_a_real_store_is_followed() {
    let (Ok(bucket), Ok(endpoint)) = (std::env::var("AMALGAM_TEST_BUCKET"), std::env::var("AWS_ENDPOINT_URL")) else {
        amalgam_test_support::has_or_skip("s3", false, "AMALGAM_TEST_BUCKET names no bucket (scripts/test-cloud)");
        return;
    };
    let scratch = Scratch::new();
    let name = bucket.trim_start_matches("s3://");
    let place = format!("follow-{}", std::process::id());
    let put = |key: &str, text: &str| {
        scratch.run(&format!(
            "printf '{text}' | curl -sS --fail -X PUT --aws-sigv4 aws:amz:us-east-1:s3 --user \"$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY\" -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \
             --data-binary @- '{endpoint}/{name}/{place}/{key}'"
        ));
    };
    for number in 0..30 {
        put(&format!("d{}/f{number}", number % 3), &format!("{number}\\n"));
    }
    scratch.run("amalgam init -q --workspace main");
    scratch.run(&format!("amalgam follow s3://{name}/{place} --endpoint {endpoint} --every 1h"));
    assert_eq!(scratch.run("cat d0/f0 d1/f28; find . -type f | wc -l"), "0\n28\n30\n");
    put("d0/f0", "changed\\n");
    // The background process may have been first.
    update(&scratch);
    assert_eq!(scratch.run("cat d0/f0"), "changed\n");
    let log = scratch.run("amalgam log following/main/s3");
    assert!(log.contains("1 synced, 29 skipped, 0 removed, 30 in total"), "{log}");
}
