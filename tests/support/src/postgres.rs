//! PostgreSQL servers for tests: each in a scratch directory of its own, reached by a Unix socket, ended with its owner.
//!
//! PostgreSQL does not run as root, so that root starts it as the user `postgres`, or as `nobody`. A shell holds the server and reads
//! from a pipe: when the test process ends, however it ends, the pipe closes, and the shell stops the server and removes its files.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

const SCRIPT: &str = r#"
umask 077
d=$(mktemp -d "$1/amalgam-postgres.XXXXXX") || exit 1
trap 'rm -rf "$d"' EXIT
cd "$d" || exit 1
if [ -z "$4" ]; then
  "$2/initdb" -D "$d/data" -U amalgam -A trust --no-sync -E UTF8 --no-locale >"$d/log" 2>&1 || { cat "$d/log" >&2; exit 1; }
else
  "$2/pg_basebackup" -D "$d/data" -R -C -S standby -h "$4" -U amalgam -d application_name=standby -c fast --no-sync \
    >"$d/log" 2>&1 || { cat "$d/log" >&2; exit 1; }
fi
cat >>"$d/data/postgresql.conf" <<C
listen_addresses = ''
unix_socket_directories = '$d'
max_connections = 200
shared_buffers = 32MB
fsync = off
full_page_writes = off
$3
C
"$2/pg_ctl" -D "$d/data" -w -l "$d/log" start >/dev/null 2>&1 || { cat "$d/log" >&2; exit 1; }
echo "$d"
while read -r order; do
  case $order in
    restart) "$2/pg_ctl" -D "$d/data" -w -m fast -l "$d/log" restart >/dev/null 2>&1 ;;
    crash) "$2/pg_ctl" -D "$d/data" -w -m immediate -l "$d/log" restart >/dev/null 2>&1 ;;
    stop) "$2/pg_ctl" -D "$d/data" -w -m immediate stop >/dev/null 2>&1 ;;
    promote) "$2/pg_ctl" -D "$d/data" -w promote >/dev/null 2>&1 ;;
    replicate)
      echo "synchronous_standby_names = 'standby'" >>"$d/data/postgresql.conf"
      "$2/pg_ctl" -D "$d/data" reload >/dev/null 2>&1
      for _ in $(seq 200); do
        state=$("$2/psql" -h "$d" -U amalgam -d postgres -XAt -F ' ' -c 'SELECT sync_state, state FROM pg_stat_replication')
        [ "$state" = 'sync streaming' ] && break
        sleep 0.05
      done
      [ "$state" = 'sync streaming' ] || order="not replicated: $state" ;;
  esac
  echo "$order"
done
"$2/pg_ctl" -D "$d/data" -m immediate stop >/dev/null 2>&1
"#;

/// A running server. It ends when the value is dropped.
pub struct Postgres {
    shell: Child,
    answers: BufReader<std::process::ChildStdout>,
    directory: PathBuf,
}

impl Postgres {
    /// Starts a server with an empty database.
    ///
    /// # Errors
    ///
    /// The reason why there is none: the programs are missing, or do not run.
    pub fn start() -> Result<Self, String> {
        Self::start_with("", None)
    }

    /// Starts a server with lines of settings, or a standby of another server.
    fn start_with(settings: &str, primary: Option<&Path>) -> Result<Self, String> {
        let programs = programs().ok_or("pg_ctl and initdb are not installed (Debian's package postgresql)")?;
        let mut command = as_unprivileged();
        command.args(["sh", "-c", SCRIPT, "sh"]).arg(std::env::temp_dir()).arg(programs).arg(settings);
        command.arg(primary.unwrap_or(Path::new("")));
        let shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut shell = shell.map_err(|why| why.to_string())?;
        let mut answers = BufReader::new(shell.stdout.take().expect("it is piped"));
        let mut directory = String::new();
        answers.read_line(&mut directory).map_err(|why| why.to_string())?;
        if directory.is_empty() {
            let mut words = String::new();
            shell.stderr.take().expect("it is piped").read_to_string(&mut words).map_err(|why| why.to_string())?;
            shell.wait().map_err(|why| why.to_string())?;
            return Err(format!("PostgreSQL does not start: {}", words.trim().replace('\n', "; ")));
        }
        Ok(Self { shell, answers, directory: PathBuf::from(directory.trim_end()) })
    }

    /// Returns the address of the database.
    pub fn url(&self) -> String {
        url(&self.directory)
    }

    /// Returns the directory of its socket, whose name is `.s.PGSQL.5432`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Stops the server in order, and starts it again.
    pub fn restart(&mut self) {
        self.order("restart");
    }

    /// Kills the server, so that it forgets what it had not written, and starts it again.
    pub fn crash(&mut self) {
        self.order("crash");
    }

    /// Kills the server for good, as if its machine were gone.
    pub fn stop(&mut self) {
        self.order("stop");
    }

    /// Starts a standby that follows this server. From then on this server acknowledges a synchronous commit when the standby has it.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub fn start_standby(&mut self) -> Result<Self, String> {
        let standby = Self::start_with("wal_retrieve_retry_interval = 100ms", Some(&self.directory))?;
        self.wait_for_standby();
        Ok(standby)
    }

    /// Waits until the standby follows this server again, for example after a crash.
    pub fn wait_for_standby(&mut self) {
        self.order("replicate");
    }

    /// Makes this standby a server that takes writes.
    pub fn promote(&mut self) {
        self.order("promote");
    }

    fn order(&mut self, order: &str) {
        use std::io::Write as _;

        let pipe = self.shell.stdin.as_mut().expect("it is piped");
        writeln!(pipe, "{order}").expect("the shell reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the shell answers");
        assert_eq!(answer.trim_end(), order);
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().ok();
    }
}

/// Returns the address of a database behind the socket in a directory.
pub fn url(directory: &Path) -> String {
    format!("postgres:///postgres?host={}&user=amalgam", directory.display())
}

/// Returns the address of a server that all tests of this process share, or `None` after [`skip`](crate::skip).
pub fn shared() -> Option<String> {
    static SHARED: OnceLock<Result<Postgres, String>> = OnceLock::new();
    match SHARED.get_or_init(Postgres::start) {
        Ok(server) => Some(server.url()),
        Err(why) => {
            crate::skip("postgres", why);
            None
        }
    }
}

/// Starts a server for one test, or returns `None` after [`skip`](crate::skip).
pub fn own() -> Option<Postgres> {
    Postgres::start().map_err(|why| crate::skip("postgres", &why)).ok()
}

/// Starts a server for one test with lines of settings, or returns `None` after [`skip`](crate::skip).
pub fn own_with(settings: &str) -> Option<Postgres> {
    Postgres::start_with(settings, None).map_err(|why| crate::skip("postgres", &why)).ok()
}

fn programs() -> Option<PathBuf> {
    let has = |directory: &PathBuf| directory.join("pg_ctl").exists() && directory.join("initdb").exists();
    let mut found: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(has)
        .collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    found.pop().or_else(|| std::env::split_paths(&path).find(has))
}

fn as_unprivileged() -> Command {
    let own = Command::new("id").arg("-u").output();
    if own.map_or(true, |own| own.stdout.trim_ascii() != b"0") {
        return Command::new("env");
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = if users.lines().any(|line| line.starts_with("postgres:")) { "postgres" } else { "nobody" };
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), "--clear-groups", "--"]);
    command
}
