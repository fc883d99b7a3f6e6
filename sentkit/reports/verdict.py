"""The verdict about vectors from elsewhere, as a record and in one sentence: they are those of a
model, or the causes why not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sentkit.digits import significant
from sentkit.model.causes.compared import EQUAL, Result

OTHER_WEIGHTS = "other weights: another revision, an adapter, or fewer bits"
ANOTHER_MODEL = "another model of the same width"


@dataclass(frozen=True, slots=True)
class Cause:
    name: str
    explained_texts: int  # of the differing texts
    differing_texts: int
    share: float = 1.0  # of the difference that it removes
    same: Sequence[str] = ()  # other causes that give the same vectors

    def record(self) -> dict[str, Any]:
        return {
            "cause": self.name,
            "texts": self.explained_texts,
            "of": self.differing_texts,
            "share": self.share,
            "same_vectors": list(self.same),
        }


@dataclass(frozen=True, slots=True)
class Repeats:
    """How many of the compared vectors are equal to that of another row."""

    vectors: int  # that were compared
    repeated: int  # of the file
    repeated_by_model: int

    @property
    def are_most(self) -> bool:
        """Whether most vectors of a side are equal to one of another row. The few different ones
        also rank the texts alike, if a program gave texts of a batch the vector of its first text.
        """
        return max(self.repeated, self.repeated_by_model) > self.vectors / 2


@dataclass(frozen=True, slots=True)
class Trials:
    """The changes of the model that were tried."""

    texts: int = 0  # that were encoded with changes
    results: Sequence[Result] = ()
    result_as_declared: Result | None = None  # without a change; None: it has another width
    best: Result | None = None  # that explains the difference


@dataclass(frozen=True, slots=True)
class Verdict:
    file: str
    model: str
    width: int  # of the vectors of the model
    compared: int  # texts, those of `refused` not among them
    refused: int
    repeats: Repeats
    causes: tuple[Cause, ...] = ()
    example: str = ""  # of missing vectors, or of another order
    # Apart from the causes and the factor, the vectors are those of the model.
    equal_but_for_causes: bool = False
    factor: float | None = None  # of the lengths, A by the model
    largest_distance: float | None = None  # of equal vectors
    rounding: float | None = None  # of bf16, if the distance is as large
    same_directions: bool = False  # as declared, but with other lengths
    trials: Trials = Trials()
    kind_of_model: str = ""  # of a model that cannot be changed
    equal_vectors: int = 0  # those of the model as declared, if these are at least half of all
    different_row: int = 0  # of the other vectors, the row that differs most

    @property
    def is_guess(self) -> bool:
        """Whether no setting explains the vectors, and the causes only say what they look like."""
        return bool(self.causes) and self.causes[0].name in (OTHER_WEIGHTS, ANOTHER_MODEL)

    @property
    def is_explained(self) -> bool:
        has_cause = bool(self.causes) and not self.is_guess
        return self.equal_but_for_causes or self.factor is not None or has_cause

    def with_cause(self, cause: Cause, example: str = "") -> "Verdict":
        """With another cause; its example replaces that of the earlier ones."""
        return replace(self, causes=(*self.causes, cause), example=example or self.example)

    def record(self) -> dict[str, Any]:
        is_equal = self.equal_but_for_causes and not self.causes and self.factor is None
        record: dict[str, Any] = {"equal": is_equal}
        if self.largest_distance is not None:
            record["within"] = self.largest_distance
        if self.rounding is not None:
            record["rounding_in_bf16"] = self.rounding
        if not is_equal:
            record["explained"] = self.is_explained
        record["text"] = self.text()
        if is_equal:
            return record
        if self.factor is not None:
            record["factor"] = self.factor
        record["changes"] = [cause.name for cause in self.causes]
        record["causes"] = [cause.record() for cause in self.causes]
        if self.trials.texts:
            record["texts"] = self.trials.texts
            record["variants"] = [result.record() for result in self.trials.results]
        return record

    def text(self) -> str:
        """One sentence."""
        text = self.text_of_compared()
        if self.refused:
            text += f"; {self.refused} of {self.compared + self.refused} texts were refused"
        return text

    def text_of_compared(self) -> str:
        if self.causes:
            return self.text_of_causes()
        if self.equal_but_for_causes:
            return self.text_of_equal()
        if self.equal_vectors:
            return self.text_of_other_rows()
        if self.same_directions:
            return (
                f"{self.file} has the directions of {self.model} as declared, but other lengths, "
                f"which nothing explains"
            )
        repeats = ""
        repeated = self.repeats.repeated
        repeated_by_model = self.repeats.repeated_by_model
        if self.repeats.are_most and repeated > repeated_by_model:
            repeats = (
                f"; {repeated:,} of {self.repeats.vectors:,} vectors are equal to that of another "
                f"row, of the model {repeated_by_model:,}"
            )
        if self.kind_of_model:
            text = f"no cause is known for the difference from {self.model}, {self.kind_of_model}"
            return text + repeats
        declared = f"its vectors have {self.width} numbers"
        if self.trials.result_as_declared is not None:
            declared = measured(self.trials.result_as_declared)
        return f"nothing explains the difference ({declared}){repeats}"

    def text_of_equal(self) -> str:
        if self.factor is not None:
            return (
                f"{self.file} has the directions of {self.model} as declared"
                f"{with_factor(self.factor)}"
            )
        text = f"{self.file} has the vectors that {self.model} gives as declared"
        if self.largest_distance is not None and self.largest_distance > EQUAL:
            text += f", within {self.largest_distance:.1e}"
        if self.rounding is not None:
            text += f", as by rounding in bf16 ({self.rounding:.1e} with this model)"
        return text

    def text_of_other_rows(self) -> str:
        text = (
            f"{self.equal_vectors:,} of {self.repeats.vectors:,} vectors of {self.file} are those "
            f"that {self.model} gives as declared; nothing explains "
        )
        if self.repeats.vectors - self.equal_vectors == 1:
            return text + f"row {self.different_row}"
        return text + f"the others, of which row {self.different_row} differs most"

    def text_of_causes(self) -> str:
        names = [cause.name for cause in self.causes]
        text = f"{self.file} has the vectors of {self.model} with {' and '.join(names)}"
        if self.is_guess:
            text = f"no setting explains {self.file}; it looks like {names[0]}"
        if self.example:
            text += f": {self.example}"
        if self.factor is not None:
            text += with_factor(self.factor)
        for cause in self.causes:
            if cause.same:
                text += f"; {' or '.join(cause.same)} gives the same vectors"
        explained = self.causes[-1].explained_texts
        differing = self.causes[-1].differing_texts
        if explained < differing:
            text += f"; tried with {explained} of {differing} texts that differ"
        if self.trials.best is not None:
            declared = f"width {self.width}"
            if self.trials.result_as_declared is not None:
                declared = measured(self.trials.result_as_declared)
            text += f" ({measured(self.trials.best)}; as declared: {declared})"
        return text


def with_factor(factor: float) -> str:
    return f"; the length differs by the factor {significant(factor)}"


def measured(result: Result) -> str:
    return (
        f"mean cosine {significant(float(result.cosines.mean()))}, mean norm ratio "
        f"{significant(float(result.ratios.mean()))}"
    )
