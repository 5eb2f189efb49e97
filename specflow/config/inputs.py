"""Where prompts come from, in which form they are, and how several sources become one set."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from specflow.config.base import NAME_IN_KEY, NOT_IN_KEY, InputPath, Section, wrong

Form = Literal["auto", "messages", "sharegpt", "pairs", "text"]


class FieldNames(Section):
    """The keys of a row that hold what a form needs; none: the usual names of the form."""

    id: str | None = Field(default=None, description="Id of the row; none: `id`.")
    messages: str | None = Field(default=None, description="List of turns; none: `messages` or `conversations`.")
    tools: str | None = Field(default=None, description="Tools that the model may call; none: `tools`.")
    system: str | None = Field(default=None, description="System prompt; none: `system` or `system_prompt`.")
    prompt: str | None = Field(
        default=None, description="`pairs`: the question; none: `prompt`, `instruction`, `question` or `query`."
    )
    input: str | None = Field(
        default=None, description="`pairs`: text that follows the question after a blank line; none: `input`."
    )
    response: str | None = Field(
        default=None,
        description="`pairs`: the answer; none: `response`, `completion`, `output` or `answer`.",
    )
    text: str | None = Field(default=None, description="`text`: the preformatted text; none: `text`.")


class Markers(Section):
    """What begins and ends the turns of a preformatted text."""

    user: str = Field(min_length=1, description="Begins a user's turn, for example `### Human:`.")
    assistant: str = Field(min_length=1, description="Begins an assistant's turn, for example `### Assistant:`.")
    system: str | None = Field(default=None, min_length=1, description="Begins the system prompt.")
    end: str | None = Field(default=None, min_length=1, description="Ends a turn, for example `</s>`.")


class PromptSource(Section):
    """Prompts of one kind: a file, a directory of a dataset, or a dataset of the hub."""

    path: InputPath | None = Field(
        default=None,
        description="JSON lines, JSON or Parquet file, or the directory of a dataset; relative to the configuration "
        "file.",
        json_schema_extra=NAME_IN_KEY,
    )
    dataset: str | None = Field(default=None, min_length=1, description="Dataset of the hub, `owner/name`.")
    name: str | None = Field(default=None, description="Configuration (subset) of the dataset.")
    split: str = Field(default="train", min_length=1, description="Split of the dataset.")
    revision: str | None = Field(
        default=None,
        description="Commit of the hub's dataset. Without it, the newest is taken and recorded; one that is newer than "
        "an artifact is not noticed.",
    )
    kind: str = Field(min_length=1, description="Name of this kind of prompt in every report, for example `service`.")
    form: Form = Field(
        default="auto",
        description="`messages` (OpenAI), `sharegpt` (`conversations` of `from` and `value`), `pairs` (prompt and "
        "response), `text` (preformatted, with `markers`); `auto`: by the keys of the first rows.",
    )
    fields: FieldNames = Field(default=FieldNames(), description="Keys of a row, where they are not the usual ones.")
    markers: Markers | None = Field(default=None, description="Turns of a preformatted text (`form: text`).")
    thinking: bool | None = Field(
        default=None, description="Thinking mode of rows that do not say it themselves; none: the template's default."
    )
    limit: int | None = Field(default=None, ge=1, description="Use only the first rows of the source.")
    weight: float | None = Field(
        default=None, gt=0, description="Share in the mixture, relative to the split's other sources."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.dataset is None):
            found = "neither" if self.path is None else "both"
            raise wrong("a source is in one place", found=found, expected="either `path` or `dataset`")
        if self.path is not None and self.revision is not None:
            raise wrong("only the hub has revisions", found=self.revision, expected="no `revision` beside `path`")
        if self.form == "text" and self.markers is None:
            raise wrong(
                "the turns of a text cannot be told apart",
                found="no markers",
                expected="`markers` with user, assistant",
            )
        return self

    @property
    def place(self) -> str:
        """How messages name the source."""
        if self.path is not None:
            return str(self.path)
        return ":".join(part for part in (self.dataset, self.name, self.split) if part)

    @property
    def rows_of(self) -> tuple[str, str | None, str | None]:
        """Which rows the source has: two sources with the same ones are one."""
        in_splits = self.path is None or self.path.is_dir()
        return str(self.path or self.dataset), self.name, self.split if in_splits else None

    @property
    def stem(self) -> str:
        """The part of a row's id that names the source."""
        return self.path.stem if self.path is not None else str(self.dataset).rpartition("/")[2]


class InputParams(Section):
    """Which rows of the sources are used."""

    duplicates: Literal["drop", "keep"] = Field(
        default="drop", description="Prompts whose messages and tools are those of an earlier one."
    )
    near_duplicates: float | None = Field(
        default=None,
        gt=0.3,
        le=1.0,
        description="Set aside training prompts this similar (Jaccard index of their word triples) to an earlier or a "
        "held-out prompt; none: only equal ones. 0.8 is usual.",
    )
    min_characters: int = Field(default=0, ge=0, description="Shortest prompt, in characters of all its messages.")
    max_characters: int | None = Field(default=None, ge=1, description="Longest prompt, in characters.")
    rows: int | None = Field(
        default=None, ge=1, description="Training rows of a mixture by `weight`; none: as many as the weights allow."
    )
    seed: int = Field(default=0, ge=0, description="Which rows a mixture by `weight` draws.")
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Processes that read the sources; none: one per core, where they are large enough.",
        json_schema_extra=NOT_IN_KEY,
    )


def weights_problem(sources: tuple[PromptSource, ...]) -> str | None:
    """What is wrong with the weights of a split's sources, if anything."""
    without = [i for i, source in enumerate(sources) if source.weight is None]
    if without and len(without) < len(sources):
        return f"source {without[0]} has no weight, others have one"
    return None
