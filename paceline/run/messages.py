"""What a session and its run say to each other: typed structs over the group's channel."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec

from paceline.air.validation import TakenArguments
from paceline.run.debug_messages import ForConsole, FromConsole
from paceline.run.timing import StepTimes

MOST_IN_FLIGHT = 2
"""Background checkpoints that may wait to be committed before report() waits for one of them."""


class StagedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that a rank's process has written, hashed and synced, ready to be renamed."""

    path: bytes
    """The staging directory; empty when the content is an attachment instead. Paths travel as
    bytes: not every file name is text."""
    number: int
    size: int
    score: float | None = None
    """The score attribute's value in the checkpoint's dict, if it has one."""
    manifest: bytes | None = None
    """Where the rank does not see the driver's disk; `path` is then the name that it has given to its files."""


class Report(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One call of report() on one rank."""

    index: int
    metrics: dict[str, Any]
    stamp: float
    """When, by the driver's wall clock."""
    elapsed: float
    """Seconds of monotonic time since the rank's session began."""
    finite: bool = True
    """False if some number is NaN or infinite (plain JSON cannot say those)."""
    waits: bool = False
    """The rank is blocked until it gets the Answer to this index."""
    checkpoint: StagedCheckpoint | None = None
    checkpoint_follows: bool = False
    """The checkpoint of this index is being written in the background (CheckpointReady)."""
    reduce: dict[str, str] | None = None
    weights: dict[str, float] | None = None
    """What this rank counts in keys that are reduced by weight."""
    data: dict[str, dict[str, Any]] | None = None
    """Where the rank is in each of its datasets."""
    with_checkpoint: bool = False
    """The call had a checkpoint, whether or not this rank's files are kept."""
    times: StepTimes | None = None
    """Of the steps that ended since the rank's last report that had them."""
    of_all_ranks: bool = False
    """The checkpoint consists of the parts of all ranks."""
    validation: dict[str, Any] | None = None
    """The checkpoint is to be validated, with these arguments. Rank 0 says so."""


class CheckpointReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A checkpoint that did not come with its report is staged: written in the background, or made afterwards."""

    index: int
    checkpoint: StagedCheckpoint
    of_all_ranks: bool = False
    """It consists of the parts of all ranks."""


class CheckpointFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A checkpoint that was being written in the background could not be stored."""

    index: int
    message: str


class Finished(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The train function returned (or stopped when it was asked to) after `reports` reports."""

    reports: int
    stopped: bool = False


class Warned(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Something the user should know, found out in a worker."""

    text: str


class Meeting(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A rank waits for all others to make the same call."""

    number: int
    """How many such calls the rank has made."""
    called: str
    content: bytes | None = None
    """What rank 0 sends to the others."""


ALONE_S = 0.2
"""For how long a rank may answer its questions by itself: so much later it hears of a preemption."""


class Question(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A rank asks whether to save, or whether the run is preempted, and waits for the driver's answer."""

    number: int
    """How often the rank has asked this: the n-th question of all ranks is one question."""
    of_preemption: bool = False
    """The call was preempted(), not should_checkpoint()."""
    saving_s: float = 0.0
    """How long checkpoints have kept the rank's loop from its work so far ..."""
    asking_s: float = 0.0
    """... and how long it has waited for answers to questions."""
    ahead: int = 0
    """How many more such questions it is about to ask in a short time: it would like to answer them by itself."""
    of_other_kind: int = 0
    """How many questions of the other kind it has asked or answered: if the run is preempted, the next one of either
    kind goes to the driver."""


class ValidationReturned(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What the validation function has returned on rank 0 of its workers."""

    metrics: dict[str, Any]


class Terminated(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The rank's process got a signal that asks it to end."""

    signal: int


class CheckpointPiece(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A part of a file of a checkpoint, for a driver whose disk the rank does not see; the content is attached."""

    staging: str
    """The name that the rank has given to the checkpoint's files."""
    name: bytes
    mode: int = 0
    is_last: bool = False
    is_directory: bool = False
    """An empty one."""


class CheckpointWanted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A rank that does not see the driver's disk wants to know a checkpoint's files, or a part of one of them."""

    number: int | None
    """Of a committed one, or that which has taken its place; None: that which the run starts from."""
    name: bytes | None = None
    offset: int = 0
    most: int = 0
    """Bytes."""
    all_kept: bool = False
    """Nothing but which ones are kept."""


class Printed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What rank 0 has printed, for a file of the trial's directory that it does not see."""

    name: str
    text: str


ForTarget = CheckpointPiece | CheckpointWanted | Printed
"""What ranks that do not see the driver's disk say to the run's CheckpointTarget."""
ForPreemption = Question | Terminated
ASIDES = (Question, Warned, Printed, Terminated)
"""What a rank can say again and again without coming any further."""
FromWorker = Report | CheckpointReady | CheckpointFailed | Warned | Meeting | Finished
AnyFromWorker = FromWorker | ForTarget | ForPreemption | ForConsole | ValidationReturned


class Acknowledged(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Rows up to `index` are in the journal: the rank may run further ahead."""

    index: int
    checkpoints: int = 0
    """How many background checkpoints have been committed in this attempt."""


class Answer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to a report that waits."""

    index: int
    stop: bool = False
    reduced: dict[str, float] | None = None
    continues: bool = False
    """After the stop, with another attempt."""


class Hold(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A graceful stop is being prepared: from now on every report waits for its decision. Or no longer."""

    on: bool = True


class Met(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All ranks have come to a meeting, or the run stops."""

    number: int
    content: bytes | None = None
    stop: bool = False


class Notice(msgspec.Struct, frozen=True, array_like=True):
    """Of a preemption."""

    reason: str
    deadline: float
    """By the driver's wall clock."""


class Told(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to a Question."""

    number: int
    of_preemption: bool = False
    is_due: bool = False
    """Save now."""
    notice: Notice | None = None
    """The run is preempted: from here on every report waits for its decision."""
    no_until: int = 0
    """The rank may answer the questions up to this one with no by itself, for `ALONE_S`."""


class CheckpointFile(msgspec.Struct, frozen=True, array_like=True):
    """One of a checkpoint's files, or an empty directory."""

    name: bytes
    size: int
    mode: int
    is_directory: bool


class CheckpointFiles(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to CheckpointWanted; a part of a file is attached."""

    number: int | None
    """None also if there is no such checkpoint."""
    files: list[CheckpointFile] = []
    kept: list[tuple[int, dict[str, Any]]] = []
    """The numbers of those that are kept, and the rows they were reported with."""
    problem: str = ""
    """Why the files cannot be listed."""


ToWorker = CheckpointFiles | Acknowledged | Answer | Hold | Met | Told | FromConsole


class SharedPathSetup(msgspec.Struct, frozen=True, tag=True):
    """Checkpoints are written into the trial's directory."""


class InMemorySetup(msgspec.Struct, frozen=True, tag=True):
    """Checkpoints are attached to their reports."""


class RemotePrefixSetup(msgspec.Struct, frozen=True, tag=True):
    """Checkpoints are uploaded to the run's storage."""

    uri: str
    filesystem: bytes | None = None
    """Pickled, where the user has given one."""


class RelayedSetup(msgspec.Struct, frozen=True, tag=True):
    """Checkpoints are sent to the driver in pieces."""


TargetSetup = SharedPathSetup | InMemorySetup | RemotePrefixSetup | RelayedSetup


class TrialResources(msgspec.Struct, frozen=True):
    """What the trial was given. Equal bundles in a row are counted: every rank is told of those of all ranks."""

    bundles: list[tuple[dict[str, float], int]]
    strategy: str

    @classmethod
    def of(cls, bundles: Iterable[dict[str, float]], strategy: str) -> TrialResources:
        return cls([(bundle, len(list(equal))) for bundle, equal in groupby(bundles)], strategy)

    def as_dict(self) -> dict[str, Any]:
        """The arguments of a PlacementGroupFactory."""
        bundles = [bundle for bundle, count in self.bundles for _ in range(count)]
        return {"bundles": bundles, "strategy": self.strategy}


class SessionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rank's session needs to know, sent once at its start. The first six are the attempt's to fill in."""

    world_rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    wall_offset_s: float = 0.0
    """What to add to the rank's wall clock to get the driver's, as it was at the start: rows of all hosts, and the
    journal, are stamped by one clock."""
    trial_name: str
    trial_id: str
    trial_dir: bytes
    """Only its name, if the rank does not see the driver's disk: it gets a directory of its own by that name."""
    experiment_name: str
    is_elastic: bool = False
    """The number of workers may change between attempts."""
    previous_world_size: int | None = None
    """Of the attempt that saved the checkpoint to continue from."""
    resources: TrialResources | None = None
    metadata: dict[str, Any]
    attempt: int
    start_index: int
    """Iterations that are already done."""
    next_number: int
    """The number of the next checkpoint."""
    decides: bool
    """Somebody may stop the run at any report, so that every report waits for its answer."""
    resume_path: bytes | None = None
    """The checkpoint to continue from: a local directory ..."""
    resume_seal: str | None = None
    """... whose files, as long as they are still the same, the driver has verified ..."""
    resume_uri: str | None = None
    """... or somewhere else ..."""
    resume_in_memory: bool = False
    """... or an attachment of the first message ..."""
    resume_relayed: bool = False
    """... or files that the rank has to ask the driver for."""
    target: TargetSetup = SharedPathSetup()
    """Where checkpoints go."""
    async_save: bool = False
    keep_all_ranks: bool = False
    score_attribute: str | None = None
    data_state: dict[str, Any] | None = None
    """Where the ranks were in each dataset when the checkpoint to continue from was reported."""
    number_offset: int | None = None
    """Checkpoints are numbered by iteration, beginning after this one; None: they are counted."""
    output_files: tuple[str, str] | None = None
    """In the trial's directory, where rank 0 copies what it prints."""
    in_search: bool = False
    """It is a trial of a search, in which breakpoint() is rejected."""
    post_mortem: bool = False
    """The debugger opens when the train function raises."""
    validation: TakenArguments | None = None
    """What the validation function takes; None: checkpoints are not validated."""
    validation_kwargs: dict[str, Any] = {}
    """Of a validation worker: what to call the function with."""
    gives_way: bool = False
    """It runs at a lower priority than others on its machine."""
    window: int = 1000
    """How many rows a rank may run ahead of the journal."""


encode = msgspec.msgpack.Encoder().encode
decode_from_worker = msgspec.msgpack.Decoder(AnyFromWorker).decode
decode_setup = msgspec.msgpack.Decoder(SessionSetup).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
