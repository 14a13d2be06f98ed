//! Prints the commands that mount an export: on a host, in Docker, in Kubernetes.

use std::net::{IpAddr, SocketAddr};

use crate::export::ExportSpec;

/// NFSv3 over TCP, without portmapper and lock manager.
const OPTIONS: &str = "vers=3,tcp,nolock,noacl";

/// Mount commands of an export.
#[derive(Clone, Debug)]
pub struct MountLines {
    host: IpAddr,
    port: u16,
    path: String,
    read_only: bool,
}

impl MountLines {
    /// Creates the commands for an export at an address that clients can reach.
    pub fn new(address: SocketAddr, spec: &ExportSpec) -> Self {
        Self { host: address.ip(), port: address.port(), path: spec.mount_path(), read_only: spec.read_only }
    }

    /// Returns the options of `mount -t nfs`.
    pub fn options(&self) -> String {
        let read_only = if self.read_only { ",ro" } else { "" };
        format!("{OPTIONS},port={0},mountport={0}{read_only}", self.port)
    }

    fn bracketed_host(&self) -> String {
        match self.host {
            IpAddr::V4(host) => host.to_string(),
            IpAddr::V6(host) => format!("[{host}]"),
        }
    }

    /// Returns the device of `mount -t nfs`.
    pub fn device(&self) -> String {
        format!("{}:{}", self.bracketed_host(), self.path)
    }

    /// Returns the `mount` command.
    pub fn mount(&self, at: &str) -> String {
        format!("mount -t nfs -o {} {} {at}", self.options(), self.device())
    }

    /// Returns the `docker volume create` command.
    pub fn docker(&self, volume: &str) -> String {
        format!(
            "docker volume create --driver local --opt type=nfs --opt o=addr={},{} --opt device=:{} {volume}",
            self.host,
            self.options(),
            self.path
        )
    }

    /// Returns the Kubernetes PersistentVolume.
    pub fn kubernetes(&self, name: &str) -> String {
        let access = if self.read_only { "ReadOnlyMany" } else { "ReadWriteMany" };
        let options: String = self.options().split(',').map(|option| format!("    - {option}\n")).collect();
        format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata:\n  name: {name}\nspec:\n  capacity:\n    storage: 1Gi\n  \
             accessModes:\n    - {access}\n  mountOptions:\n{options}  nfs:\n    server: {}\n    path: {}\n    readOnly: {}\n",
            self.host, self.path, self.read_only
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_what_a_client_needs() {
        let spec = ExportSpec { secret: Some("s3cret".to_owned()), ..ExportSpec::new("/p/w", (0, 0)) };
        let lines = MountLines::new("127.0.0.1:2050".parse().expect("an address"), &spec);
        assert_eq!(
            lines.mount("/mnt"),
            "mount -t nfs -o vers=3,tcp,nolock,noacl,port=2050,mountport=2050 127.0.0.1:/p/w/s3cret /mnt"
        );
        assert!(lines.docker("v").contains("--opt o=addr=127.0.0.1,vers=3,"), "{}", lines.docker("v"));
        let read_only = ExportSpec { read_only: true, ..ExportSpec::new("/p/w@v1", (0, 0)) };
        let lines = MountLines::new("[fd00::1]:2049".parse().expect("an address"), &read_only);
        assert!(lines.mount("/mnt").contains(",ro [fd00::1]:/p/w@v1 "), "{}", lines.mount("/mnt"));
        let volume = lines.kubernetes("v");
        assert!(volume.contains("    - nolock\n") && volume.contains("    readOnly: true\n"), "{volume}");
        assert!(volume.contains("ReadOnlyMany"), "{volume}");
    }
}
