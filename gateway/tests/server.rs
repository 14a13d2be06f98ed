//! A server on a loopback port, called over gRPC and REST.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

#[path = "server/access.rs"]
mod access;
#[path = "server/bounds.rs"]
mod bounds;
#[path = "server/canaries.rs"]
mod canaries;
#[path = "server/checkouts.rs"]
mod checkouts;
#[path = "server/cluster.rs"]
mod cluster;
#[path = "server/docker.rs"]
mod docker;
#[path = "server/e2b.rs"]
mod e2b;
#[path = "server/events.rs"]
mod events;
#[path = "server/files.rs"]
mod files;
#[path = "server/git.rs"]
mod git;
#[path = "server/homes.rs"]
mod homes;
#[path = "server/hostile.rs"]
mod hostile;
#[path = "server/hostile_sandbox.rs"]
mod hostile_sandbox;
#[path = "server/landed.rs"]
mod landed;
#[path = "server/operator.rs"]
mod operator;
#[path = "server/outgoing.rs"]
mod outgoing;
#[path = "server/pages.rs"]
mod pages;
#[path = "server/permissions.rs"]
mod permissions;
#[path = "server/ports.rs"]
mod ports;
#[path = "server/receiver.rs"]
mod receiver;
#[path = "server/remote.rs"]
mod remote;
#[path = "server/requests.rs"]
mod requests;
#[path = "server/rest.rs"]
mod rest;
#[path = "server/rounds.rs"]
mod rounds;
#[path = "server/running.rs"]
mod running;
#[path = "server/sandbox_events.rs"]
mod sandbox_events;
#[path = "server/sandboxes.rs"]
mod sandboxes;
#[path = "server/scenario.rs"]
mod scenario;
#[path = "server/schedule.rs"]
mod schedule;
#[path = "server/site.rs"]
mod site;
#[path = "server/stop.rs"]
mod stop;
#[path = "server/terminals.rs"]
mod terminals;
#[path = "server/tls.rs"]
mod tls;
#[path = "server/web.rs"]
mod web;
#[path = "server/webhooks.rs"]
mod webhooks;
