r"""Client of Amalgam: versioned workspaces for agents, with forks, snapshots, diffs and merges.

``Amalgam`` is the blocking client, ``AsyncAmalgam`` the same for asyncio::

    import amalgam

    client = amalgam.Amalgam("http://127.0.0.1:8080", api_key="am_...")
    ws = client.workspaces.create("fix-auth")
    ws.files.write("a.py", "print(1)\n")
    ws.commit("first version")
"""

from __future__ import annotations

from . import edits, errors
from ._async.admin import AsyncKeys, AsyncProjects, AsyncReviews
from ._async.client import AsyncAmalgam
from ._async.commands import AsyncCommand, AsyncCommands
from ._async.episodes import AsyncEpisode, AsyncEpisodes
from ._async.events import AsyncEvents, AsyncSubscription
from ._async.explore import AsyncAttempt
from ._async.files import AsyncFiles
from ._async.history import AsyncHistory
from ._async.merge import AsyncConflict, AsyncMerge
from ._async.policy import AsyncPolicies
from ._async.radar import AsyncRadar
from ._async.sandboxes import AsyncSandbox, AsyncSandboxes, AsyncTemplates
from ._async.snapshots import AsyncLabels, AsyncSnapshots
from ._async.state import AsyncState
from ._async.terminals import AsyncTerminal, AsyncTerminals
from ._async.workspace import AsyncWorkspace
from ._async.workspaces import AsyncWorkspaces
from ._call import EMPTY, Empty, Options, Revision
from ._sync.admin import Keys, Projects, Reviews
from ._sync.client import Amalgam
from ._sync.commands import Command, Commands
from ._sync.episodes import Episode, Episodes
from ._sync.events import Events, Subscription
from ._sync.explore import Attempt
from ._sync.files import Files
from ._sync.history import History
from ._sync.merge import Conflict, Merge
from ._sync.policy import Policies
from ._sync.radar import Radar
from ._sync.sandboxes import Sandbox, Sandboxes, Templates
from ._sync.snapshots import Labels, Snapshots
from ._sync.state import State
from ._sync.terminals import Terminal, Terminals
from ._sync.workspace import Workspace
from ._sync.workspaces import Workspaces
from ._version import __version__
from .edits import Edit
from .errors import AmalgamError
from .models import (
    BatchDeleted,
    BlamedLines,
    Change,
    ChangeSummary,
    CommandEvent,
    CommandInfo,
    CommandResult,
    Commit,
    Edited,
    EnforcedLimit,
    Entry,
    EpisodeInfo,
    FileInfo,
    FileInsight,
    Followed,
    FollowUpdate,
    ForkRun,
    Insight,
    Key,
    Label,
    Match,
    MergedPath,
    MergeResult,
    NewKey,
    Operation,
    Overlap,
    OverlapPair,
    OverlapSide,
    Patch,
    Permission,
    Policy,
    PolicyComplaint,
    PolicySet,
    PortUrl,
    Project,
    ProjectUsage,
    QueueEntry,
    ReferenceChange,
    Restored,
    ReviewInfo,
    Risk,
    SandboxInfo,
    SandboxLogs,
    SandboxStats,
    Snapshot,
    StateValue,
    Status,
    Step,
    StepComparison,
    Submitted,
    Template,
    Version,
    WorkspaceInfo,
    Written,
)

__all__ = [
    "EMPTY",
    "Amalgam",
    "AmalgamError",
    "AsyncAmalgam",
    "AsyncAttempt",
    "AsyncCommand",
    "AsyncCommands",
    "AsyncConflict",
    "AsyncEpisode",
    "AsyncEpisodes",
    "AsyncEvents",
    "AsyncFiles",
    "AsyncHistory",
    "AsyncKeys",
    "AsyncLabels",
    "AsyncMerge",
    "AsyncPolicies",
    "AsyncProjects",
    "AsyncRadar",
    "AsyncReviews",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncSnapshots",
    "AsyncState",
    "AsyncSubscription",
    "AsyncTemplates",
    "AsyncTerminal",
    "AsyncTerminals",
    "AsyncWorkspace",
    "AsyncWorkspaces",
    "Attempt",
    "BatchDeleted",
    "BlamedLines",
    "Change",
    "ChangeSummary",
    "Command",
    "CommandEvent",
    "CommandInfo",
    "CommandResult",
    "Commands",
    "Commit",
    "Conflict",
    "Edit",
    "Edited",
    "Empty",
    "EnforcedLimit",
    "Entry",
    "Episode",
    "EpisodeInfo",
    "Episodes",
    "Events",
    "FileInfo",
    "FileInsight",
    "Files",
    "FollowUpdate",
    "Followed",
    "ForkRun",
    "History",
    "Insight",
    "Key",
    "Keys",
    "Label",
    "Labels",
    "Match",
    "Merge",
    "MergeResult",
    "MergedPath",
    "NewKey",
    "Operation",
    "Options",
    "Overlap",
    "OverlapPair",
    "OverlapSide",
    "Patch",
    "Permission",
    "Policies",
    "Policy",
    "PolicyComplaint",
    "PolicySet",
    "PortUrl",
    "Project",
    "ProjectUsage",
    "Projects",
    "QueueEntry",
    "Radar",
    "ReferenceChange",
    "Restored",
    "ReviewInfo",
    "Reviews",
    "Revision",
    "Risk",
    "Sandbox",
    "SandboxInfo",
    "SandboxLogs",
    "SandboxStats",
    "Sandboxes",
    "Snapshot",
    "Snapshots",
    "State",
    "StateValue",
    "Status",
    "Step",
    "StepComparison",
    "Submitted",
    "Subscription",
    "Template",
    "Templates",
    "Terminal",
    "Terminals",
    "Version",
    "Workspace",
    "WorkspaceInfo",
    "Workspaces",
    "Written",
    "__version__",
    "edits",
    "errors",
]
