"""The sections of a job file about federated clients: [participation], who answers, and [message], what is
sent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mpifed.config.section import Section
from mpifed.config.tables import describe
from mpifed.core.compression import Compression
from mpifed.core.participation import Law, Probabilities, Trace, Weighted, one_each

__all__ = ["Message", "Participation"]


class Participation(Section):
    """[participation]: who takes part in a round and how much each counts."""

    cohort: int | None = Field(None, ge=1, description="clients drawn for a round; all when left out")
    weights: Literal["uniform", "samples"] = Field(
        "uniform", description="equal weights, or by number of samples"
    )
    law: Law | None = Field(
        None,
        description="who can be reached in a round and how a cohort is drawn of them; uniform when left out",
    )
    contacted: int | None = Field(
        None, ge=1, description="clients asked for a cohort: the first that answer, of these, are the cohort"
    )
    dropout: Probabilities | None = Field(
        None,
        description="probability that a client that is asked does not answer in a phase, or one a client",
    )

    @model_validator(mode="after")
    def _goes_together(self):
        if self.contacted is not None and self.contacted < (self.cohort or self.contacted + 1):
            got = "none" if self.cohort is None else f"cohort = {self.cohort}"
            raise ValueError(
                f"contacted = {self.contacted} clients need a cohort of at most as many, got {got}"
            )
        if isinstance(self.law, Weighted) and self.cohort is None:
            raise ValueError("law = 'weighted' says how a cohort is drawn: set cohort, the number of clients")
        others = {"contacted": self.contacted, "dropout": self.dropout}
        if self.law and self.law.unbiased and not isinstance(self.law, Weighted):
            others["cohort"] = self.cohort
        given = [name for name, value in others.items() if value is not None]
        if self.law and self.law.unbiased and given:
            raise ValueError(
                "law.unbiased divides by the probability that a client answers, which is not known with "
                f"{' and '.join(given)}: leave out one or the other"
            )
        return self

    def expect(self, clients: int) -> None:
        """Hold the settings against the number of clients.

        Raises:
            ValueError: they do not fit; one sentence.
        """
        for name in ("cohort", "contacted"):
            value = getattr(self, name)
            if value is not None and value > clients:
                raise ValueError(f"participation.{name} = {value} is more than problem.clients = {clients}")
        self.members(clients)

    def partial(self, clients: int) -> str:
        """The setting by which clients may be absent in a round, as in a job file; "" where all answer."""
        if self.law and self.law.share(clients) < 1 or isinstance(self.law, Trace):
            return f"participation.law = {self.law.choice_name!r}"
        if self.dropout is not None and one_each(self.dropout, clients, "participation.dropout").any():
            return "participation.dropout"
        if self.cohort not in (None, clients):
            return f"participation.cohort = {self.cohort} of {clients}"
        return ""

    def members(self, clients: int) -> int:
        """The number of clients that answer in a phase: the expected one, at least 1, where it is by chance.

        Raises:
            ValueError: the settings do not fit this number of clients.
        """
        reached = (self.law.share(clients) if self.law else 1.0) * clients
        asked = min(reached, self.contacted or self.cohort or clients)
        answering = asked * (1 - one_each(self.dropout or 0.0, clients, "participation.dropout").mean())
        return max(1, round(min(answering, self.cohort or clients)))

    def table(self) -> dict:
        """The section as a job file has it; of what came later only what is set."""
        later = {"law": describe(self.law), "contacted": self.contacted, "dropout": describe(self.dropout)}
        chosen = {name: value for name, value in later.items() if value is not None}
        return {"cohort": self.cohort, "weights": self.weights, **chosen}


class Message(Section):
    """[message]: how clients compress what they send."""

    compression: Compression | None = Field(
        None, description='compression of each field of a message, e.g. { name = "top-k", ratio = 0.01 }'
    )
    error_feedback: bool = Field(
        False, description="each client adds to its next message what compression has left out of the last"
    )

    @model_validator(mode="after")
    def _compresses(self):
        if self.error_feedback and self.compression is None:
            raise ValueError(
                "error_feedback is about what compression leaves out: set compression, or leave it out"
            )
        return self

    def table(self) -> dict:
        """The section as a job file has it."""
        return {"compression": describe(self.compression), "error_feedback": self.error_feedback}
