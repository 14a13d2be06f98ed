//! The NFS server of a process: the address where it listens, and when it moves or ends.
//!
//! Without an instruction it listens at the loopback address, and at all addresses as soon as an export allows other machines. Each
//! export has its own list of addresses in either case.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use amalgam_nfs::{
    Exports as Table, MountChange, MountEvent, MountWatcher, Network, Server, ServerOptions, Statistics,
};
use amalgam_nfs::{listen, listen_or_any_port};
use amalgam_proto::Reason;
use tracing::info;

use super::key;
use crate::context::Clock;
use crate::error::{Error, Result};

/// The default port of NFS.
const PORT: u16 = 2_049;
/// How long calls under way may take when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// An instruction to listen at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsListen {
    /// The address and port.
    pub address: SocketAddr,
    /// The networks that may connect, beside the loopback addresses.
    pub allow: Vec<Network>,
}

/// The server, and the table of exports that it serves.
pub(super) struct Listener {
    /// The directory of the key and of recent replies.
    directory: PathBuf,
    clock: Clock,
    /// Created with the key when it is first needed.
    table: Option<Arc<Table>>,
    server: Option<Server>,
    told: Option<NfsListen>,
    observer: MountObserver,
}

impl Listener {
    pub(super) fn new(directory: &Path, clock: Clock) -> Self {
        Self {
            directory: directory.to_owned(),
            clock,
            table: None,
            server: None,
            told: None,
            observer: MountObserver::default(),
        }
    }

    /// Returns the table of exports, and creates it if necessary.
    pub(super) fn table(&mut self) -> Result<Arc<Table>> {
        if let Some(table) = &self.table {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(Table::new(key::read_or_make(&self.directory)?));
        Ok(Arc::clone(self.table.insert(table)))
    }

    /// Returns the table of exports; `None` if it was not created yet.
    pub(super) fn opened_table(&self) -> Option<Arc<Table>> {
        self.table.clone()
    }

    /// Returns the address of the server; `None` if it does not run.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// Calls a function with each mount, unmount and refusal from now on. Only the first function counts.
    pub(super) fn observe_mounts(&self, observe: MountWatcher) {
        let _ = self.observer.set(observe);
    }

    pub(super) fn statistics(&self) -> Option<Statistics> {
        self.server.as_ref().map(Server::statistics)
    }

    /// Listens at this address and no other.
    pub(super) fn listen_at(&mut self, told: NfsListen) -> Result<()> {
        if !told.address.ip().is_loopback() && told.allow.is_empty() {
            let message = format!(
                "{} can be reached from other machines, and NFS has no passwords; name the networks that may connect: --nfs-allow CIDR",
                told.address.ip()
            );
            return Err(Error::new(Reason::Invalid, message));
        }
        let bound = listen(told.address).map_err(Error::io(format!("listen for NFS at {}", told.address)))?;
        self.told = Some(told);
        self.start(bound)
    }

    /// Returns the networks that may mount an export which names none.
    pub(super) fn default_allow(&self) -> Vec<Network> {
        let told = self.told.iter().flat_map(|told| &told.allow);
        Network::loopback().iter().chain(told).copied().collect()
    }

    /// Makes the server listen where these networks can reach it. Returns its address.
    pub(super) fn ensure(
        &mut self,
        allow: &[Network],
        port: Option<u16>,
        remembered: Option<u16>,
    ) -> Result<SocketAddr> {
        self.refuse_unreachable(allow)?;
        let Some(address) = self.address() else {
            let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
            let ip = widened(loopback, allow).unwrap_or(loopback);
            let bound = match port {
                Some(port) => listen(SocketAddr::new(ip, port)),
                None => listen_or_any_port(SocketAddr::new(ip, remembered.unwrap_or(PORT))),
            };
            let where_ = port.map_or(String::new(), |port| format!(" at port {port}"));
            self.start(bound.map_err(Error::io(format!("listen for NFS{where_}")))?)?;
            return self.address().ok_or_else(not_listening);
        };
        if let Some(port) = port.filter(|port| *port != address.port()) {
            let message = format!(
                "exports are served at port {}, and all have one port; leave --port {port} out, or `amalgam unexport --all` first",
                address.port()
            );
            return Err(Error::new(Reason::AlreadyExists, message));
        }
        match widened(address.ip(), allow) {
            Some(ip) if self.told.is_none() => self.move_to(address, SocketAddr::new(ip, address.port())),
            _ => Ok(address),
        }
    }

    /// Refuses networks that the instruction to listen does not allow.
    fn refuse_unreachable(&self, allow: &[Network]) -> Result<()> {
        let Some(told) = &self.told else { return Ok(()) };
        let is_in = |network: &Network| network.is_loopback() || told.allow.iter().any(|other| other.covers(network));
        let Some(outside) = allow.iter().find(|network| !is_in(network)) else { return Ok(()) };
        let message = format!(
            "NFS is served at {} for this machine{}; start `amalgam serve` with `--nfs-allow {outside}` and an address that {outside} \
             reaches",
            told.address,
            told.allow.iter().map(|network| format!(" and {network}")).collect::<String>()
        );
        Err(Error::new(Reason::Invalid, message))
    }

    /// Makes the server listen at another address. Clients reconnect by themselves.
    fn move_to(&mut self, from: SocketAddr, to: SocketAddr) -> Result<SocketAddr> {
        self.stop();
        let moved = listen(to).map_err(Error::io(format!("listen for NFS at {to}")));
        match moved.and_then(|bound| self.start(bound)) {
            Ok(()) => Ok(to),
            Err(failure) => {
                self.start(listen(from).map_err(Error::io(format!("listen for NFS at {from}")))?)?;
                Err(failure)
            }
        }
    }

    fn start(&mut self, bound: TcpListener) -> Result<()> {
        let table = self.table()?;
        let mut options = ServerOptions::new(self.clock);
        options.reply_log = Some(self.directory.join("replies"));
        let observer = Arc::clone(&self.observer);
        options.on_mount = Some(Arc::new(move |event: &MountEvent| {
            log_mount(event);
            if let Some(observe) = observer.get() {
                observe(event);
            }
        }));
        if self.told.is_some() {
            options.allow = self.default_allow();
        }
        let server = Server::start(bound, table, &options).map_err(Error::io("start the NFS server"))?;
        info!(address = %server.address(), "serving NFS");
        self.server = Some(server);
        Ok(())
    }

    /// Completes calls under way, and stops the server.
    pub(super) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop(STOP_TIMEOUT);
            info!("NFS is no longer served");
        }
    }

    /// Stops the server, unless there is an instruction to listen.
    pub(super) fn stop_unless_told(&mut self) {
        if self.told.is_none() {
            self.stop();
        }
    }

    /// Returns the address at which clients in these networks reach the server; `None` if it does not run.
    pub(super) fn reachable_address(&self, allow: &[Network]) -> Option<SocketAddr> {
        let address = self.address()?;
        if !address.ip().is_unspecified() {
            return Some(address);
        }
        let outside = allow.iter().find(|network| !network.is_loopback());
        let ip = outside.and_then(own_address_towards).unwrap_or(Ipv4Addr::LOCALHOST.into());
        Some(SocketAddr::new(ip, address.port()))
    }
}

/// Returns the error for a server that should run and does not.
pub(super) fn not_listening() -> Error {
    Error::new(Reason::Fault, "the NFS server does not run")
}

/// Returns the address of all interfaces if clients in these networks cannot reach `ip`: it is a loopback address, or IPv4 for an
/// IPv6 network. Returns `None` if it can stay.
pub(super) fn widened(ip: IpAddr, allow: &[Network]) -> Option<IpAddr> {
    let outside = || allow.iter().filter(|network| !network.is_loopback());
    let is_narrow = ip.is_loopback() || ip.is_ipv4() && outside().any(|network| network.address().is_ipv6());
    if !is_narrow || outside().next().is_none() {
        return None;
    }
    let has_v6 = outside().any(|network| network.address().is_ipv6());
    Some(if has_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() })
}

/// Returns the address of this machine on the route to a network. Nothing is sent: connecting a UDP socket only looks up the route.
fn own_address_towards(network: &Network) -> Option<IpAddr> {
    let any: IpAddr =
        if network.address().is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(network.address(), PORT)).ok()?;
    let found = socket.local_addr().ok()?.ip();
    (!found.is_unspecified()).then_some(found)
}

/// A callback for each mount, unmount and refusal of an NFS client. Request threads call it, so it must not block.
type MountObserver = Arc<OnceLock<MountWatcher>>;

/// Logs a mount, an unmount or a refusal of an NFS client.
fn log_mount(event: &MountEvent) {
    let MountEvent { client, path, what } = event;
    match what {
        MountChange::Mounted => info!(%client, path, "an NFS client mounted an export"),
        MountChange::Unmounted => info!(%client, path, "an NFS client unmounted an export"),
        MountChange::Refused => info!(%client, "an NFS client was refused"),
    }
}
