//! The calls about webhooks.

use amalgam_engine::Time;
use amalgam_proto::v1::webhook_service_server::WebhookService;
use amalgam_proto::{Failure, Reason, timestamp, v1};
use tonic::{Request, Response, Status};

use crate::catalog::{Catalog, ListPlace};
use crate::gate::PROJECT_HEADER;
use crate::own_services::{next_token, page_size};
use crate::project::ProjectName;
use crate::projects::{DEFAULT_PROJECT, Projects};
use crate::webhook::{Delivery, DeliveryState, NewWebhook, Webhook, WebhookId};
use crate::webhooks::Dispatcher;

type Answer<T> = Result<Response<T>, Status>;

/// Implements the calls about webhooks.
#[derive(Clone)]
pub(crate) struct Webhooks {
    pub(crate) catalog: Catalog,
    pub(crate) projects: Projects,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) now: fn() -> Time,
}

#[tonic::async_trait]
impl WebhookService for Webhooks {
    async fn create_webhook(&self, request: Request<v1::CreateWebhookRequest>) -> Answer<v1::CreateWebhookResponse> {
        let project = project_of(&request, &request.get_ref().project)?;
        let request = request.into_inner();
        let secret = Some(request.secret).filter(|secret| !secret.is_empty());
        let (url, kinds, workspaces) = (request.url, request.kinds, request.workspaces);
        let new = NewWebhook { project, url, kinds, workspaces, secret };
        new.check().map_err(invalid)?;
        let store = self.projects.open(&new.project).await?;
        if request.validate_only {
            return Ok(Response::new(v1::CreateWebhookResponse::default()));
        }
        let last = store.service().store().last_operation();
        let last = last.map_err(|error| Failure::new(Reason::Fault, error.to_string()).into_status())?;
        let (webhook, secret) = self.catalog.create_webhook(&new, Some(last), (self.now)()).await?;
        self.dispatcher.wake();
        Ok(Response::new(v1::CreateWebhookResponse { webhook: Some(webhook_message(&webhook)), secret }))
    }

    async fn get_webhook(&self, request: Request<v1::GetWebhookRequest>) -> Answer<v1::GetWebhookResponse> {
        let webhook = self.catalog.webhook(&id_of(&request.get_ref().name)?).await?;
        Ok(Response::new(v1::GetWebhookResponse { webhook: Some(webhook_message(&webhook)) }))
    }

    async fn list_webhooks(&self, request: Request<v1::ListWebhooksRequest>) -> Answer<v1::ListWebhooksResponse> {
        let request = request.into_inner();
        let limit = page_size(request.page_size)?;
        let after = request.page_token.parse().map_err(|why| invalid(format!("page_token: {why}")))?;
        let mut webhooks = self.catalog.list_webhooks_page(&request.project, &after, limit + 1).await?;
        let next_page_token = next_token(&mut webhooks, limit, |last| ListPlace::behind(last.created, &last.id));
        let webhooks = webhooks.iter().map(webhook_message).collect();
        Ok(Response::new(v1::ListWebhooksResponse { webhooks, next_page_token }))
    }

    async fn delete_webhook(&self, request: Request<v1::DeleteWebhookRequest>) -> Answer<v1::DeleteWebhookResponse> {
        let webhook = self.catalog.delete_webhook(&id_of(&request.get_ref().name)?).await?;
        self.dispatcher.wake();
        Ok(Response::new(v1::DeleteWebhookResponse { webhook: Some(webhook_message(&webhook)) }))
    }

    async fn test_webhook(&self, request: Request<v1::TestWebhookRequest>) -> Answer<v1::TestWebhookResponse> {
        let delivery = self.catalog.queue_test(&id_of(&request.get_ref().name)?, (self.now)()).await?;
        self.dispatcher.wake();
        Ok(Response::new(v1::TestWebhookResponse { delivery: Some(delivery_message(&delivery)) }))
    }

    async fn list_deliveries(&self, request: Request<v1::ListDeliveriesRequest>) -> Answer<v1::ListDeliveriesResponse> {
        let request = request.into_inner();
        let id = id_of(&request.name)?;
        let before = match request.page_token.as_str() {
            "" => i64::MAX,
            token => token.parse().map_err(|_| invalid("page_token: not one of this call's"))?,
        };
        let limit = page_size(request.page_size)?;
        // Fails if the webhook does not exist; one without deliveries has an empty list.
        self.catalog.webhook(&id).await?;
        let found = self.catalog.list_deliveries(&id, before, limit, request.failed).await?;
        let is_full = found.len() == limit as usize;
        let next = found.last().filter(|_| is_full).map_or(String::new(), |last| last.number.to_string());
        let deliveries = found.iter().map(delivery_message).collect();
        Ok(Response::new(v1::ListDeliveriesResponse { deliveries, next_page_token: next }))
    }

    async fn replay_delivery(&self, request: Request<v1::ReplayDeliveryRequest>) -> Answer<v1::ReplayDeliveryResponse> {
        let request = request.into_inner();
        let delivery = self.catalog.replay_delivery(&id_of(&request.name)?, request.number, (self.now)()).await?;
        self.dispatcher.wake();
        Ok(Response::new(v1::ReplayDeliveryResponse { delivery: Some(delivery_message(&delivery)) }))
    }
}

fn invalid(why: impl Into<String>) -> Status {
    Failure::new(Reason::Invalid, why).into_status()
}

fn id_of(name: &str) -> Result<WebhookId, Status> {
    name.strip_prefix("webhooks/").unwrap_or(name).parse().map_err(|why: String| invalid(format!("name: {why}")))
}

/// Returns the project that a request names, by its field or by its header; `default` if it names none.
fn project_of<T>(request: &Request<T>, field: &str) -> Result<ProjectName, Status> {
    let header = request.metadata().get(PROJECT_HEADER).and_then(|value| value.to_str().ok());
    let name = if field.is_empty() { header.unwrap_or(DEFAULT_PROJECT) } else { field };
    ProjectName::new(name).map_err(|why| invalid(format!("project: {why}")))
}

fn webhook_message(webhook: &Webhook) -> v1::Webhook {
    v1::Webhook {
        name: format!("webhooks/{}", webhook.id),
        project: webhook.project.to_string(),
        url: webhook.url.clone(),
        kinds: webhook.kinds.clone(),
        workspaces: webhook.workspaces.clone(),
        create_time: Some(timestamp(webhook.created)),
        position: webhook.position.map(|position| position.to_string()).unwrap_or_default(),
    }
}

fn delivery_message(delivery: &Delivery) -> v1::Delivery {
    let state = match delivery.state {
        DeliveryState::Pending => v1::DeliveryState::Pending,
        DeliveryState::Delivered => v1::DeliveryState::Delivered,
        DeliveryState::Failed => v1::DeliveryState::Failed,
    };
    v1::Delivery {
        number: delivery.number,
        position: delivery.position.map(|position| position.to_string()).unwrap_or_default(),
        kind: delivery.kind.clone(),
        state: state.into(),
        attempts: i32::try_from(delivery.attempts).unwrap_or(i32::MAX),
        status: i32::from(delivery.status),
        error: delivery.error.clone(),
        create_time: Some(timestamp(delivery.created)),
        attempt_time: delivery.attempted.map(timestamp),
        next_time: delivery.next.map(timestamp),
    }
}
