//! The gRPC methods of `EpisodeService`: episodes and their steps.

use amalgam_engine::episode::{Episode, Order, Step, StepDraft, StepId, StepUpdate};
use amalgam_engine::{EpisodeName, OperationContext};
use amalgam_proto::v1::episode_service_server::EpisodeService;
use amalgam_proto::{Reason, episode_id, episode_name, snapshot_name, v1};
use tonic::{Request, Response, Status};

use super::transfer::bridge::Pieces;
use super::{Answers, Api, actor, page_size};
use crate::calls::Kind;
use crate::error::{Error, Result};
use crate::messages::summary_message;
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

/// The most steps in a response.
const STEPS_MAX: u32 = 1_000;

fn episode_message(episode: &Episode) -> v1::Episode {
    v1::Episode {
        name: episode_name(&episode.name),
        create_time: Some(amalgam_proto::timestamp(episode.created)),
        state: episode.state.word().to_owned(),
        metadata: episode.metadata.clone().into_iter().collect(),
    }
}

fn step_message(step: &Step) -> v1::Step {
    v1::Step {
        number: step.id.0,
        snapshot: snapshot_name(step.snapshot),
        parent: step.parent.map_or(0, |parent| parent.0),
        depth: step.depth,
        time: Some(amalgam_proto::timestamp(step.time)),
        reward: step.reward,
        visits: step.visits,
        total: step.total,
        metadata: step.metadata.clone().into_iter().collect(),
    }
}

fn steps_message(steps: &[Step]) -> Vec<v1::Step> {
    steps.iter().map(step_message).collect()
}

fn step_id(number: u64) -> Option<StepId> {
    (number > 0).then_some(StepId(number))
}

fn buffered(act: OperationContext, is_buffered: bool) -> OperationContext {
    if is_buffered { act.buffered() } else { act }
}

/// Records a step: an existing snapshot, or edits that are committed with it.
fn record(service: &Service, actor: &str, request: &v1::RecordStepRequest) -> Result<v1::RecordStepResponse> {
    let (episodes, name) = (&service.context.episodes, episode_id(&request.name)?);
    let act = buffered(service.context.act_for(actor, request)?, request.buffered);
    let parent = step_id(request.parent);
    let here = service.context.here(&request.workspace)?;
    let base = match (request.revision.as_str(), parent) {
        ("", Some(parent)) => Some(episodes.step(&name, parent)?.snapshot),
        ("", None) if here.is_none() => None,
        (revision, _) => Some(service.context.resolve(revision, here.as_ref())?),
    };
    let draft = StepDraft {
        parent,
        reward: request.reward,
        visits: request.visits,
        total: request.total,
        metadata: request.metadata.clone(),
    };
    let id = if request.edits.is_empty() {
        let snapshot = base
            .ok_or_else(|| Error::new(Reason::Invalid, "a step without edits and without a parent needs a revision"))?;
        episodes.record(&name, snapshot, &draft, &act)?
    } else {
        let guard = service.context.permissions.reading(here.as_ref())?;
        let mut tree = service.files.edited_tree(base, &request.edits, guard, &act)?;
        episodes.commit_step(&name, &mut tree, &request.message, &draft, &act)?.step
    };
    Ok(v1::RecordStepResponse { step: Some(step_message(&episodes.step(&name, id)?)) })
}

fn list_steps(service: &Service, request: &v1::ListStepsRequest) -> Result<v1::ListStepsResponse> {
    let (episodes, name) = (&service.context.episodes, episode_id(&request.name)?);
    let limit = page_size(request.page_size)?;
    let wrong = |_| Error::new(Reason::Invalid, "the page token is not one of this call");
    let after = match request.page_token.as_str() {
        "" => None,
        token => step_id(token.parse().map_err(wrong)?),
    };
    let found = match request.parent {
        None => episodes.steps(&name, after, limit)?,
        Some(parent) => episodes.children(&name, step_id(parent), after, limit)?,
    };
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.id.0.to_string());
    Ok(v1::ListStepsResponse { steps: steps_message(&found), next_page_token: next.unwrap_or_default() })
}

fn best(service: &Service, name: &EpisodeName, order: v1::StepOrder, count: u32) -> Result<Vec<Step>> {
    let episodes = &service.context.episodes;
    let order = match order {
        v1::StepOrder::Unspecified => return Ok(episodes.best_leaf(name)?.into_iter().collect()),
        v1::StepOrder::Reward => Order::Reward,
        v1::StepOrder::Mean => Order::Mean,
    };
    Ok(episodes.top(name, count.clamp(1, STEPS_MAX) as usize, order)?)
}

#[tonic::async_trait]
impl EpisodeService for Api {
    type ExportEpisodeStream = Answers<v1::ExportEpisodeResponse>;

    async fn begin_episode(&self, request: Request<v1::BeginEpisodeRequest>) -> Answer<v1::BeginEpisodeResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let name = EpisodeName::new(request.episode_id.as_str())?;
            let act = service.context.act_for(&actor, &request)?;
            let episodes = &service.context.episodes;
            if service.context.done_before(&act)?.is_none() {
                episodes.begin(&name, &request.metadata, &act)?;
            }
            Ok(v1::BeginEpisodeResponse { episode: Some(episode_message(&episodes.get(&name)?)) })
        })
        .await
    }

    async fn get_episode(&self, request: Request<v1::GetEpisodeRequest>) -> Answer<v1::GetEpisodeResponse> {
        let request = request.into_inner();
        self.short(move |service| {
            let episode = service.context.episodes.get(&episode_id(&request.name)?)?;
            Ok(v1::GetEpisodeResponse { episode: Some(episode_message(&episode)) })
        })
        .await
    }

    async fn list_episodes(&self, request: Request<v1::ListEpisodesRequest>) -> Answer<v1::ListEpisodesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let after = match request.page_token.as_str() {
                "" => None,
                token => Some(EpisodeName::new(token)?),
            };
            let limit = page_size(request.page_size)?;
            let found = service.context.episodes.list(&request.prefix, after.as_ref(), limit)?;
            let next = found.last().filter(|_| found.len() == limit).map(|last| last.name.to_string());
            let episodes = found.iter().map(episode_message).collect();
            Ok(v1::ListEpisodesResponse { episodes, next_page_token: next.unwrap_or_default() })
        })
        .await
    }

    async fn record_step(&self, request: Request<v1::RecordStepRequest>) -> Answer<v1::RecordStepResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| record(service, &actor, &request)).await
    }

    async fn update_steps(&self, request: Request<v1::UpdateStepsRequest>) -> Answer<v1::UpdateStepsResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let act = buffered(service.context.act_for(&actor, &request)?, request.buffered);
            let update = |numbers: &v1::StepNumbers| StepUpdate {
                step: StepId(numbers.number),
                reward: numbers.reward,
                visits: numbers.visits,
                total: numbers.total,
            };
            let updates: Vec<_> = request.updates.iter().map(update).collect();
            service.context.episodes.update(&episode_id(&request.name)?, &updates, &act)?;
            Ok(v1::UpdateStepsResponse {})
        })
        .await
    }

    async fn finish_episode(&self, request: Request<v1::FinishEpisodeRequest>) -> Answer<v1::FinishEpisodeResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let (name, act) = (episode_id(&request.name)?, service.context.act_for(&actor, &request)?);
            let episodes = &service.context.episodes;
            if service.context.done_before(&act)?.is_none() {
                episodes.keep(&name, &act)?;
            }
            Ok(v1::FinishEpisodeResponse { episode: Some(episode_message(&episodes.get(&name)?)) })
        })
        .await
    }

    async fn release_episode(&self, request: Request<v1::ReleaseEpisodeRequest>) -> Answer<v1::ReleaseEpisodeResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let (name, act) = (episode_id(&request.name)?, service.context.act_for(&actor, &request)?);
            let episodes = &service.context.episodes;
            if service.context.done_before(&act)?.is_none() {
                episodes.release(&name, &act)?;
            }
            Ok(v1::ReleaseEpisodeResponse { episode: Some(episode_message(&episodes.get(&name)?)) })
        })
        .await
    }

    async fn list_steps(&self, request: Request<v1::ListStepsRequest>) -> Answer<v1::ListStepsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| list_steps(service, &request)).await
    }

    async fn get_best_steps(&self, request: Request<v1::GetBestStepsRequest>) -> Answer<v1::GetBestStepsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let found = best(service, &episode_id(&request.name)?, request.order(), request.count)?;
            Ok(v1::GetBestStepsResponse { steps: steps_message(&found) })
        })
        .await
    }

    async fn get_step_path(&self, request: Request<v1::GetStepPathRequest>) -> Answer<v1::GetStepPathResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let path = service.context.episodes.path_to(&episode_id(&request.name)?, StepId(request.number))?;
            Ok(v1::GetStepPathResponse { steps: steps_message(&path) })
        })
        .await
    }

    async fn compare_steps(&self, request: Request<v1::CompareStepsRequest>) -> Answer<v1::CompareStepsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let (name, before, after) = (episode_id(&request.name)?, StepId(request.before), StepId(request.after));
            let found = service.context.episodes.compare(&name, before, after)?;
            Ok(v1::CompareStepsResponse {
                common: found.common.as_ref().map(step_message),
                before: steps_message(&found.before),
                after: steps_message(&found.after),
                reward_difference: found.reward,
                summary: Some(summary_message(&found.change)),
            })
        })
        .await
    }

    async fn export_episode(&self, request: Request<v1::ExportEpisodeRequest>) -> Answer<Self::ExportEpisodeStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| {
            let pieces = Pieces::new(sender, |data| v1::ExportEpisodeResponse { data });
            let mut out = std::io::BufWriter::with_capacity(64 << 10, pieces);
            service.context.episodes.export(&episode_id(&request.name)?, &mut out)?;
            Ok(())
        })
    }

    async fn drop_episode(&self, request: Request<v1::DropEpisodeRequest>) -> Answer<v1::DropEpisodeResponse> {
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            let act = service.context.act_for(&actor, &request)?;
            let steps = service.context.episodes.drop_episode(&episode_id(&request.name)?, &act)?;
            Ok(v1::DropEpisodeResponse { steps })
        })
        .await
    }
}
