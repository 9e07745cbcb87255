"""TRN-2: one request, published whole or not at all, with any driver call failing, and every way it can end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import torch

from vmmref.conformance.subjects.experiments.requests import (
    Request,
    arrived,
    compare,
    drawn_request,
    some,
    take_home,
    transport_of,
)
from vmmref.conformance.subjects.experiments.trial import Trial, answer_of
from vmmref.errors import VmmRefError
from vmmref.groups import Ranks
from vmmref.transport import FeatureTransport, PublishedRequest
from vmmref_models.operations import DONE, Outcome

_NOT_RESTORED = "a field of the request is not its tensor again"


def request(trial: Trial) -> Outcome:
    """Publish a request, alone or with a tensor among the others that no pool can take; then it is received, aborted,
    or taken back.
    """
    consumers, size = 1 + trial.random.randrange(4), trial.random.choice((4096, 16384))
    with transport_of(trial, consumers=consumers, slots=6, data_size=size) as (pool, transport):
        story = Story(trial, transport, drawn_request(trial), consumers, _groups(trial, consumers))
        unusable = trial.random.randrange(4) == 0
        if unusable:
            story.drawn.hold("unusable", torch.empty(4, device="meta"))
        abandoned = not unusable and not trial.fails_a_call and trial.random.randrange(6) == 0
        with trial.faults():
            answer = answer_of(story.be_abandoned if abandoned else story.play, trial.kept)
        if unusable:
            trial.check(answer.kind != "done", "a request with a tensor that no pool can take was published")
            trial.check(story.drawn.is_untouched(), _NOT_RESTORED)
        take_home(trial, pool, transport)
    # That it failed as it had to is what was asked; a driver call that failed in it is another answer.
    return DONE if unusable and answer.kind == "refused" else answer


def _groups(trial: Trial, consumers: int) -> list[list[int]]:
    """Each rank alone, or the ranks in groups, each with the one that speaks for it first."""
    ranks = trial.random.sample(range(consumers), consumers)
    if trial.chance():
        return [[rank] for rank in ranks]
    cut = trial.random.randrange(consumers)
    return [group for group in (ranks[:cut], ranks[cut:]) if group]


@dataclass(frozen=True, slots=True)
class Story:
    """One request on its way."""

    trial: Trial
    transport: FeatureTransport
    drawn: Request
    consumers: int
    groups: list[list[int]]

    def play(self) -> None:
        """Publish the request and bring it to one of its ends; raises the first error."""
        try:
            published = self._publish()
        except VmmRefError:
            self.trial.check(self.drawn.is_untouched(), _NOT_RESTORED)
            raise
        if self.trial.random.randrange(3) == 0:
            self._take_back(published)
        else:
            self._hand_out()

    def _publish(self) -> PublishedRequest:
        single = some(self.trial, self.drawn.contents)
        if self.trial.chance():
            return asyncio.run(self.transport.publish_async(self.drawn.fields, single=single, groups=self.groups))
        return self.transport.publish(self.drawn.fields, single=single, groups=self.groups)

    def be_abandoned(self) -> None:
        """The request's task is cancelled while a thread publishes it."""
        asyncio.run(self._abandon())

    async def _abandon(self) -> None:
        """Nobody waits for the publication any more: whatever has come of it until then is undone."""
        task = asyncio.create_task(self.transport.publish_async(self.drawn.fields, groups=self.groups))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            # It was faster.
            self.transport.cancel(task.result())
        self.trial.check(self.drawn.is_untouched(), _NOT_RESTORED)
        # What the thread still does for it comes before this.
        self.transport._thread.submit(lambda: None).result()

    def _hand_out(self) -> None:
        """Each rank, or the one that speaks for it, receives the request or aborts it; raises the first error."""
        failures: list[VmmRefError] = []
        for group in self.groups:
            try:
                if self.trial.random.randrange(4) == 0:
                    self._abort(group)
                else:
                    self._receive(group)
            except VmmRefError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _receive(self, group: list[int]) -> None:
        # CON-4: no abort behind a failure here; a rank that cannot receive a request has released all of it by itself.
        received = self.transport.receive(self._arrived(), self.trial.ground.device, self.consumers, _acting(group))
        compare(self.trial, self.drawn, received)

    def _abort(self, group: list[int]) -> None:
        fields, device = self._arrived(), self.trial.ground.device
        try:
            self.transport.abort(fields, self.consumers, _acting(group), device=device)
        except VmmRefError:
            # CON-4: an abort whose driver failed it can be called again.
            answer_of(lambda: self.transport.abort(fields, self.consumers, _acting(group), device=device))
            raise

    def _arrived(self) -> dict[str, Any]:
        return arrived(self.trial, self.drawn)

    def _take_back(self, published: PublishedRequest) -> None:
        """The producer takes the request back, once or twice."""
        try:
            self.transport.cancel(published)
        except VmmRefError:
            # What failed can be tried again, unless the whole pool has failed.
            answer_of(lambda: self.transport.cancel(published))
            raise
        finally:
            self.trial.check(self.drawn.is_untouched(), _NOT_RESTORED)
        if self.trial.chance():
            self.transport.cancel(published)


def _acting(group: list[int]) -> Ranks:
    """Whom a consumer names that acts for a group."""
    return group if len(group) > 1 else group[0]
