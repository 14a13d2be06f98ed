//! TLS from files: a certificate, its key, and for mutual TLS the authorities of clients. Changed files are read again.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{info, warn};

/// Interval of the checks for changed files.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The files of a TLS listener.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate with its chain, as PEM.
    pub certificate: PathBuf,
    /// The private key, as PEM.
    pub key: PathBuf,
    /// The authorities of client certificates, as PEM. `None` accepts clients without a certificate.
    pub client_authorities: Option<PathBuf>,
}

/// TLS of a listener. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tls {
    files: TlsFiles,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Tls {
    /// Reads the files, and returns the TLS configuration of a listener.
    pub(crate) fn open(files: TlsFiles) -> io::Result<Self> {
        let config = read(&files)?;
        Ok(Self { files, config: Arc::new(RwLock::new(Arc::new(config))) })
    }

    /// Performs the TLS handshake with a client.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.config.read());
        TlsAcceptor::from(config).accept(stream).await
    }

    /// Reloads the files whenever they change. Files that cannot be used leave the old configuration in place. Never completes.
    pub(crate) async fn keep_reloading(&self) {
        let mut known = self.stamps();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let now = self.stamps();
            if now == known {
                continue;
            }
            match read(&self.files) {
                Ok(config) => {
                    *self.config.write() = Arc::new(config);
                    known = now;
                    info!("the TLS certificate was read again");
                }
                Err(error) => warn!(%error, "the changed TLS files cannot be used; the old certificate stays"),
            }
        }
    }

    fn stamps(&self) -> Vec<Option<SystemTime>> {
        let files = [Some(&self.files.certificate), Some(&self.files.key), self.files.client_authorities.as_ref()];
        let stamp = |path: &PathBuf| std::fs::metadata(path).and_then(|found| found.modified()).ok();
        files.into_iter().flatten().map(stamp).collect()
    }
}

fn read(files: &TlsFiles) -> io::Result<ServerConfig> {
    let wrong = |path: &PathBuf, why: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {why}", path.display()))
    };
    let certificates = |path: &PathBuf| -> io::Result<Vec<CertificateDer<'static>>> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let found = found.map_err(|error| wrong(path, &error))?;
        if found.is_empty() { Err(wrong(path, &"no certificate is in it")) } else { Ok(found) }
    };
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, &error))?;
    let builder = ServerConfig::builder();
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| wrong(path, &error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| wrong(&files.certificate, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
