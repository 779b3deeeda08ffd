"""The exchange of FedSage+ section 4.3: generators learn from nodes of other silos, by gradients.

A silo sends its neighbour head and that head's inputs; every other silo finds for each generated
neighbour the nearest of its own rows (features, or embeddings) and gives back the gradient of the
squared distances; the server adds the gradients up, and the silo makes one step with the sum.

What this still reveals stands in docs/methods/fedsage-plus.md: whoever knows a head's inputs, its
owner and the server, can solve the gradients for the rows that were found where fewer nodes fill a
slot than the head's last hidden layer has units. Slots that few nodes fill are left out, and what
one silo alone answered is not handed on; neither makes it safe.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from fedmend.errors import FederationError
from fedmend.federation import Federation, Nothing, SiloBase, message
from fedmend.mending.generator import NeighbourGenerator
from fedmend.mending.reconstruction import nearest_loss
from fedmend.privacy.ledger import Kind
from fedmend.training.aggregation import added_up, check_weights


@message("head_exchange.Offer")
class Offer:
    """A silo's neighbour head and its inputs, for the others to find their nearest rows.

    Empty where a silo has too few nodes for an exchange.
    """

    head: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    inputs: Annotated[Tensor, Kind.EMBEDDINGS]
    predicted: Annotated[Tensor, Kind.COUNTS]


@message("head_exchange.HeadGradient")
class HeadGradient:
    """The gradient of the distances to the nearest rows; handed on only as a sum over silos."""

    gradient: Annotated[dict[str, Tensor], Kind.GRADIENTS]


@message("head_exchange.Progress")
class Progress:
    """How a silo's generator learns: for the display, not for the method."""

    loss: Annotated[float, Kind.METRICS]


class ExchangingSilo(SiloBase):
    """The steps of a silo that takes part."""

    _pending: tuple[Tensor, Tensor] | None = None

    @property
    @abstractmethod
    def learner(self) -> NeighbourGenerator:
        """The generator that learns."""

    @abstractmethod
    def candidates(self) -> Tensor:
        """The rows of this silo that others' generated neighbours are compared with."""

    @property
    @abstractmethod
    def exchange_weight(self) -> float:
        """What the others' gradient counts."""

    def learn_alone(self, _: Nothing) -> Progress:
        """The settings' epochs on the silo's own graph."""
        loss = 0.0
        for _epoch in range(self.settings.generator_epochs):
            for _step in range(self.learner.steps_per_epoch):
                loss = self.learner.step(*self.learner.draw_batch())
        return Progress(loss)

    def offer_head(self, _: Nothing) -> Offer:
        """The head and its inputs of this round's batch: nodes that may miss a neighbour."""
        learner = self.learner
        batch, noise = self._pending = learner.draw_batch()
        z, predicted = learner.predicted(batch)
        predicted = well_filled(predicted, self.settings.min_batch)
        asked = predicted > 0
        if not bool(asked.any()):
            return Offer({}, z[:0], predicted[:0])
        used = learner.head.used(predicted)
        head = {k: v.detach() for k, v in learner.head.named_parameters() if k in used}
        return Offer(head, (z + noise)[asked], predicted[asked])

    def measure(self, offer: Offer) -> HeadGradient:
        """For another silo's head: the gradient of the distances to this silo's nearest rows."""
        head = self.learner.head
        _check_inputs(offer, self.learner, self.settings.min_batch)
        used = head.used(offer.predicted)
        like = {key: value for key, value in head.named_parameters() if key in used}
        check_weights("another silo", offer.head, like=like)
        weights = {key: value.requires_grad_() for key, value in offer.head.items()}
        made, _ = torch.func.functional_call(head, weights, (offer.inputs, offer.predicted))
        loss = nearest_loss(made, self.candidates())
        gradients = torch.autograd.grad(loss, list(weights.values()))
        return HeadGradient(dict(zip(weights, gradients, strict=True)))

    def learn(self, others: HeadGradient) -> Progress:
        """One step on the batch that was offered, with what the others found."""
        if self._pending is None:
            raise FederationError(f"{self.name} is to learn from an exchange it had no part in")
        batch, noise = self._pending
        self._pending = None
        own = dict(self.learner.head.named_parameters())
        like = {key: own[key] for key in others.gradient if key in own}
        check_weights("the server", others.gradient, like)
        scale = self.exchange_weight / len(batch)
        cross = {key: value * scale for key, value in others.gradient.items()}
        return Progress(self.learner.step(batch, noise, cross))


def well_filled(counts: Tensor, least: int) -> Tensor:
    """Numbers of neighbours, cut down to the slots that at least `least` nodes fill.

    Every slot has weights of its own, and so a gradient of its own: it is the nodes that fill it
    among which a single one can hide, not those of the whole batch.
    """
    slots = int(counts.max()) if len(counts) else 0
    filled = [int((counts > slot).sum()) >= least for slot in range(slots)]
    return counts.clamp(max=sum(filled))  # a later slot is never filled by more than an earlier


def _check_inputs(offer: Offer, learner: NeighbourGenerator, min_batch: int) -> None:
    """Refuse another silo's inputs if they cannot be what they should be.

    The smallest batch of every slot too: it protects the silo that is asked, so that silo sees to
    it.
    """
    rows = len(offer.predicted) if offer.predicted.dim() == 1 else -1
    if offer.inputs.shape != (rows, learner.embedding) or offer.inputs.dtype != torch.float32:
        raise FederationError("another silo offered embeddings of another shape or type")
    if rows < min_batch:
        raise FederationError(
            f"another silo offered {rows} nodes, fewer than min_batch={min_batch}: with so few, "
            "the gradient would reveal this silo's rows"
        )
    most = learner.neighbours
    outside = (offer.predicted < 1) | (offer.predicted > most)
    if offer.predicted.dtype != torch.int64 or bool(outside.any()):
        raise FederationError(
            f"another silo offered numbers of neighbours that are not between 1 and {most}"
        )
    if not torch.equal(well_filled(offer.predicted, min_batch), offer.predicted):
        raise FederationError(
            f"another silo offered slots that fewer than min_batch={min_batch} nodes fill: their "
            "gradient would reveal this silo's rows"
        )
    if not bool(torch.isfinite(offer.inputs).all()):
        raise FederationError("another silo offered embeddings that are NaN or infinite")


def say_if_two(silos: Federation[Any]) -> None:
    """With two silos there is nothing to add up."""
    if len(silos.names) == 2:
        silos.say(
            "with two silos the exchange hands each one the other's gradient as it is, not a sum: "
            "it can reveal the other's rows"
        )


def exchange(silos: Federation[Any], number: int, min_silos: int, min_batch: int) -> None:
    """One round: every silo's head visits all others, and the silo learns from the sum."""
    offers = silos.ask(ExchangingSilo.offer_head, Nothing()).enough(min_silos)
    losses: dict[str, Progress] = {}
    for name, offer in offers.items():
        total: dict[str, Tensor] = {}
        if not offer.head:
            silos.say(
                f"{name} has fewer than min_batch={min_batch} nodes with a predicted missing "
                "neighbour: while that is so, its generator learns alone"
            )
        else:
            others = [each for each in offers if each != name]
            answers = silos.ask(ExchangingSilo.measure, offer, to=others)
            for lost in answers.lost:
                silos.say(f"{lost.silo} is left out of what {name}'s generator learns from")
            if len(answers.arrived) > 1 or len(silos.names) == 2:
                total = added_up(
                    {silo: answer.gradient for silo, answer in answers.arrived.items()}, offer.head
                )
            else:
                silos.say(
                    f"only one silo answered {name}: alone it would be no sum, so {name}'s "
                    "generator learns without it"
                )
        losses.update(silos.ask_each(ExchangingSilo.learn, {name: HeadGradient(total)}).arrived)
    note_loss(silos, number, losses)


def note_loss(silos: Federation[Any], number: int, replies: Mapping[str, Progress]) -> None:
    """The silos' mean loss, for the record."""
    if replies:
        mean = sum(reply.loss for reply in replies.values()) / len(replies)
        silos.note(number, generator_loss=mean)
