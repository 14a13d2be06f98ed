//! The hosts that a sandbox may reach, by name.

use std::fmt;
use std::str::FromStr;

/// Ports of a rule without a port: those of HTTP and HTTPS.
const PORTS_DEFAULT: [u16; 2] = [80, 443];
/// Maximum length of a host name, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// One or more hosts: `pypi.org`, `*.example.org` (all names below it, not the name itself), `*` (all hosts), each with `:PORT` or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    /// All names with this suffix, which begins with a dot.
    Below(String),
    One(String),
}

impl HostRule {
    /// Returns whether the rule permits connections to a host at a port.
    pub fn permits(&self, host: &str, port: u16) -> bool {
        let host = normal(host);
        let is_host = match &self.hosts {
            Hosts::All => true,
            Hosts::Below(end) => host.len() > end.len() && host.ends_with(end.as_str()),
            Hosts::One(name) => host == *name,
        };
        is_host && self.port.map_or(PORTS_DEFAULT.contains(&port), |only| only == port)
    }

    /// Returns whether the rule permits everything that another one permits.
    pub fn covers(&self, other: &Self) -> bool {
        let has_hosts = match (&self.hosts, &other.hosts) {
            (Hosts::All, _) => true,
            (Hosts::Below(end), Hosts::One(name)) => name.len() > end.len() && name.ends_with(end.as_str()),
            (Hosts::Below(end), Hosts::Below(below)) => below.ends_with(end.as_str()),
            (Hosts::One(one), Hosts::One(name)) => one == name,
            (Hosts::Below(_) | Hosts::One(_), Hosts::All) | (Hosts::One(_), Hosts::Below(_)) => false,
        };
        let has_port = match (self.port, other.port) {
            (one, other) if one == other => true,
            (None, Some(port)) => PORTS_DEFAULT.contains(&port),
            _ => false,
        };
        // A `*` without a port in the operator's setting limits neither the hosts nor the ports of other rules.
        let is_everything = self.hosts == Hosts::All && self.port.is_none();
        has_hosts && (has_port || is_everything)
    }
}

/// Returns a host name in the form in which names are compared: in lower case, without a final dot.
fn normal(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

impl FromStr for HostRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let text = text.escape_debug();
            format!("`{text}` is no host; write a name such as pypi.org, *.example.org or git.example.org:22")
        };
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?)),
            None => (text, None),
        };
        let is_name = |name: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            let is_label = |label: &str| !label.is_empty() && label.len() < 64 && label.bytes().all(is_plain);
            name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
        };
        if name == "*." {
            // Without its final dot it would be the rule for all hosts.
            return Err(wrong());
        }
        let name = normal(name);
        let hosts = match name.strip_prefix('*') {
            Some("") => Hosts::All,
            Some(end) if end.strip_prefix('.').is_some_and(is_name) => Hosts::Below(end.to_owned()),
            None if is_name(&name) => Hosts::One(name),
            _ => return Err(wrong()),
        };
        Ok(Self { hosts, port })
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::All => f.write_str("*")?,
            Hosts::Below(end) => write!(f, "*{end}")?,
            Hosts::One(name) => f.write_str(name)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> HostRule {
        text.parse().expect("a rule")
    }

    #[test]
    fn rules_permit_the_hosts_and_ports_that_they_name() {
        let cases = [
            ("pypi.org", "pypi.org", 443, true),
            ("pypi.org", "PyPI.org.", 80, true),
            ("pypi.org", "pypi.org", 22, false),
            ("pypi.org", "files.pypi.org", 443, false),
            ("pypi.org", "evilpypi.org", 443, false),
            ("pypi.org", "pypi.org.evil.example", 443, false),
            ("*.example.org", "a.example.org", 443, true),
            ("*.example.org", "a.b.example.org", 443, true),
            ("*.example.org", "example.org", 443, false),
            ("*.example.org", "badexample.org", 443, false),
            ("git.example.org:22", "git.example.org", 22, true),
            ("git.example.org:22", "git.example.org", 443, false),
            ("*", "anything.example", 443, true),
            ("*", "anything.example", 25, false),
            ("127.0.0.1:8000", "127.0.0.1", 8000, true),
        ];
        for (text, host, port, expected) in cases {
            assert_eq!(rule(text).permits(host, port), expected, "{text} {host}:{port}");
        }
    }

    #[test]
    fn a_rule_covers_what_it_permits_and_nothing_else() {
        let cases = [
            ("*", "pypi.org", true),
            ("*", "git.example.org:22", true),
            ("*", "*.example.org", true),
            ("*.example.org", "*.a.example.org", true),
            ("*.example.org", "a.example.org:443", true),
            ("*.example.org", "a.example.org:22", false),
            ("*.example.org", "example.org", false),
            ("*.example.org", "*", false),
            ("pypi.org", "*.pypi.org", false),
            ("pypi.org:443", "pypi.org", false),
        ];
        for (one, other, expected) in cases {
            assert_eq!(rule(one).covers(&rule(other)), expected, "{one} {other}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused_and_rules_are_written_as_they_are_read() {
        for bad in
            ["", ".", "*.", "a..b", "a b", "http://a", "a/b", "*a.b", "a.*", "a:0", "a:x", "a:70000", "[::1]", "a\n"]
        {
            assert!(bad.parse::<HostRule>().is_err(), "{bad:?}");
        }
        assert!("a".repeat(64).parse::<HostRule>().is_err());
        for text in ["*", "*:8443", "*.example.org", "pypi.org", "git.example.org:22"] {
            assert_eq!(rule(text).to_string(), text);
        }
    }
}
