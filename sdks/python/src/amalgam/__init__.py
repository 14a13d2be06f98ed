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
from ._async.episodes import AsyncEpisode, AsyncEpisodes
from ._async.events import AsyncEvents, AsyncSubscription
from ._async.explore import AsyncAttempt
from ._async.files import AsyncFiles
from ._async.history import AsyncHistory
from ._async.merge import AsyncConflict, AsyncMerge
from ._async.snapshots import AsyncLabels, AsyncSnapshots
from ._async.state import AsyncState
from ._async.workspace import AsyncWorkspace
from ._async.workspaces import AsyncWorkspaces
from ._call import EMPTY, Empty, Options, Revision
from ._sync.admin import Keys, Projects, Reviews
from ._sync.client import Amalgam
from ._sync.episodes import Episode, Episodes
from ._sync.events import Events, Subscription
from ._sync.explore import Attempt
from ._sync.files import Files
from ._sync.history import History
from ._sync.merge import Conflict, Merge
from ._sync.snapshots import Labels, Snapshots
from ._sync.state import State
from ._sync.workspace import Workspace
from ._sync.workspaces import Workspaces
from ._version import __version__
from .edits import Edit
from .errors import AmalgamError
from .models import (
    BlamedLines,
    Change,
    ChangeSummary,
    Commit,
    Edited,
    Entry,
    EpisodeInfo,
    FileInfo,
    FileInsight,
    Insight,
    Key,
    Label,
    Match,
    MergedPath,
    MergeResult,
    NewKey,
    Operation,
    Patch,
    Project,
    ProjectUsage,
    QueueEntry,
    ReferenceChange,
    Restored,
    ReviewInfo,
    Risk,
    Snapshot,
    StateValue,
    Status,
    Step,
    StepComparison,
    Submitted,
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
    "AsyncConflict",
    "AsyncEpisode",
    "AsyncEpisodes",
    "AsyncEvents",
    "AsyncFiles",
    "AsyncHistory",
    "AsyncKeys",
    "AsyncLabels",
    "AsyncMerge",
    "AsyncProjects",
    "AsyncReviews",
    "AsyncSnapshots",
    "AsyncState",
    "AsyncSubscription",
    "AsyncWorkspace",
    "AsyncWorkspaces",
    "Attempt",
    "BlamedLines",
    "Change",
    "ChangeSummary",
    "Commit",
    "Conflict",
    "Edit",
    "Edited",
    "Empty",
    "Entry",
    "Episode",
    "EpisodeInfo",
    "Episodes",
    "Events",
    "FileInfo",
    "FileInsight",
    "Files",
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
    "Patch",
    "Project",
    "ProjectUsage",
    "Projects",
    "QueueEntry",
    "ReferenceChange",
    "Restored",
    "ReviewInfo",
    "Reviews",
    "Revision",
    "Risk",
    "Snapshot",
    "Snapshots",
    "State",
    "StateValue",
    "Status",
    "Step",
    "StepComparison",
    "Submitted",
    "Subscription",
    "Version",
    "Workspace",
    "WorkspaceInfo",
    "Workspaces",
    "Written",
    "__version__",
    "edits",
    "errors",
]
