//! Tickets for WebSockets: each opens one connection to one terminal, within a minute. Browsers cannot send a header with a key.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use amalgam_proto::{Failure, Reason};
use amalgam_sandbox::{Secret, SecretHash};
use tonic::Status;

use super::Sandboxes;
use crate::identity::Identity;
use crate::project::ProjectName;

/// Lifetime of a ticket.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// Maximum number of tickets. A further one displaces the oldest one.
const TICKETS_MAX: usize = 1_024;

/// The tickets of a server, by the hash of their text.
#[derive(Default)]
pub(super) struct Tickets(HashMap<String, Ticket>);

struct Ticket {
    terminal: String,
    holder: Holder,
    made: Instant,
}

/// The caller that got a ticket, and the project of the terminal.
type Holder = (Identity, ProjectName);

impl Tickets {
    fn add(&mut self, text: &str, ticket: Ticket) {
        self.0.retain(|_, other| other.made.elapsed() < GOOD_FOR);
        if self.0.len() >= TICKETS_MAX
            && let Some(oldest) = self.0.iter().min_by_key(|(_, other)| other.made).map(|(hash, _)| hash.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(SecretHash::of(text).as_hex().to_owned(), ticket);
    }

    fn take(&mut self, text: &str, terminal: &str) -> Option<Holder> {
        let ticket = self.0.remove(SecretHash::of(text).as_hex())?;
        (ticket.terminal == terminal && ticket.made.elapsed() < GOOD_FOR).then_some(ticket.holder)
    }
}

impl Sandboxes {
    /// Creates a ticket for a terminal, and returns its text.
    pub(super) fn new_ticket(
        &self,
        terminal: &str,
        identity: Identity,
        project: ProjectName,
    ) -> Result<String, Status> {
        let text = Secret::generate().map_err(|error| Status::internal(error.to_string()))?;
        let holder = (identity, project);
        let ticket = Ticket { terminal: terminal.to_owned(), holder, made: Instant::now() };
        self.inner.tickets.lock().add(text.reveal(), ticket);
        Ok(text.reveal().to_owned())
    }

    /// Redeems a ticket, and returns its holder. Fails if it was used, is older than a minute, or is for another terminal.
    pub(super) fn take_ticket(&self, text: &str, terminal: &str) -> Result<Holder, Status> {
        let found = self.inner.tickets.lock().take(text, terminal);
        let message = "the ticket was used, is older than a minute, or is for another terminal";
        found.ok_or_else(|| Failure::new(Reason::Unauthenticated, message).into_status())
    }
}
