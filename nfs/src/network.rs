//! Address ranges (CIDR) for allow-lists.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

/// A string that is not an address range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address or network; write 10.0.0.5, 10.0.0.0/8 or fd00::/8")]
pub struct InvalidNetwork(String);

impl Network {
    /// Returns the loopback ranges.
    pub fn loopback() -> [Self; 2] {
        [
            Self { address: Ipv4Addr::new(127, 0, 0, 0).into(), prefix_bits: 8 },
            Self { address: Ipv6Addr::LOCALHOST.into(), prefix_bits: 128 },
        ]
    }

    /// Returns whether the range contains an address. IPv4-mapped IPv6 addresses count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, true),
            IpAddr::V6(address) => (u128::from(address), false),
        };
        let ((ours, ours_is_4), (theirs, theirs_is_4)) = (bits(self.address), bits(address));
        let shift = 128 - u32::from(self.prefix_bits);
        ours_is_4 == theirs_is_4 && (shift == 128 || ours >> shift == theirs >> shift)
    }
}

impl Network {
    /// Returns whether the range contains all addresses of another one.
    pub fn covers(&self, other: &Self) -> bool {
        other.prefix_bits >= self.prefix_bits && self.contains(other.address)
    }

    /// Returns whether the range has loopback addresses only.
    pub fn is_loopback(&self) -> bool {
        Self::loopback().iter().any(|loopback| loopback.covers(self))
    }

    /// Returns an address of the range.
    pub fn address(&self) -> IpAddr {
        self.address
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let invalid = || InvalidNetwork(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let address = address.to_canonical();
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|bits| *bits <= most).ok_or_else(invalid)?,
            None => most,
        };
        Ok(Self { address, prefix_bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_their_prefix_says() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.200.3.4", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.5", "10.0.0.5", true),
            ("10.0.0.5", "10.0.0.6", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::/0", "2001:db8::1", true),
        ] {
            let parsed: Network = network.parse().expect("a network");
            assert_eq!(parsed.contains(address.parse().expect("an address")), expected, "{network} {address}");
        }
        for (network, other, expected) in [
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.1.0.0/16", "10.0.0.0/8", false),
            ("10.0.0.0/8", "10.0.0.0/8", true),
            ("0.0.0.0/0", "fd00::/8", false),
            ("127.0.0.0/8", "127.0.0.1", true),
        ] {
            let [network, other]: [Network; 2] = [network, other].map(|text| text.parse().expect("a network"));
            assert_eq!(network.covers(&other), expected, "{network} {other}");
        }
        let is_loopback = |text: &str| text.parse::<Network>().expect("a network").is_loopback();
        assert!(
            is_loopback("127.0.0.1") && is_loopback("::1") && !is_loopback("0.0.0.0/0") && !is_loopback("126.0.0.0/7")
        );
        for text in ["", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0/8", "fd00::/129", "host", "10.0.0.0/"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        assert_eq!("10.1.2.3".parse::<Network>().expect("an address").to_string(), "10.1.2.3/32");
    }
}
