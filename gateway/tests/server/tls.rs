//! TLS: clients without a certificate stay outside, and a changed certificate is used without a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use amalgam_gateway::TlsFiles;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::running::{Running, Setup};

/// Certificates made by openssl, in a directory of their own.
struct Authority {
    directory: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let authority = Self { directory: tempfile::tempdir().unwrap() };
        authority.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=authority",
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
        ]);
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn openssl(&self, arguments: &[&str]) {
        let done = Command::new("openssl").args(arguments).current_dir(self.directory.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Makes a certificate `NAME.pem` and its key `NAME.key`.
    fn issue(&self, name: &str) {
        let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        let subject = format!("/CN={name}");
        self.openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            &subject,
            "-keyout",
            &key,
            "-out",
            &request,
        ]);
        std::fs::write(self.path("extensions"), "subjectAltName=DNS:localhost\n").unwrap();
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "extensions",
            "-out",
            &certificate,
        ]);
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap()
    }

    /// The settings of a client, with a certificate or without.
    fn client(&self, certificate: Option<&str>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate("ca")).unwrap();
        let builder = ClientConfig::builder().with_root_certificates(roots);
        Arc::new(match certificate {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![self.certificate(name)], key).unwrap()
            }
        })
    }

    fn files(&self, server: &str) -> TlsFiles {
        let path = |ending: &str| self.path(&format!("{server}.{ending}"));
        TlsFiles { certificate: path("pem"), key: path("key"), client_authorities: Some(self.path("ca.pem")) }
    }
}

/// Asks for `/health`. Returns the first line of the answer and the certificate of the server.
async fn health(server: &Running, client: Arc<ClientConfig>) -> io::Result<(String, CertificateDer<'static>)> {
    let stream = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(client).connect(name, stream).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
    Ok((text.lines().next().unwrap_or_default().to_owned(), certificate))
}

fn replace(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_needs_a_certificate_and_a_new_one_of_the_server_is_used_without_a_restart() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let authority = Authority::new();
    ["server", "next", "client"].iter().for_each(|name| authority.issue(name));
    let mut server = Running::with(Setup { tls: Some(authority.files("server")), ..Setup::default() }).await;
    let with = authority.client(Some("client"));
    let (line, certificate) = health(&server, Arc::clone(&with)).await.expect("a client with a certificate");
    assert_eq!((line.as_str(), certificate), ("HTTP/1.1 200 OK", authority.certificate("server")));
    assert!(health(&server, authority.client(None)).await.is_err(), "a client without a certificate");
    let stranger = Authority::new();
    stranger.issue("client");
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate("ca")).unwrap();
    let key = PrivateKeyDer::from_pem_file(stranger.path("client.key")).unwrap();
    let foreign = ClientConfig::builder().with_root_certificates(roots);
    let foreign = foreign.with_client_auth_cert(vec![stranger.certificate("client")], key).unwrap();
    assert!(health(&server, Arc::new(foreign)).await.is_err(), "a client of another authority");
    // Both files change one after another; files that do not fit together leave the old certificate.
    let next = authority.certificate("next");
    replace(&authority.path("next.key"), &authority.path("server.key"));
    assert!(health(&server, Arc::clone(&with)).await.is_ok());
    replace(&authority.path("next.pem"), &authority.path("server.pem"));
    let reloaded = async {
        while health(&server, Arc::clone(&with)).await.expect("it goes on").1 != next {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reloaded).await.expect("the new certificate is used");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_keep_nobody_out() {
    let mut server = Running::start().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    // One that says half a word is silent, too.
    silent[0].write_all(b"PRI * HT").await.unwrap();
    let answer = server.rest(http::Method::GET, "/health", &[], "").await;
    assert_eq!(answer.status, 200);
    // They do not hold up the end of the server either.
    tokio::time::timeout(Duration::from_secs(20), server.stop()).await.expect("it stops");
    drop(silent);
}
